"""A conversation as people expect it: colours, Tab, other conversations, files; and JSON for programs."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from tests.support.broker import Broker
from tests.support.harness import Daemon
from tests.support.harness import command as ask
from tests.support.model_server import ModelServer, Reply
from tests.support.place import on, with_model
from tests.system.terminal import PROMPTS, WITHIN_S, Terminal, command, daemon, environment, run

PROMPT = PROMPTS["xterm"]
PNG = b"\x89PNG\r\n\x1a\n" + bytes(64)
Open = Callable[..., Terminal]


@pytest.fixture
def chat(tmp_path: Path) -> Iterator[Open]:
    opened: list[Terminal] = []

    def start(*args: str, **env: str) -> Terminal:
        kept = environment(**{"TERM": "xterm", **env})
        if "NO_COLOR" not in env:
            kept.pop("NO_COLOR", None)
        opened.append(Terminal(command(tmp_path, "chat", *args), tmp_path, kept))
        return opened[-1]

    yield start
    for one in opened:
        one.close()


def types(terminal: Terminal, line: str, *said: str) -> None:
    """Type a line at the prompt, and wait for what comes of it."""
    terminal.until(PROMPT)
    terminal.write(line)
    for text in said:
        terminal.until(text)


def leave(terminal: Terminal) -> int:
    terminal.until(PROMPT)
    terminal.write("\x04")
    return terminal.process.wait(WITHIN_S)


def objects(text: str) -> list[dict[str, object]]:
    return [json.loads(line) for line in text.splitlines()]


# -- colours -----------------------------------------------------------------------------------------


def test_markdown_is_shown_in_colour(chat: Open) -> None:
    terminal = chat()
    types(terminal, "**bold** &#27;]0;owned&#7; `code`\r", "echo: \x1b[1mbold\x1b[0m \ufffd]0;owned\ufffd ")
    assert leave(terminal) == 0


async def test_words_are_seen_before_their_line_is_full(tmp_path: Path, chat: Open) -> None:
    """First a sign that it thinks, then what came so far; the whole answer takes their place."""
    held, half = asyncio.Event(), asyncio.Event()
    async with ModelServer() as model, Daemon(tmp_path, config=with_model(model)):
        model.script.append(Reply(text="one two **three** four", held=held, half=half))
        terminal = chat()
        await asyncio.to_thread(terminal.until, PROMPT)
        terminal.write("count\r")
        await asyncio.to_thread(terminal.until, "\x1b[2m…\x1b[0m")
        held.set()
        await asyncio.to_thread(terminal.until, "\r\x1b[K\x1b[2mone")
        assert "four" not in terminal.seen
        half.set()
        await asyncio.to_thread(terminal.until, "\r\x1b[Kone two \x1b[1mthree\x1b[0m four\r\n")
        assert await asyncio.to_thread(leave, terminal) == 0


def test_ctrl_c_drops_what_is_typed_and_then_leaves(chat: Open) -> None:
    terminal = chat()
    types(terminal, "not this", "not this")
    terminal.write("\x03")
    terminal.until(PROMPT)
    assert terminal.process.poll() is None
    terminal.write("\x03")

    assert terminal.process.wait(WITHIN_S) == 130


@pytest.mark.parametrize(
    ("env", "end"), [({"TERM": "dumb"}, "\n"), ({"NO_COLOR": "1"}, "\r")], ids=["dumb", "no colour"]
)
def test_who_wants_none_gets_plain_text(chat: Open, env: dict[str, str], end: str) -> None:
    terminal = chat(**env)
    terminal.until(PROMPTS[env.get("TERM", "xterm")])
    terminal.write(f"**bold**{end}")

    terminal.until("echo: **bold**\r\n")
    assert "TERM" not in env or "\x1b" not in terminal.seen


# -- Tab ---------------------------------------------------------------------------------------------


def test_tab_completes_commands_keys_and_paths(tmp_path: Path, chat: Open) -> None:
    run(tmp_path, "chat", "-m", "hello", "--key", "cli:garden")
    (tmp_path / "picture.png").write_bytes(PNG)
    terminal = chat()
    # The line editor writes what is new of a line alone.
    for typed, completed, said in (
        ("/und\t", ("und", "o"), "nothing to withdraw"),
        ("/sessions cli:g\t", ("arden",), "now in cli:garden"),
        ("!file pict\t", ("ure.png",), "picture.png (72 bytes)"),
    ):
        types(terminal, typed, *completed)
        terminal.write("\r")
        terminal.until(said)


# -- other conversations -----------------------------------------------------------------------------


@pytest.mark.parametrize("attached", [True, False])
def test_an_ended_session_is_chosen_and_goes_on(tmp_path: Path, chat: Open, attached: bool) -> None:
    """`/sessions` shows this terminal's conversations alone; the one that is chosen goes on."""
    run(tmp_path, "chat", "-m", "about roses", "--key", "cli:garden")
    run(tmp_path, "chat", "-m", "/new", "--key", "cli:garden")
    run(tmp_path, "chat", "-m", "secret", "--key", "web:other")
    if attached:
        with daemon(tmp_path):
            _choose(chat)
    else:
        _choose(chat)

    shown = json.loads(run(tmp_path, "sessions", "show", "cli:garden", "--json").stdout)
    assert [line["content"] for line in shown["messages"]] == [
        "about roses",
        "echo: about roses",
        "go on",
        "echo: go on",
    ]


def _choose(chat: Open) -> None:
    terminal = chat()
    types(terminal, "/sessions\r", "cli:garden", "Which one?")
    types(terminal, "1\r", "now in cli:garden", "continues")
    types(terminal, "go on\r", "echo: go on")
    assert leave(terminal) == 0
    assert "web:other" not in terminal.seen


def test_a_conversation_is_chosen_before_the_first_message(tmp_path: Path, chat: Open) -> None:
    run(tmp_path, "chat", "-m", "hello", "--key", "cli:garden")
    terminal = chat("--list")
    terminal.until("Which one?")
    types(terminal, "1\r")
    types(terminal, "again\r", "echo: again")

    assert leave(terminal) == 0
    assert "echo: again" in (tmp_path / "sessions" / "cli_garden.jsonl").read_text()


def test_the_list_through_a_pipe_asks_nothing(tmp_path: Path) -> None:
    empty = run(tmp_path, "chat", "--list")
    run(tmp_path, "chat", "-m", "hello", "--key", "cli:garden")
    rows = run(tmp_path, "chat", "--list")
    (as_json,) = objects(run(tmp_path, "chat", "--list", "--json").stdout)

    assert (empty.returncode, empty.stdout) == (0, "")
    assert "cli:garden" in rows.stdout
    assert [row["key"] for row in as_json["sessions"]] == ["cli:garden"]  # type: ignore[attr-defined]


# -- files -------------------------------------------------------------------------------------------


async def test_a_file_goes_along_through_a_daemon(tmp_path: Path, broker: Broker, broker_name: str) -> None:
    """It is an attachment of the letter, kept as other channels keep theirs, and the model sees it."""
    note = tmp_path / "note.txt"
    note.write_text("roses are red")
    home = tmp_path / "w"
    home.mkdir()
    async with ModelServer() as model:
        config = on(broker, broker_name, **with_model(model))
        async with Daemon(home, config=config):
            done = await ask(home, "chat", "-m", "what is this?", "--file", str(note), config=config)
            seen = await model.arrived(1)

    assert done[0] == 0
    assert done[1].startswith("stub: what is this?\n[document: note.txt (text/plain, 13 B)")
    (line,) = [row for row in objects((home / "sessions" / "cli_direct.jsonl").read_text()) if "role" in row][
        :1
    ]
    (file,) = line["attachments"]  # type: ignore[misc]
    assert (file["name"], file["mime"], file["size"]) == ("note.txt", "text/plain", 13)
    assert (home / file["ref"]).read_text() == "roses are red"
    assert "note.txt" in json.dumps(seen.messages)


def test_files_are_taken_along_from_the_terminal(tmp_path: Path, chat: Open) -> None:
    """What cannot be taken is said, and what was typed is not sent without it."""
    (tmp_path / "a b.png").write_bytes(PNG)
    (tmp_path / "large.bin").write_bytes(bytes(2 * 2**20))
    terminal = chat(CHAT_GATEWAY_MEDIA__MAX_MB="1")
    for line, said in (
        ("!file nothing.png", "nothing.png does not exist"),
        ("!file large.bin", "media.max_mb = 1"),
        (f"!file {tmp_path}", "is not a file"),
        ("!file a b.png", "a b.png (72 bytes) is attached"),
    ):
        types(terminal, f"{line}\r", said)
    types(terminal, "look\r", "echo: look")
    types(terminal, "again\r", "echo: again")

    assert leave(terminal) == 0
    lines = objects((tmp_path / "sessions" / "cli_direct.jsonl").read_text())
    asked = [line for line in lines if line.get("role") == "user"]
    (file,) = asked[0]["attachments"]  # type: ignore[misc]
    assert (file["kind"], file["mime"]) == ("photo", "image/png")
    assert (tmp_path / file["ref"]).read_bytes() == PNG
    assert "attachments" not in asked[1]


def test_what_is_piped_in_takes_no_file_along(tmp_path: Path) -> None:
    """Anybody may have written it: a text that is passed on must not choose files of this machine."""
    (tmp_path / "secret.txt").write_text("s")
    run(tmp_path, "chat", stdin="!file secret.txt\n")
    missing = run(tmp_path, "chat", "-m", "x", "--file", "nothing.txt")

    assert not (tmp_path / "media").exists()
    assert (missing.returncode, missing.stdout) == (1, "")
    assert "nothing.txt does not exist" in missing.stderr


# -- for programs ------------------------------------------------------------------------------------


async def test_each_thing_that_happens_is_a_line(tmp_path: Path) -> None:
    async with ModelServer() as model, Daemon(tmp_path, config=with_model(model)):
        code, printed = await ask(
            tmp_path, "chat", "--json", "-m", "[[tool:ls {}]] look", config=with_model(model)
        )

    rows = objects(printed)
    deltas = "".join(str(row["text"]) for row in rows if row["type"] == "delta")
    reply = rows[-1]
    assert code == 0
    assert [rows[0]["type"], reply["type"]] == ["sent", "reply"]
    assert {row["id"] for row in rows} == {rows[0]["id"]}
    assert any(row["type"] == "tool" and "ls" in str(row["text"]) for row in rows)
    assert deltas.endswith(str(reply["text"]))
    assert (reply["key"], reply["files"]) == ("cli:direct", [])


def test_a_conversation_in_json(tmp_path: Path) -> None:
    """Messages are lines, `-m -` is stdin alone; what is no reply is a notice or an error."""
    done = run(tmp_path, "chat", "--json", stdin="one\n/sessions cli:b\n/help\n\x1btwo\n")
    once = run(tmp_path, "chat", "--json", "-m", "-", stdin="from stdin\n")
    late = run(
        tmp_path,
        *("chat", "--json", "-m", "x", "--timeout", "0.2"),
        env=environment(CHAT_GATEWAY_MODEL__ECHO_DELAY_S="600"),
    )

    ends = [row for row in objects(done.stdout) if row["type"] in ("reply", "notice")]
    assert [(row["type"], row["key"]) for row in ends] == [
        ("reply", "cli:direct"),
        ("reply", "cli:b"),
        ("reply", "cli:b"),
    ]
    assert ends[2]["text"] == "echo: \x1btwo"
    assert "\x1b" not in done.stdout
    assert objects(once.stdout)[-1]["text"] == "echo: from stdin"
    assert late.returncode == 1
    assert [row["type"] for row in objects(late.stdout)] == ["sent", "late"]
