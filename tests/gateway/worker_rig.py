"""A worker on a real queue and a real store, with a scripted model and a clock that the test moves."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from channels.message import Inbound, Outbound, read_outbound
from gateway.dispatch.events import Events
from gateway.dispatch.lanes import Lane
from gateway.dispatch.routing import AgentSet
from gateway.dispatch.worker import DispatchRules, Worker
from gateway.inbound.control import Control
from gateway.inbound.pipeline import Intake
from gateway.queue.embedded.mailbox import EmbeddedMailbox
from gateway.queue.mailbox import INBOUND, Mailbox, Parked, outbound
from session.compaction.compactions import Compactions
from session.errors import ModelAway
from session.store.store import Session, Store
from session.tools import Toolbox
from session.transcript.key import SessionKey
from session.turn.commands import Commands
from session.turn.turn import Request, TurnContext, TurnLimits, Turns
from tests.contracts.models import Script
from tests.support.until import until

WITHIN_S = 60.0
ADA = SessionKey("foreign:ada")
AWAY = ModelAway("503", cause="unreachable", after_s=0.01)


@dataclass(frozen=True, slots=True)
class Agent:
    """The agent that answers (``Answers``)."""

    turns: Turns
    commands: Commands
    subagent_turns: Turns
    description: str = ""


class Clock:
    """Time that the test moves."""

    def __init__(self) -> None:
        self.now = datetime(2027, 1, 1, tzinfo=UTC)

    def __call__(self) -> datetime:
        return self.now


class Rig:
    """The worker, what it works on, and what it said.

    ``more`` is what else the worker is given.
    """

    def __init__(
        self, folder: Path, model: Script, rules: DispatchRules, *, mailbox: Mailbox | None = None
    ) -> None:
        self.folder = folder
        self.model = model
        self.rules = rules
        self.clock = Clock()
        self.mailbox: Mailbox = mailbox if mailbox is not None else EmbeddedMailbox(folder / "state")
        self.store = Store(folder, zone=UTC, clock=self.clock)
        self.intake = Intake(self.mailbox)
        self.worker: Worker
        self.events: Events
        self.limits = TurnLimits(max_tool_rounds=1)
        self.compactions: Compactions | None = None
        self.more: dict[str, Any] = {}
        self._replies: asyncio.Queue[Outbound] = asyncio.Queue()

    @asynccontextmanager
    async def open(self) -> AsyncIterator[Rig]:
        """Serve the queue and take letters; what runs when the context is left may end first."""
        async with asyncio.TaskGroup() as group:
            tasks = [group.create_task(self.mailbox.serve())]
            await self.mailbox.ready()
            events = self.events = Events(self.mailbox)
            self.worker = Worker(
                mailbox=self.mailbox,
                store=self.store,
                agents=self.agents(),
                events=events,
                rules=self.rules,
                group=group,
                clock=self.clock,
                **self.more,
            )
            control = Control(mailbox=self.mailbox, events=events, orders=self.worker.orders)
            tasks.append(group.create_task(control.run()))
            tasks.append(group.create_task(self._collect()))
            tasks.insert(0, group.create_task(self.worker.run()))
            await self.worker.attached.wait()
            try:
                yield self
                await self.worker.drain(5)
            finally:
                await self.worker.lanes.cancel()
                for task in tasks:
                    task.cancel()
        await self.store.aclose()

    def agents(self) -> AgentSet:
        """Build the agents that answer: one."""
        return AgentSet({"": Agent(self.turns(), self.chat_commands(), self.subagent_turns())})

    def subagent_turns(self) -> Turns:
        """Build the turns of subagents."""
        return self.turns()

    def chat_commands(self) -> Commands:
        """Build the commands that the worker runs."""
        return Commands(
            status=lambda key: ["fine"],
            memory=self.memory_text,
            ended=self.session_ended,
            left=self.session_left,
            compact=self.compactions,
            limits=self.more["quota"].left if "quota" in self.more else None,
        )

    def turns(self) -> Turns:
        """Build the turns that the worker runs."""
        return Turns(
            model=self.model,
            toolbox=Toolbox([]),
            limits=self.limits,
            zone=UTC,
            clock=self.clock,
            turn_context=self.turn_context,
            compactions=self.compactions,
        )

    async def turn_context(self, session: Session, request: Request) -> TurnContext:
        return TurnContext(parts=(), files=self.folder / "files", tools=())

    async def memory_text(self, session: Session, request: Request) -> str:
        return ""

    async def session_ended(self, session: Session) -> bool:
        return "previous_session" in session.metadata

    async def session_left(self, key: str, session_id: str) -> bool:
        return True

    async def _collect(self) -> None:
        async with self.mailbox.take(outbound("foreign")) as letters:
            async for letter in letters:
                self._replies.put_nowait(read_outbound(letter.body))
                await self.mailbox.settle(letter)

    # ── what is said to it ────────────────────────────────────────────────────────────────────────────────

    async def put(self, text: str, id: str, key: str = ADA, **fields: Any) -> None:
        await self.intake.accept(letter(text, id, key, **fields))

    def read_along(self) -> None:
        """Have somebody read all answers while they are written."""
        self.events.watch(None, 3600)

    async def begin(self, text: str, id: str, key: str = ADA, **fields: Any) -> None:
        """Put a message whose turn hangs in the model until ``model.release`` is set."""
        self.model.release.clear()
        await self.put(text, id, key, **fields)
        await asyncio.wait_for(self.model.held.wait(), WITHIN_S)

    async def line_up(self, *puts: tuple[str, str, dict[str, Any]] | tuple[str, str]) -> None:
        """Begin the turn of the first message, put the others behind it, then let it end.

        Each is a text, an id, and further fields.
        """
        await self.begin(*puts[0][:2], **dict(*puts[0][2:]))
        for each in puts[1:]:
            await self.put(*each[:2], **dict(*each[2:]))
        await self.until_in_lane(len(puts))
        self.model.release.set()

    async def put_edited(self, text: str, *edits: str, **fields: Any) -> None:
        """Put a message that waits behind another, and the edits of it; then let both be answered."""
        edit = {"platform_id": "77", "kind": "edit", **fields}
        await self.line_up(
            ("first", "m1", {"platform_id": "76", **fields}),
            (text, "m2", {"platform_id": "77", **fields}),
            *((each, f"e{number}", edit) for number, each in enumerate(edits, 1)),
        )

    # ── what comes of it ──────────────────────────────────────────────────────────────────────────────────

    async def replies(self, count: int) -> list[Outbound]:
        async with asyncio.timeout(WITHIN_S):
            return [await self._replies.get() for _ in range(count)]

    async def texts(self, count: int) -> list[str]:
        return [reply.text for reply in await self.replies(count)]

    async def say(self, text: str, id: str, key: str = ADA, **fields: Any) -> str:
        """Put a message and wait for one answer; return its text."""
        await self.put(text, id, key, **fields)
        return (await self.texts(1))[0]

    async def ids(self, count: int) -> list[str]:
        return [reply.id for reply in await self.replies(count)]

    def asked(self, number: int = -1) -> list[Any]:
        """Return the contents of the messages in a request to the model."""
        return [message["content"] for message in self.model.prompts[number].messages]

    @property
    def unread(self) -> int:
        """How many replies came that the test has not looked at."""
        return self._replies.qsize()

    async def lines(self, key: str = ADA) -> list[dict[str, Any]]:
        return (await self.store.look(SessionKey(key))).lines()

    async def parked(self, count: int = 1) -> list[Parked]:
        """Wait until that many letters are parked; return them."""
        found: list[Parked] = []

        async def there() -> bool:
            found[:] = await self.mailbox.parked()
            return len(found) >= count

        await until(there)
        return found

    async def until_paused(self, key: str = ADA) -> Lane:
        """Wait until the first message of a lane waits for its next try; return the lane."""

        def paused() -> Lane | None:
            lane = self.worker.lanes.get(key)
            return lane if lane is not None and lane.nudge is not None else None

        lane: Lane = await until(paused)
        return lane

    async def go_on(self, key: str = ADA) -> None:
        """Have the first message of a lane, which waits, tried again at once."""
        nudge = (await self.until_paused(key)).nudge
        assert nudge is not None
        nudge.set()

    async def put_back(self, id: str) -> None:
        """Have a parked letter come again, as an operator does."""
        async with self.store.open(ADA) as session:
            await session.journal.unpark(id)
        assert await self.mailbox.replay(id) is not None

    async def waiting(self) -> int:
        """How many letters are in the inbound box, running ones among them."""
        return (await self.mailbox.depths())[INBOUND].count

    async def until_waiting(self, count: int, *, within_s: float = WITHIN_S) -> None:
        async def there() -> bool:
            return await self.waiting() == count

        await until(there, within_s=within_s)

    async def until_in_lane(self, count: int, key: str = ADA) -> None:
        """Wait until the lane of ``key`` holds that many letters; 0: until it has ended."""

        def there() -> bool:
            lane = self.worker.lanes.get(key)
            return (len(lane.entries) if lane is not None else 0) == count

        await until(there)

    async def settled(self) -> None:
        """Wait until every letter has ended, each gone from its box and its lane."""
        await self.until_waiting(0)
        await until(lambda: not list(self.worker.lanes))


def letter(text: str, id: str, key: str = ADA, **fields: Any) -> Inbound:
    channel, _, chat_id = key.partition(":")
    return Inbound(v=1, id=id, key=key, channel=channel, chat_id=chat_id, text=text, **fields)


@asynccontextmanager
async def rig(folder: Path, *steps: Any, mailbox: Mailbox | None = None, **rules: Any) -> AsyncIterator[Rig]:
    built = Rig(folder, Script(steps), DispatchRules(**rules), mailbox=mailbox)
    async with built.open():
        yield built
