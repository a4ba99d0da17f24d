"""``sessions search|close|resume|prune`` on the files of a workspace."""

from __future__ import annotations

import asyncio
import json
from datetime import UTC, datetime, timedelta
from pathlib import Path

import pytest

from gateway.app.daemons import DaemonRegistry
from session.errors import ModelAway
from session.models.model import Answer, OnDelta, Prompt
from session.store.store import Store
from session.transcript.key import SessionKey
from session.transcript.transcript import make_line
from tests.gateway.cli_place import Ran, listed
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


def run(workspace: Path, *argv: str) -> Ran:
    return Ran(workspace, "sessions", *argv)


def rows(workspace: Path) -> dict[str, bool]:
    return {row["id"]: row["active"] for row in listed(workspace)}


def test_search(tmp_path: Path) -> None:
    """All words in one message, whatever their case, over all sessions of this key alone, newest first."""
    old, new = asyncio.run(fill(tmp_path, ["Grüße aus KÖLN", "apples"], ["köln again, with grüße", "pears"]))
    asyncio.run(fill(tmp_path, ["grüße köln"], key="telegram:2"))

    found = json.loads(run(tmp_path, "search", KEY, "köln", "GRÜSSE", "--json").out)
    one = run(tmp_path, "search", KEY, "köln", "--limit", "1", "--json")
    assert [(hit["id"], hit["seq"], hit["active"]) for hit in found] == [(new, 1, True), (old, 1, False)]
    assert len(json.loads(one.out)) == 1
    assert "older matches" in one.err
    assert run(tmp_path, "search", KEY, "nothing", "--json").out == "[]\n"
    assert run(tmp_path, "search", KEY).code == 2
    assert run(tmp_path, "search", KEY, "x", "--limit", "0").code == 2


@pytest.mark.parametrize("args", [("close", "nope"), ("search", "nope", "x")])
def test_a_chat_that_is_unknown_is_an_error(args: tuple[str, ...], tmp_path: Path) -> None:
    """A misspelt key exited 0, as if something had been done. A chat without an open session is known."""
    asyncio.run(fill(tmp_path, ["a"]))

    ran = run(tmp_path, *args)
    assert (ran.code, ran.err) == (1, "error: there is no chat 'nope'\ntry: chat-gateway sessions list\n")
    closed = [run(tmp_path, "close", KEY) for _ in range(2)]
    assert [each.code for each in closed] == [0, 0]
    assert f"{KEY} has no open session" in closed[1].err


def test_show_names_the_ids_that_trace_takes(tmp_path: Path) -> None:
    asyncio.run(fill(tmp_path, ["telegram:9:1"]))

    assert [line.split(" ", 1)[1] for line in run(tmp_path, "show", KEY).out.splitlines()[-2:]] == [
        "user telegram:9:1: telegram:9:1",
        "assistant telegram:9:1: ok",
    ]


def test_close_and_resume(tmp_path: Path) -> None:
    """A closed key has no active session; an older one is opened again, one of another key never."""
    old, new = asyncio.run(fill(tmp_path, ["a"], ["b"]))
    [theirs, _] = asyncio.run(fill(tmp_path, ["c"], ["d"], key="telegram:2"))

    assert run(tmp_path, "resume", KEY, old).code == 0
    assert (rows(tmp_path)[old], rows(tmp_path)[new]) == (True, False)
    assert [run(tmp_path, "close", KEY).code for _ in range(2)] == [0, 0]
    assert (rows(tmp_path)[old], rows(tmp_path)[new]) == (False, False)
    for ulid in (theirs, "01KJMMA2G01YBHZZBBY3RWPAPM", "../x", old.lower()):
        refused = run(tmp_path, "resume", KEY, ulid)
        assert refused.code == 1
        assert [line.split(":")[0] for line in refused.err.splitlines()[-2:]] == ["error", "try"]
    assert rows(tmp_path)[theirs] is False


def test_prune(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A dry run says what would go and changes nothing; without retention_days nothing goes.

    The active session ended with its last message, and nothing opens with what was said in it.
    """
    first, second, third = asyncio.run(fill(tmp_path, ["a"], ["b"], ["c"], age_days=50))

    assert run(tmp_path, "prune", "--json").out == "[]\n"
    monkeypatch.setenv("CHAT_GATEWAY_SESSION__RETENTION_DAYS", "30")
    expected = [("archive", third), *(("delete", one) for one in sorted((first, second, third)))]
    for how in (["--dry-run"], []):
        assert len(rows(tmp_path)) == 3
        steps = [(row["do"], row["id"]) for row in json.loads(run(tmp_path, "prune", "--json", *how).out)]
        assert (steps[0], sorted(steps)) == (expected[0], expected)
    assert rows(tmp_path) == {}


def test_clearing_a_chat_of_a_person_leaves_what_the_others_share(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Its own files go; those of the person stay, and it says so."""
    monkeypatch.setenv("CHAT_GATEWAY_PEOPLE", json.dumps({"ada": [KEY, "cli:direct"]}))
    asyncio.run(fill(tmp_path, ["hello"]))
    for top in ("memory/people/ada", "files/people/ada", "memory/chats/telegram_1"):
        write(tmp_path / top / "MEMORY.md", "tea")

    cleared = run(tmp_path, "clear", KEY, "--everything")
    other = run(tmp_path, "clear", "telegram:2", "--everything")

    assert (cleared.code, other.code) == (0, 0)
    assert "kept: memory/people/ada and files/people/ada" in cleared.err
    assert (tmp_path / "memory/people/ada/MEMORY.md").exists()
    assert (tmp_path / "files/people/ada/MEMORY.md").exists()
    assert not (tmp_path / "memory/chats/telegram_1").exists()
    assert "people/ada" not in other.err


async def test_clear_wakes_a_turn_that_waits_for_its_next_try(tmp_path: Path) -> None:
    """A turn whose model is away ends with its conversation, though its next try is far away."""
    async with open_place(tmp_path) as place:
        with DaemonRegistry(tmp_path).entry(url=place.server.url, role="all"):
            await place.post("old", wait=30)
            model = place.services.turns.model
            away = Away()
            place.services.turns.model = away
            waiting = asyncio.ensure_future(place.post("poison", id="one", wait=30))
            await away.asked.wait()
            code = (await asyncio.to_thread(run, tmp_path, "clear", "web:ada")).code
            told = (await waiting).json()
            place.services.turns.model = model
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
def test_verify_of_a_file_full_of_garbage(lines: int, more: str, tmp_path: Path) -> None:
    """The table and doctor name three damaged lines and how many more there are, the document all it kept."""
    asyncio.run(fill(tmp_path, ["hello"]))
    with (tmp_path / "sessions" / "telegram_1.jsonl").open("a") as file:
        file.writelines(f"garbage {number}\n" for number in range(lines))

    table, doctor = run(tmp_path, "verify"), Ran(tmp_path, "doctor")
    [row] = json.loads(run(tmp_path, "verify", "--json").out)

    assert (table.code, doctor.code in (0, 1)) == (1, True)
    assert row["problem"].count("line ") == min(lines, 20)
    assert ("30 more damaged lines" in row["problem"]) == (lines == 50)
    for shown in (table.out, doctor.out):
        assert shown.count(": half a record") == 3
        assert f"{more}  " in shown or f"{more}\n" in shown
        assert ("more" in shown) == bool(more)
