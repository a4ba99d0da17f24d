"""Two workers on one workspace and one queue: chats are answered by the one, subagents work in the other."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

from gateway.queue.embedded.mailbox import EmbeddedMailbox
from gateway.queue.mailbox import INBOUND, Letter
from gateway.turns.letter_rules import LetterRules
from session.transcript.key import is_subagent
from tests.gateway.subagents_rig import Held, SubagentRig
from tests.gateway.waits import until
from tests.support.guarantee import guarantee

pytestmark = guarantee(
    "once", "A chat hears of the end of each subagent exactly once, across processes and crashes."
)


class Shared(EmbeddedMailbox):
    """Gives the letters of subagents to one taker, and all others to the other, as partitions would."""

    def __init__(self, folder: Path) -> None:
        super().__init__(folder)
        self.takers: list[asyncio.Queue[Letter]] = []
        self._sorting: asyncio.Task[None] | None = None
        self._served = False

    async def serve(self) -> None:
        if self._served:
            await asyncio.Event().wait()
        self._served = True
        await super().serve()

    @asynccontextmanager
    async def _taking(self, box: str) -> AsyncIterator[AsyncIterator[Letter]]:
        if box != INBOUND:
            async with super().take(box) as letters:
                yield letters
            return
        queue: asyncio.Queue[Letter] = asyncio.Queue()
        self.takers.append(queue)
        if self._sorting is None:
            self._sorting = asyncio.create_task(self._sort())
        try:
            yield _of(queue)
        finally:
            self._sorting.cancel()

    def take(self, box: str) -> Any:
        return self._taking(box)

    async def _sort(self) -> None:
        async with super().take(INBOUND) as letters:
            async for letter in letters:
                await until(lambda: len(self.takers) == 2)
                self.takers[b'"key":"sub:' in letter.body].put_nowait(letter)


async def _of(queue: asyncio.Queue[Letter]) -> AsyncIterator[Letter]:
    while True:
        yield await queue.get()


class Second(SubagentRig):
    """Another daemon of the workspace; the first one takes the replies."""

    async def _collect(self) -> None:
        await asyncio.Event().wait()


@asynccontextmanager
async def two(folder: Path, *tasks: str) -> AsyncIterator[tuple[SubagentRig, SubagentRig, Sequence[Held]]]:
    models = (Held(*tasks), Held(*tasks))
    mailbox = Shared(folder / "state")
    first = SubagentRig(folder, models[0], LetterRules(), mailbox=mailbox)
    second = Second(folder, models[1], LetterRules(), mailbox=mailbox)
    async with first.open(), second.open():
        yield first, second, models
    for rig in (first, second):
        await rig.own_store.aclose()


async def test_a_subagent_works_in_another_daemon_and_its_result_comes_back(tmp_path: Path) -> None:
    async with two(tmp_path, "a", "b") as (first, second, (here, there)):
        await first.put("go", "m1")
        assert await first.texts(1) == ["begun"]
        await until(lambda: there.working == {"a", "b"})
        assert here.working == set()
        assert {is_subagent(lane.key) for lane in second.worker.lanes} == {True}
        there.go.set()

        assert await first.texts(2) == ["heard", "heard"]
        await until(lambda: [each.state for each in first.on_record()] == ["told"] * 2)
        await until(lambda: first.left() == [])


@guarantee("sessions", "`/stop` and the end of a conversation stop its subagents in every process.")
async def test_a_stop_ends_what_works_in_another_daemon(tmp_path: Path) -> None:
    async with two(tmp_path, "a", "b") as (first, second, (_, there)):
        await first.put("go", "m1")
        await first.texts(1)
        await until(lambda: there.working == {"a", "b"})
        await first.put("/stop", "m2")

        assert await first.texts(1) == ["Stopped, including its subagents."]
        await until(lambda: not list(second.worker.lanes))
        await until(lambda: first.left() == [])
        assert [each.state for each in first.on_record()] == ["ended"] * 2
        assert (await first.waiting(), first.unread) == (0, 0)
