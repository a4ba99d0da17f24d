"""A search over all chats finds the memory that each sees, wherever it lies; a scope is searched once."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from gateway.service import search
from gateway.service.search import Search
from session.context.scopes import ANSWERS
from session.memory.scope_resolver import remember_chat_kind
from session.transcript.key import SessionKey
from session.transcript.line import make_line
from tests.gateway.http_place import Place, open_place
from tests.session.recall.place import fact
from tests.support.place import write
from tests.support.until import until

# Behind all that is said on the page.
AT = "2099-03-01T10:00:00.000001+00:00"
WORKSPACE: dict[str, Any] = {"memory": {"scope": "workspace"}}
PEOPLE: dict[str, Any] = {"people": {"ada": ["web:ada", "web:phone"]}}
AGENTS: dict[str, Any] = {"agents": {"coder": {}}, "bindings": [{"agent": "coder", "chat": "web:phone"}]}
NOTES = {
    "MEMORY.md": ("memory", "The boat is a Zebrafinch.\n"),
    "HISTORY.md": ("history", "[2026-03-01 10:00] They spoke of the Zebrafinch.\n"),
    "facts.jsonl": ("fact", fact("The Zebrafinch is a boat.")),
}


def note(workspace: Path, folder: str, name: str = "MEMORY.md", text: str = "") -> None:
    path = workspace / folder / name
    write(path, text or NOTES[name][1])


async def say(place: Place, key: str, text: str, *, group: bool = False) -> None:
    """Have something stored that was said in a chat of a platform."""
    async with place.services.store.open(SessionKey(key)) as session:
        await remember_chat_kind(session, "group" if group else "direct")
        await session.append([make_line("user", text, AT, message_id="m1")])


async def hits(place: Place, q: str = "zebrafinch") -> list[tuple[str, str]]:
    async def whole() -> dict[str, Any] | None:
        """One answer to all of it: on a busy machine the time of one request may be over before."""
        answer = (await place.http.get("/v1/search", params={"q": q})).json()
        return answer if answer["next"] is None and answer["all"] else None

    answer = await until(whole)
    assert answer["searched"] == answer["chats"]
    return [(hit["kind"], hit["key"]) for hit in answer["hits"]]


@pytest.mark.parametrize(
    ("tables", "folder"),
    [
        ({}, "memory/chats/web_phone"),
        (WORKSPACE, "memory"),
        (PEOPLE, "memory/people/ada"),
        (AGENTS, "agents/coder/memory/chats/web_phone"),
        (AGENTS | WORKSPACE, "agents/coder/memory"),
        (AGENTS | PEOPLE, "agents/coder/memory/people/ada"),
    ],
    ids=["chat", "workspace", "person", "agent", "workspace of an agent", "agent of a person"],
)
async def test_memory_is_found_where_its_scope_has_it(
    tmp_path: Path, tables: dict[str, Any], folder: str
) -> None:
    """Each kind of it once, under the chat of the scope that spoke last."""
    for name in NOTES:
        note(tmp_path, folder, name)
    async with open_place(tmp_path, **tables) as place:
        for chat in ("ada", "bob", "phone"):
            await place.post("hello", chat=chat, wait=30)

        assert sorted(await hits(place)) == sorted((kind, "web:phone") for kind, _ in NOTES.values())


async def test_a_chat_is_not_shown_with_what_it_does_not_see(tmp_path: Path) -> None:
    """A group has its own memory in a workspace that shares one, and a former agent's is not the chat's."""
    note(tmp_path, "memory")
    note(tmp_path, "memory/chats/telegram_-3", text="The group has a heron.\n")
    note(tmp_path, "memory/chats/web_phone", text="Nobody sees the egret.\n")
    note(tmp_path, "agents/coder/memory", text="The coder knows of the bittern.\n")
    async with open_place(tmp_path, **WORKSPACE, **AGENTS) as place:
        for chat in ("ada", "phone"):
            await place.post("hello", chat=chat, wait=30)
        await say(place, "telegram:-3", "hello", group=True)
        await say(place, "telegram:4", "hello")

        assert await hits(place) == [("memory", "telegram:4")]
        assert await hits(place, "heron") == [("memory", "telegram:-3")]
        assert await hits(place, "bittern") == [("memory", "web:phone")]
        assert await hits(place, "egret") == []


async def test_a_chat_that_becomes_a_group_is_drawn_anew(tmp_path: Path) -> None:
    note(tmp_path, "memory")
    async with open_place(tmp_path, **WORKSPACE) as place:
        await place.post("hello", chat="ada", wait=30)
        await say(place, "telegram:4", "hello")
        before = [await hits(place), await hits(place)]
        await say(place, "telegram:4", "hello all", group=True)

        assert before == [[("memory", "telegram:4")]] * 2
        assert await hits(place) == [("memory", "web:ada")]


@pytest.mark.parametrize("tables", [{}, WORKSPACE], ids=["chat", "workspace"])
async def test_a_chat_whose_files_cannot_be_read_hides_no_other(
    tmp_path: Path, tables: dict[str, Any]
) -> None:
    """The answer says that it was not all."""
    for folder in ("web_ada", "telegram_-3"):
        note(tmp_path, f"memory/chats/{folder}")
    async with open_place(tmp_path, **tables) as place:
        await place.post("hello", chat="ada", wait=30)
    async with open_place(tmp_path, **tables) as place:
        await say(place, "telegram:-3", "hello", group=True)
        ended = tmp_path / "sessions/archive/web_ada/20260101T000000Z-01KDTZZZZZZZZZZZZZZZZZZZZZ.jsonl"
        ended.mkdir(parents=True)
        answer = (await place.http.get("/v1/search", params={"q": "zebrafinch"})).json()
        ended.rmdir()

    assert [hit["key"] for hit in answer["hits"]] == ["telegram:-3"]
    assert (answer["all"], answer["next"]) == (False, None)


async def test_a_job_has_the_memory_of_the_chat_that_it_answers(tmp_path: Path) -> None:
    note(tmp_path, "memory/people/ada")
    async with open_place(tmp_path, **PEOPLE) as place:
        await place.post("hello", chat="bob", wait=30)
        async with place.services.store.open(SessionKey("cron:daily")) as session:
            await session.remember({ANSWERS: ["web:ada"]})
            await session.append([make_line("user", "hello", AT, message_id="m1")])

        assert await hits(place) == [("memory", "cron:daily")]


async def walk(place: Place, q: str) -> tuple[list[int], list[tuple[str, str]]]:
    """Search without time: the chats behind each step, and what all of them found."""
    steps, found, start = [], [], 0
    searching = Search(place.server.chats)
    while True:
        answer = await searching.search(q, limit=20, start=start, within_s=0)
        steps.append(answer["searched"])
        found += [(hit["kind"], hit["key"]) for hit in answer["hits"]]
        if answer["next"] is None:
            return steps, found
        start = answer["next"]


@pytest.mark.parametrize("sifted", [1, 250])
async def test_a_scope_is_searched_once_over_all_requests(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, sifted: int
) -> None:
    """Its chats are one step, however many they are, and nothing of them comes again."""
    monkeypatch.setattr(search, "SIFTED", sifted)
    note(tmp_path, "memory")
    async with open_place(tmp_path, **WORKSPACE) as place:
        for chat in ("ada", "bob", "eve"):
            await place.post(f"zebrafinch of {chat}", chat=chat, wait=30)
        for number in (1, 2):
            await say(place, f"telegram:-{number}", "zebrafinch of a group", group=True)
        await say(place, "telegram:4", "a zebrafinch")
        steps, found = await walk(place, "zebrafinch")
        none, nothing = await walk(place, "heron")

    chats = ["telegram:-1", "telegram:-2", "telegram:4"] + ["web:ada", "web:bob", "web:eve"] * 2
    assert sorted(found) == sorted([("memory", "telegram:4"), *(("message", key) for key in chats)])
    # The newest chat first, with the others of its scope.
    assert steps == [4, 5, 6]
    assert (none[-1], nothing) == (6, [])


@pytest.mark.parametrize("tables", [{}, WORKSPACE, PEOPLE], ids=["chat", "workspace", "person"])
async def test_what_a_chat_said_with_a_former_agent_is_found(tmp_path: Path, tables: dict[str, Any]) -> None:
    """Once, with what that agent kept of it, whoever else shares its memory or did so before."""
    async with open_place(tmp_path, agents=AGENTS["agents"], **tables) as place:
        for chat in ("ada", "phone", "bob"):
            await place.post("/agent coder", chat=chat, wait=30)
            await place.post(f"the egret of {chat}", chat=chat, wait=30)
        for chat in ("ada", "phone"):
            await place.post("/agent default", chat=chat, wait=30)
            await place.post("a heron", chat=chat, wait=30)
        folders = {"web:ada": "chats/web_ada", "web:phone": "chats/web_phone", "web:bob": "chats/web_bob"}
        if tables is WORKSPACE:
            folders = {"web:bob": "."}
        if tables is PEOPLE:
            folders = {"web:phone": "people/ada", "web:bob": "chats/web_bob"}
        for folder in folders.values():
            note(tmp_path, f"agents/coder/memory/{folder}")
        said = await hits(place, "egret")
        kept = await hits(place)
        steps, found = await walk(place, "egret")

    told = [("message", f"web:{chat}") for chat in ("ada", "bob", "phone")]
    assert sorted(said) == sorted(found) == sorted(told * 2)
    assert sorted(kept) == sorted(("memory", key) for key in folders)
    assert steps[-1] == 3
