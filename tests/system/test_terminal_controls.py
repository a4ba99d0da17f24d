"""What people and models write never steers the terminal that shows it, and is exact everywhere else."""

from __future__ import annotations

import json
import os
import pty
import subprocess
from pathlib import Path

import pytest

from tests.support import forked
from tests.system.terminal import WITHIN_S, command, environment, run

EVIL = "a\x1b]0;owned\x07b\rc\x9b31m\td\x7f"
PLAIN = r"a\x1b]0;owned\x07b\rc\x9b31m" + "\td" + r"\x7f"
RAW = [bytes([code]) for code in (*range(9), *range(11, 32), 127)] + [
    b"\xc2" + bytes([n]) for n in range(128, 160)
]


def on_terminal(workspace: Path, *args: str) -> bytes:
    """Run a verb whose stdout and stderr are a terminal; return what reached it."""
    ours, theirs = pty.openpty()
    process = forked.start(
        command(workspace, *args), stdin=subprocess.DEVNULL, stdout=theirs, stderr=theirs, env=environment()
    )
    os.close(theirs)
    seen = b""
    try:
        while block := os.read(ours, 65536):
            seen += block
    except OSError:
        # Linux ends a terminal that nobody holds any more with EIO.
        pass
    os.close(ours)
    assert process.wait(WITHIN_S) == 0
    # The terminal itself writes each line break as CR LF.
    return seen.replace(b"\r\n", b"\n")


@pytest.fixture(scope="module")
def workspace(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A workspace with one exchange whose texts are full of control characters."""
    home = tmp_path_factory.mktemp("w")
    done = run(home, "chat", "-m", EVIL)
    assert done.returncode == 0, done.stderr
    return home


@pytest.mark.parametrize(
    "verb",
    [
        ("chat", "-m", EVIL),
        ("sessions", "show", "cli:direct"),
        ("sessions", "show", "cli:direct", "--json"),
        ("sessions", "search", "cli:direct", "echo:"),
        ("sessions", "export", "--to", "nanobot", "cli:direct"),
    ],
    ids=lambda verb: " ".join(verb[:2] + verb[3:4]) if verb[0] != "chat" else "chat -m",
)
def test_no_control_character_reaches_a_terminal(workspace: Path, verb: tuple[str, ...]) -> None:
    seen = on_terminal(workspace, *verb)

    assert b"echo:" in seen
    assert [raw for raw in RAW if raw in seen] == []


def test_what_is_piped_is_exact_but_where_it_is_made_for_people(workspace: Path, tmp_path: Path) -> None:
    answer = forked.run(
        command(tmp_path, "chat", "-m", EVIL),
        env=environment(),
        timeout=WITHIN_S,
    )
    shown = run(workspace, "sessions", "show", "cli:direct")
    as_json = run(workspace, "sessions", "show", "cli:direct", "--json")

    assert answer.returncode == 0
    assert answer.stdout == f"echo: {EVIL}\n".encode()
    assert f": echo: {PLAIN}\n" in shown.stdout
    assert [raw for raw in RAW if raw.decode() in as_json.stdout] == []
    assert json.loads(as_json.stdout)["messages"][1]["content"] == f"echo: {EVIL}"
