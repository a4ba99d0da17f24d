"""A session whose key has no colon goes on through a running daemon, too, and by nobody's slip begins one."""

from __future__ import annotations

import json
from pathlib import Path

from tests.gateway.cli_place import session_file
from tests.system.terminal import daemon, run


def test_a_key_without_a_colon_goes_on_through_the_daemon(tmp_path: Path) -> None:
    home = tmp_path / "w"
    home.mkdir()
    taken = run(
        home,
        *("sessions", "import", "--from", "nanobot"),
        str(session_file(tmp_path / "heartbeat.jsonl", "heartbeat", "tick")),
    )

    with daemon(home):
        told = run(home, "chat", "--key", "heartbeat", "-m", "there?")
        slip = run(home, "chat", "--key", "heartbeet", "-m", "there?")
        typed = run(home, "chat", "--key", "heartbeat", stdin="again?\n")

    rows = json.loads(run(home, "sessions", "list", "--json").stdout)
    shown = json.loads(run(home, "sessions", "show", "heartbeat", "--json").stdout)
    assert taken.returncode == 0, taken.stderr
    assert (told.returncode, told.stdout) == (0, "echo: there?\n"), told.stderr
    assert (slip.returncode, slip.stdout) == (1, "")
    assert "try: a key is channel:chat_id" in slip.stderr
    assert typed.stdout.count("echo: again?") == 1
    assert [row["key"] for row in rows] == ["heartbeat"]
    assert [line["content"] for line in shown["messages"]] == [
        "tick",
        "there?",
        "echo: there?",
        "again?",
        "echo: again?",
    ]
