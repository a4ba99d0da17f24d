"""Whose files and facts a subagent has: those of the conversation that started it, by its record alone."""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from datetime import UTC
from pathlib import Path

from session.context.audience import told
from session.context.request import Request
from session.context.scopes import Scope, Scopes
from session.memory.circles import PARENT, Circles, learn
from session.store.store import Store
from session.subagents.records import Call, Subagent, SubagentFiles
from session.transcript.key import SessionKey
from session.transcript.line import make_line

ADA, BOB, GROUP = "telegram:1", "telegram:2", "telegram:-5"
PEOPLE = {"ada": (ADA, "cli:direct"), "bob": (BOB,)}
AT = "2026-01-31T09:00:00+00:00"


class Place:
    """A workspace with two people, and the store of their subagents."""

    def __init__(self, folder: Path) -> None:
        self.store = Store(folder, zone=UTC)
        self.files = SubagentFiles(folder / "state")
        self.own = Store(self.files.home, zone=UTC)
        self.circles = Circles(Scopes(folder, kind="chat", people=PEOPLE), store=self.store)

    async def started(self, key: str, **origin: object) -> Subagent:
        """Have a conversation with a message start a subagent."""
        group = key == GROUP
        async with self.store.open(SessionKey(key)) as session:
            await learn(session, told(key, "telegram:9:1", group=group))
            line = make_line("user", "hi", AT, message_id="1", group=group or None)
            await session.append([line, make_line("assistant", "hello", AT, message_id="1", final=True)])
            call = Call(key, session.session_id, "1", "c1")
        return self.files.begin(call, task="look", label="look", origin={"several": group, **origin})

    async def scope(self, key: str, parent: str) -> Scope:
        """Return the scope of a subagent's conversation that names this parent."""
        async with self.own.open(SessionKey(key)) as session:
            await session.remember({PARENT: parent})
            return await self.circles.of(session, Request("s1", session.key, "look"))


@asynccontextmanager
async def place(folder: Path) -> AsyncIterator[Place]:
    here = Place(folder)
    try:
        yield here
    finally:
        await here.own.aclose()
        await here.store.aclose()


async def test_it_is_its_parents(tmp_path: Path) -> None:
    async with place(tmp_path) as here:
        ada, group = await here.started(ADA), await here.started(GROUP)

        scope = await here.scope(ada.key, ADA)
        assert (scope.name, scope.group) == ("people/ada", False)
        scope = await here.scope(group.key, GROUP)
        assert (scope.name, scope.group) == ("chats/telegram_-5", True)


async def test_a_parent_that_never_started_it_lends_nothing(tmp_path: Path) -> None:
    """Whatever its conversation says: it then has an empty scope of its own."""
    async with place(tmp_path) as here:
        ada = await here.started(ADA)
        await here.started(BOB)

        for parent in (BOB, "", "sub:x"):
            scope = await here.scope(ada.key, parent)
            assert (scope.name, scope.group) == (f"chats/{ada.key.replace(':', '_')}", True)


async def test_one_whose_result_another_chat_reads_sees_what_both_may(tmp_path: Path) -> None:
    async with place(tmp_path) as here:
        await here.started(BOB)
        ada = await here.started(ADA, answer_to=BOB)

        assert (await here.scope(ada.key, ADA)).name == "chats/telegram_1"


async def test_over_it_lends_nothing_more_than_its_parent_has(tmp_path: Path) -> None:
    """What is left on record of it names no chat that would read its result: it counts as read by several."""
    async with place(tmp_path) as here:
        ada = await here.started(ADA)
        here.files.told(ada)

        assert (await here.scope(ada.key, ADA)).group
