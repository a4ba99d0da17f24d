"""``sessions import|export`` as a person uses them."""

from __future__ import annotations

import base64
import json
import math
import re
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from session.interchange.conversation import MAX_LINES
from session.interchange.formats import FORMATS
from session.transcript.line import MAX_LINE_BYTES
from tests.gateway.cli_place import SAMPLES, Ran, import_into, listed, session_file, shown, write

ULID = "01KH9Z3Q3BZ63Q2JQ3VM15EA2A"


@pytest.mark.parametrize("name", FORMATS)
def test_what_is_exported_comes_in_elsewhere(tmp_path: Path, name: str) -> None:
    ours, theirs, out = tmp_path / "ours", tmp_path / "theirs", tmp_path / "out"
    import_into(ours, SAMPLES / "v014" / "sessions" / "telegram_999.jsonl")
    out.mkdir()

    exported = Ran(ours, "sessions", "export", "--to", name, "telegram:999", "-o", out)
    imported = import_into(theirs, out, *(["--key", "cli:x"] if "nano" not in name else []), name=name)
    key, ulid = imported.out.split()

    assert (exported.code, exported.out, imported.code) == (0, "", 0), exported.err + imported.err
    assert key == ("telegram:999" if "nano" in name else "cli:x")
    assert [(row["id"], row["message_count"], row["active"]) for row in listed(theirs)] == [(ulid, 6, True)]
    assert [line["content"] for line in shown(theirs, key)] == [
        line["content"] for line in shown(ours, "telegram:999")
    ]
    assert (ulid == listed(ours)[0]["id"]) == (name in ("nanobot", "nanobot-b64", "overlay", "rows"))


@pytest.mark.parametrize(
    ("name", "field"), [("nanobot", "updated_at"), ("overlay", "lastMessageAt"), ("rows", "updated_at")]
)
def test_the_time_of_the_newest_message_is_not_that_of_a_record_behind_it(
    tmp_path: Path, name: str, field: str
) -> None:
    said = {"role": "user", "content": "hi", "message_id": "cli:1", "timestamp": "2026-02-01T09:00:00"}
    answer = said | {"role": "assistant", "content": "ho"}
    note = {"role": "system", "content": "hello", "kind": "note", "timestamp": "2026-02-03T09:00:00"}
    head = {"_type": "metadata", "key": "cli:a", "metadata": {"session_id": ULID}}
    write(tmp_path / "w" / "sessions" / "cli_a.jsonl", head, said, answer, note | {"edits": "cli:1"})
    (tmp_path / "out").mkdir()

    done = Ran(tmp_path / "w", "sessions", "export", "--to", name, "cli:a", "-o", tmp_path / "out")

    written = "".join(path.read_text() for path in (tmp_path / "out").rglob("*") if path.is_file())
    assert done.code == 0, done.err
    assert re.findall(rf'"{field}": ?"([^"T]+)T', written) == ["2026-02-01"]


def test_one_file_goes_to_stdout_and_a_folder_does_not(tmp_path: Path) -> None:
    import_into(tmp_path, SAMPLES / "v014" / "sessions" / "telegram_999.jsonl")
    (row,) = listed(tmp_path)

    by_ulid = Ran(tmp_path, "sessions", "export", "--to", "nanobot", row["id"])
    folder = Ran(tmp_path, "sessions", "export", "--to", "overlay", "telegram:999")
    inside = Ran(
        tmp_path, "sessions", "export", "--to", "nanobot", "telegram:999", "-o", tmp_path / "sessions"
    )
    nobody = Ran(tmp_path, "sessions", "export", "--to", "nanobot", "cli:nobody")

    head, *lines = (json.loads(line) for line in by_ulid.bytes.splitlines())
    assert (head["key"], len(lines), by_ulid.code) == ("telegram:999", 6, 0)
    assert (folder.code, folder.out) == (2, "")
    assert "-o FOLDER" in folder.err
    assert (inside.code, nobody.code) == (1, 1)
    assert "try: chat-gateway sessions list" in nobody.err


def test_a_ulid_is_kept_if_it_is_one_and_free(tmp_path: Path) -> None:
    file = session_file(tmp_path / "a.jsonl", "telegram:1", "hi", session_id=ULID)

    kept = import_into(tmp_path / "w", file)
    taken = import_into(tmp_path / "w", file, "--key", "cli:b")
    write(tmp_path / "x" / "s" / "session.jsonl")
    none = import_into(tmp_path / "w", tmp_path / "x" / "s", name="overlay")

    assert kept.out.split() == ["telegram:1", ULID]
    assert taken.out.split()[0] == "cli:b"
    assert taken.out.split()[1] != ULID
    assert f"{ULID} belongs to a session here" in taken.err
    assert none.out.split()[0] == "cli:s"
    assert "s is not a valid session id" in none.err


def test_a_message_that_waits_for_its_answer_holds_an_import_off(tmp_path: Path) -> None:
    line = {"role": "user", "content": "hi", "message_id": "telegram:1:1", "timestamp": "2026-02-01T09:00:00"}
    path = write(
        tmp_path / "w" / "sessions" / "telegram_1.jsonl", {"_type": "metadata", "key": "telegram:1"}, line
    )
    file = session_file(tmp_path / "a.jsonl", "telegram:1", "new")
    before = path.read_bytes()

    done = import_into(tmp_path / "w", file)

    assert (done.code, done.out, path.read_bytes()) == (1, "", before)
    assert "is being answered" in done.err
    assert not (tmp_path / "w" / "sessions" / "archive").exists()


def test_a_compacted_folder_keeps_its_archives(tmp_path: Path) -> None:
    write(tmp_path / "main" / "20260225T143000.jsonl", {"ts": 1740000000, "role": "user", "content": "hi"})
    compact = {"type": "compact", "previousSession": "20260225T143000.jsonl"}
    write(
        tmp_path / "main" / "current.jsonl",
        {"ts": 1740000100, "role": "system", "content": "Summary: hi", "metadata": compact},
    )

    done = import_into(tmp_path / "w", tmp_path / "main", "--key", "cli:m", name="archive")
    alone = import_into(tmp_path / "w", tmp_path / "main" / "current.jsonl", name="archive")

    (line,) = shown(tmp_path / "w", "cli:m")
    (archived,) = (tmp_path / "w" / "sessions" / "archive" / "cli_m").iterdir()
    assert (line["kind"], line["metadata"]["previousSession"], done.code) == ("compact", archived.name, 0)
    assert alone.out.split()[0] == "cli:current"
    assert "not imported: the archive 20260225T143000.jsonl" in alone.err


def test_mistakes_are_named(tmp_path: Path) -> None:
    png = tmp_path / "a.png"
    png.write_bytes(b"\x89PNG")

    missing = import_into(tmp_path / "w", tmp_path / "none", name="rows")
    other = import_into(tmp_path / "w", png, name="rows")
    key = import_into(tmp_path / "w", png, "--key", "nokey", name="rows")
    empty = import_into(tmp_path / "w", tmp_path)

    assert [ran.code for ran in (missing, other, key, empty)] == [1, 1, 2, 1]
    assert all("error: " in ran.err and "try: " in ran.err for ran in (missing, other, key, empty))
    assert not (tmp_path / "w" / "sessions").exists()


@pytest.mark.parametrize("name", ["annabelle", "archive", "rows", "pi"])
def test_a_folder_without_sessions_is_no_success(tmp_path: Path, name: str) -> None:
    """One level too high or too deep, nothing would be taken over, and nothing said."""
    (tmp_path / "none").mkdir()

    ran = import_into(tmp_path / "w", tmp_path / "none", name=name)

    assert ran.code == 1
    assert f"none contains no session in the format {name}" in ran.err
    assert "try: " in ran.err


HEAD, SHORT = b'{"_type":"metadata"}\n', b'{"role":"user","content":"hi"}\n'
LARGE = {
    "a line": (
        HEAD + SHORT + b"x" * (MAX_LINE_BYTES + 1),
        "line 3 of big.jsonl is over 16 MB",
        "remove or shorten line 3",
    ),
    "lines": (HEAD + SHORT * MAX_LINES, "big.jsonl has over 100,000 lines", "split big.jsonl"),
}


@pytest.mark.parametrize("kind", LARGE)
def test_what_is_too_large_is_refused_before_it_takes_memory(tmp_path: Path, kind: str) -> None:
    """Decoded, the lines would take half a gigabyte."""
    data, problem, cure = LARGE[kind]
    file = tmp_path / "big.jsonl"
    file.write_bytes(data)
    code = (
        "import pathlib, sys\nfrom gateway.__main__ import main\n"
        "code = main(sys.argv[1:])\n"
        # What getrusage says begins with what the process had that started this one.
        "print(pathlib.Path('/proc/self/status').read_text().partition('VmHWM:')[2].split()[0])\nsys.exit(code)"
    )
    verb = ("sessions", "import", "--from", "nanobot", str(file))

    done = subprocess.run(
        [sys.executable, "-c", code, "--workspace", str(tmp_path / "w"), *verb],
        capture_output=True,
        text=True,
        check=False,
    )

    assert done.returncode == 1
    assert f"error: {problem}\n" in done.stderr
    assert f"try: {cure}" in done.stderr
    assert int(done.stdout) < 160 * 1024


def test_a_large_file_of_a_workspace_stops_no_other(tmp_path: Path) -> None:
    folder = tmp_path / "theirs" / "sessions"
    folder.mkdir(parents=True)
    (folder / "telegram_1.jsonl").write_bytes(LARGE["a line"][0])
    (folder / "telegram_2.jsonl").write_bytes(HEAD + SHORT)

    ran = import_into(tmp_path / "w", folder.parent)

    assert "telegram_1.jsonl is skipped: remove or shorten line 3 of " in ran.err
    assert [row["key"] for row in listed(tmp_path / "w")] == ["telegram:2"]


def test_the_export_of_a_session_names_one_agent(tmp_path: Path) -> None:
    """A session that began here has no other."""
    Ran(tmp_path, "chat", "-m", "hi", "--key", "cli:a")

    header = json.loads(Ran(tmp_path, "sessions", "export", "--to", "annabelle", "cli:a").out.splitlines()[0])

    assert (header["type"], header["agentId"]) == ("header", "annabelle")


PNG = b"\x89PNG\r\n\x1a\n" + bytes(40)
PI_AT = "2026-02-11T01:14:59.755Z"


def pi_file(path: Path) -> Path:
    image = {"type": "image", "data": base64.b64encode(PNG).decode(), "mimeType": "image/png"}
    call = {"type": "toolCall", "id": "t", "name": "bash", "arguments": {"command": "ls"}}
    messages: list[dict[str, Any]] = [
        {"role": "user", "content": [{"type": "text", "text": "what is here?"}, image]},
        {"role": "assistant", "content": [{"type": "thinking", "thinking": "hm"}, call]},
        {
            "role": "toolResult",
            "toolCallId": "t",
            "toolName": "bash",
            "content": [{"type": "text", "text": "zebra"}],
        },
        {"role": "assistant", "content": [{"type": "text", "text": "An animal."}]},
    ]
    entries = [
        {
            "type": "message",
            "id": f"e{n}",
            "parentId": f"e{n - 1}" if n else None,
            "timestamp": PI_AT,
            "message": one,
        }
        for n, one in enumerate(messages)
    ]
    return write(path, {"type": "session", "version": 3, "id": "5f3c", "timestamp": PI_AT}, *entries)


def test_a_session_of_pi_comes_in_with_its_image_and_says_what_it_lost(tmp_path: Path) -> None:
    done = import_into(tmp_path / "w", pi_file(tmp_path / "s.jsonl"), name="pi")

    assert (done.code, done.out.split()[0]) == (0, "cli:5f3c"), done.err
    assert "not imported: thinking blocks" in done.err
    lines = shown(tmp_path / "w", "cli:5f3c")
    assert [line["role"] for line in lines] == ["user", "assistant", "tool", "assistant"]
    (file,) = lines[0]["attachments"]
    stored = tmp_path / "w" / file["ref"]
    assert (stored.read_bytes(), stored.stat().st_mode & 0o777) == (PNG, 0o600)


def test_what_is_only_read_is_refused_by_name_where_it_should_be_written(tmp_path: Path) -> None:
    import_into(tmp_path / "w", pi_file(tmp_path / "s.jsonl"), "--key", "cli:a", name="openclaw")

    for name in ("pi", "openclaw"):
        done = Ran(tmp_path / "w", "sessions", "export", "--to", name, "cli:a")
        assert (done.code, done.out) == (2, "")
        assert f"error: {name} can only be imported" in done.err
        assert "try: use --to with one of nanobot" in done.err


def test_results_of_tools_are_found_where_it_is_asked_for(tmp_path: Path) -> None:
    import_into(tmp_path / "w", pi_file(tmp_path / "s.jsonl"), "--key", "cli:a", name="pi")

    without = Ran(tmp_path / "w", "sessions", "search", "cli:a", "zebra", "--json")
    with_tools = Ran(tmp_path / "w", "sessions", "search", "cli:a", "zebra", "--tools", "--json")

    assert json.loads(without.out) == []
    assert [(hit["role"], hit["seq"], hit["text"]) for hit in json.loads(with_tools.out)] == [
        ("tool", 3, "zebra")
    ]


def test_a_key_without_a_colon_is_kept_and_goes_on_by_itself(tmp_path: Path) -> None:
    """Sessions of nanobot such as ``heartbeat`` have such keys."""
    home = tmp_path / "w"
    import_into(home, session_file(tmp_path / "heartbeat.jsonl", "heartbeat", "tick"))

    assert [row["key"] for row in listed(home)] == ["heartbeat"]
    talk = Ran(home, "chat", "--key", "heartbeat", "-m", "still there?")
    assert (talk.code, talk.out) == (0, "echo: still there?\n"), talk.err
    assert [line["content"] for line in shown(home, "heartbeat")] == [
        "tick",
        "still there?",
        "echo: still there?",
    ]
    assert [row["key"] for row in listed(home)] == ["heartbeat"]
    head, *lines = Ran(home, "sessions", "export", "--to", "nanobot", "heartbeat").bytes.splitlines()
    assert (json.loads(head)["key"], len(lines)) == ("heartbeat", 3)


def test_a_key_without_a_colon_begins_no_session(tmp_path: Path) -> None:
    """It is a slip of the keyboard then."""
    done = Ran(tmp_path / "w", "chat", "--key", "telegram42", "-m", "hi")

    assert (done.code, done.out) == (1, "")
    assert "try: a key is channel:chat_id" in done.err
    assert listed(tmp_path / "w") == []


def test_a_session_without_messages_keeps_its_line_1(tmp_path: Path) -> None:
    source, home = tmp_path / "n", tmp_path / "w"
    session_file(source / "sessions" / "cli_a.jsonl", "cli:a", name="cat")
    session_file(source / "sessions" / "cli_b.jsonl", "cli:b", "hi")

    first = import_into(home, source)
    again = import_into(home, source)

    assert first.code == again.code == 0, first.err
    rows = {row["key"]: row for row in listed(home)}
    assert sorted(rows) == ["cli:a", "cli:b"]
    assert (rows["cli:a"]["name"], rows["cli:a"]["message_count"]) == ("cat", 0)
    assert rows["cli:a"]["created_at"].startswith("2026-02-01")
    assert again.out == ""


def test_lines_with_odd_calls_and_numbers_are_shown(tmp_path: Path) -> None:
    """As other programs write them; what is printed as JSON is JSON, to the strictest reader."""
    at = {"timestamp": "2026-01-01T00:00:00"}
    calls: list[Any] = ["abc", [1, None, {"function": "x"}, {"function": {"name": "ls"}}], 7, {"name": "x"}]
    lines = [{"role": "assistant", "content": "yo", "tool_calls": each, **at} for each in calls]
    odd = {"role": "tool", "content": {"a": math.inf, "b": [-math.inf, 1.5]}, "score": math.nan, **at}
    head = {"_type": "metadata", "key": "web:odd", "created_at": at["timestamp"], "metadata": {}}
    write(tmp_path / "sessions" / "web_odd.jsonl", head, *lines, odd)

    text = Ran(tmp_path, "sessions", "show", "web:odd")
    document = Ran(tmp_path, "sessions", "show", "web:odd", "--json")

    assert (text.code, text.out.count("assistant")) == (0, 4), text.err
    assert "[ls]: yo" in text.out
    found = json.loads(document.out, parse_constant=lambda name: pytest.fail(f"{name} is no JSON"))
    assert found["messages"][-1]["content"] == {"a": None, "b": [None, 1.5]}
    assert found["messages"][-1]["score"] is None
    assert found["messages"][0]["tool_calls"] == "abc"
