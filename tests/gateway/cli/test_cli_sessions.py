"""``sessions search|close|resume|prune`` on the files of a workspace."""

from __future__ import annotations

import asyncio
import json
from datetime import UTC, datetime, timedelta
from pathlib import Path

import pytest

from gateway.__main__ import main
from gateway.app.daemons import DaemonRegistry
from session.errors import ModelAway
from session.models.model import Answer, OnDelta, Prompt
from session.store.store import Store
from session.transcript.key import SessionKey
from session.transcript.transcript import make_line
from tests.gateway.http_place import open_place
from tests.support.place import write

KEY = "telegram:1"


async def fill(workspace: Path, *sessions: list[str], key: str = KEY, age_days: float = 0) -> list[str]:
    """Store conversations of user messages; all but the last one have ended. Returns their ULIDs."""
    at = datetime.now(UTC) - timedelta(days=age_days)
    store = Store(workspace, zone=UTC, clock=lambda: at)
    ids = []
    for texts in sessions:
        async with store.open(SessionKey(key)) as session:
            if len(session):
                await session.end()
            ids.append(session.session_id)
            await session.append([make_line("user", text, at.isoformat(), message_id=text) for text in texts])
            await session.append(
                [make_line("assistant", "ok", at.isoformat(), final=True, message_id=texts[-1])]
            )
    await store.aclose()
    return ids


def run(workspace: Path, *argv: str) -> int:
    try:
        return main(["sessions", *argv, "--workspace", str(workspace)])
    except SystemExit as ended:
        return int(str(ended.code or 0))


def rows(workspace: Path, capsys: pytest.CaptureFixture[str]) -> dict[str, bool]:
    assert run(workspace, "list", "--json") == 0
    return {row["id"]: row["active"] for row in json.loads(capsys.readouterr().out)}


def test_search(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """All words in one message, whatever their case, over all sessions of this key alone, newest first."""
    old, new = asyncio.run(fill(tmp_path, ["Grüße aus KÖLN", "apples"], ["köln again, with grüße", "pears"]))
    asyncio.run(fill(tmp_path, ["grüße köln"], key="telegram:2"))

    assert run(tmp_path, "search", KEY, "köln", "GRÜSSE", "--json") == 0
    found = json.loads(capsys.readouterr().out)
    assert [(hit["id"], hit["seq"], hit["active"]) for hit in found] == [(new, 1, True), (old, 1, False)]
    assert run(tmp_path, "search", KEY, "köln", "--limit", "1", "--json") == 0
    out, words = capsys.readouterr()
    assert len(json.loads(out)) == 1
    assert "older matches" in words
    assert run(tmp_path, "search", KEY, "nothing", "--json") == 0
    assert json.loads(capsys.readouterr().out) == []
    assert run(tmp_path, "search", KEY) == 2
    assert run(tmp_path, "search", KEY, "x", "--limit", "0") == 2


@pytest.mark.parametrize("args", [("close", "nope"), ("search", "nope", "x")])
def test_a_chat_that_is_unknown_is_an_error(
    args: tuple[str, ...], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """A misspelt key exited 0, as if something had been done. A chat without an open session is known."""
    asyncio.run(fill(tmp_path, ["a"]))

    assert run(tmp_path, *args) == 1
    assert capsys.readouterr().err == "error: there is no chat 'nope'\ntry: chat-gateway sessions list\n"
    assert [run(tmp_path, "close", KEY) for _ in range(2)] == [0, 0]
    assert f"{KEY} has no open session" in capsys.readouterr().err


def test_show_names_the_ids_that_trace_takes(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    asyncio.run(fill(tmp_path, ["telegram:9:1"]))

    assert run(tmp_path, "show", KEY) == 0

    assert [line.split(" ", 1)[1] for line in capsys.readouterr().out.splitlines()[-2:]] == [
        "user telegram:9:1: telegram:9:1",
        "assistant telegram:9:1: ok",
    ]


def test_close_and_resume(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """A closed key has no active session; an older one is opened again, one of another key never."""
    old, new = asyncio.run(fill(tmp_path, ["a"], ["b"]))
    [theirs, _] = asyncio.run(fill(tmp_path, ["c"], ["d"], key="telegram:2"))

    assert run(tmp_path, "resume", KEY, old) == 0
    found = rows(tmp_path, capsys)
    assert (found[old], found[new]) == (True, False)
    assert run(tmp_path, "close", KEY) == 0
    assert run(tmp_path, "close", KEY) == 0
    found = rows(tmp_path, capsys)
    assert (found[old], found[new]) == (False, False)
    for ulid in (theirs, "01KJMMA2G01YBHZZBBY3RWPAPM", "../x", old.lower()):
        assert run(tmp_path, "resume", KEY, ulid) == 1
        words = capsys.readouterr().err.splitlines()
        assert [line.split(":")[0] for line in words[-2:]] == ["error", "try"]
    assert rows(tmp_path, capsys)[theirs] is False


def test_prune(tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> None:
    """A dry run says what would go and changes nothing; without retention_days nothing goes.

    The active session ended with its last message, and nothing opens with what was said in it.
    """
    first, second, third = asyncio.run(fill(tmp_path, ["a"], ["b"], ["c"], age_days=50))

    assert run(tmp_path, "prune", "--json") == 0
    assert json.loads(capsys.readouterr().out) == []
    monkeypatch.setenv("CHAT_GATEWAY_SESSION__RETENTION_DAYS", "30")
    expected = [("archive", third), *(("delete", one) for one in sorted((first, second, third)))]
    for how in (["--dry-run"], []):
        assert len(rows(tmp_path, capsys)) == 3
        assert run(tmp_path, "prune", "--json", *how) == 0
        steps = [(row["do"], row["id"]) for row in json.loads(capsys.readouterr().out)]
        assert (steps[0], sorted(steps)) == (expected[0], expected)
    assert rows(tmp_path, capsys) == {}


def test_clearing_a_chat_of_a_person_leaves_what_the_others_share(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Its own files go; those of the person stay, and it says so."""
    monkeypatch.setenv("CHAT_GATEWAY_PEOPLE", json.dumps({"ada": [KEY, "cli:direct"]}))
    asyncio.run(fill(tmp_path, ["hello"]))
    for top in ("memory/people/ada", "files/people/ada", "memory/chats/telegram_1"):
        write(tmp_path / top / "MEMORY.md", "tea")

    assert run(tmp_path, "clear", KEY, "--everything") == 0

    assert "kept: memory/people/ada and files/people/ada" in capsys.readouterr().err
    assert (tmp_path / "memory/people/ada/MEMORY.md").exists()
    assert (tmp_path / "files/people/ada/MEMORY.md").exists()
    assert not (tmp_path / "memory/chats/telegram_1").exists()
    assert run(tmp_path, "clear", "telegram:2", "--everything") == 0
    assert "people/ada" not in capsys.readouterr().err


@pytest.mark.parametrize("options", [[], ["--everything"]])
async def test_clear_ends_a_turn_that_hangs(tmp_path: Path, options: list[str]) -> None:
    """Whichever daemon runs it: its client is told at once, and the next message is answered."""
    async with (
        open_place(tmp_path / "another") as another,
        open_place(tmp_path / "ours") as place,
    ):
        registry = DaemonRegistry(tmp_path / "ours")
        with (
            registry.entry(url=another.server.url, role="all"),
            registry.entry(url=place.server.url, role="all"),
        ):
            for text in ("old", "/new"):
                await place.post(text, wait=30)
            model = place.gate()
            hanging = asyncio.ensure_future(place.post("poison", id="one", wait=30))
            await model.begun.wait()
            code = await asyncio.to_thread(run, tmp_path / "ours", "clear", "web:ada", *options)
            told = (await hanging).json()
            archived = list((tmp_path / "ours" / "sessions" / "archive").rglob("*.jsonl"))
            model.begun.clear()
            following = asyncio.ensure_future(place.post("next", wait=30))
            async with asyncio.timeout(30):
                # The new turn begins though the old one was never answered.
                await model.begun.wait()
            model.let.set()
            answer = (await following).json()

    assert code == 0
    assert told["kind"] == "notice"
    assert answer["reply"] == "got next"
    assert model.asked == ["poison", "next"]
    assert len(archived) == (0 if options else 1)


async def test_clear_wakes_a_turn_that_waits_for_its_next_try(tmp_path: Path) -> None:
    """A turn whose model is away ends with its conversation, though its next try is far away."""
    async with open_place(tmp_path) as place:
        with DaemonRegistry(tmp_path).entry(url=place.server.url, role="all"):
            await place.post("old", wait=30)
            assert place.application.services is not None
            model = place.application.services.turns.model
            away = Away()
            place.application.services.turns.model = away
            waiting = asyncio.ensure_future(place.post("poison", id="one", wait=30))
            await away.asked.wait()
            code = await asyncio.to_thread(run, tmp_path, "clear", "web:ada")
            told = (await waiting).json()
            place.application.services.turns.model = model
            answer = (await place.post("next", wait=30)).json()

    assert code == 0
    assert told["kind"] == "notice"
    assert answer["reply"] == "echo: next"


class Away:
    """A model that says when it may be asked again: long after this test."""

    name = "away"
    plain = True

    def __init__(self) -> None:
        self.asked = asyncio.Event()

    async def ask(self, prompt: Prompt, on_delta: OnDelta | None = None) -> Answer:
        self.asked.set()
        raise ModelAway("resting", cause="down", after_s=60.0)


@pytest.mark.parametrize(("lines", "more"), [(3, ""), (10, "; and 7 more"), (50, "; and 47 more")])
def test_verify_of_a_file_full_of_garbage(
    lines: int, more: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """The table and doctor name three damaged lines and how many more there are, the document all it kept."""
    [_] = asyncio.run(fill(tmp_path, ["hello"]))
    with (tmp_path / "sessions" / "telegram_1.jsonl").open("a") as file:
        file.writelines(f"garbage {number}\n" for number in range(lines))

    assert run(tmp_path, "verify") == 1
    table = capsys.readouterr().out
    assert main(["doctor", "--workspace", str(tmp_path)]) in (0, 1)
    doctor = capsys.readouterr().out
    assert run(tmp_path, "verify", "--json") == 1
    [row] = json.loads(capsys.readouterr().out)

    assert row["problem"].count("line ") == min(lines, 20)
    assert ("30 more damaged lines" in row["problem"]) == (lines == 50)
    for shown in (table, doctor):
        assert shown.count(": half a record") == 3
        assert f"{more}  " in shown or f"{more}\n" in shown
        assert ("more" in shown) == bool(more)
