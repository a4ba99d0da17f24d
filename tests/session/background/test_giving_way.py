"""What a turn asks for gives way to the turns that follow at once, but not for ever."""

from __future__ import annotations

import asyncio
from collections.abc import Coroutine
from datetime import datetime
from pathlib import Path
from typing import Any

from session.background.due import LATEST_S
from tests.session.memory_place import ADA, BOB, Clock, open_workspace, talk

QUIET_S = 0.5


async def begins_after(folder: Path, first_s: float, second_s: float, *, quiet_s: float) -> None:
    """See that a consolidation begins when a turn of another chat ended ``second_s`` ago, and not before."""
    async with open_workspace(folder, run=True, quiet_s=quiet_s) as workspace:
        await workspace.turn(ADA, talk(10))
        workspace.clock.advance(first_s)
        await workspace.turn(BOB, talk(2))
        workspace.clock.advance(second_s - 0.1)
        await workspace.jobs.settled()
        assert workspace.model.seen == []

        workspace.clock.advance(0.1)
        await workspace.model.asked(1)
        await workspace.jobs.settled()

        assert await workspace.pointer(ADA) == 5


async def test_it_begins_in_a_quiet_moment(tmp_path: Path) -> None:
    """A turn that ends meanwhile, of whichever chat, puts it off again."""
    await begins_after(tmp_path, QUIET_S - 0.1, QUIET_S, quiet_s=QUIET_S)


async def test_where_chats_never_rest_it_begins_all_the_same(tmp_path: Path) -> None:
    """Turns that end all the time hold it up for five seconds in all."""
    await begins_after(tmp_path, LATEST_S / 2, LATEST_S / 2, quiet_s=LATEST_S - 1)


async def test_what_a_person_ended_begins_at_once(tmp_path: Path) -> None:
    """The next conversation may ask for what was said in the one before."""
    async with open_workspace(tmp_path, run=True, quiet_s=QUIET_S) as workspace:
        await workspace.turn(ADA, talk(4))
        await workspace.new(ADA)
        await workspace.model.asked(1)
        await workspace.jobs.settled()

        assert len(workspace.model.seen) == 1


class Hasty(Clock):
    """Wakes who sleeps a moment too early, as loops may, and goes on with each look at it."""

    def __call__(self) -> datetime:
        now = self.now
        self.forward(0.002)
        return now

    def sleep(self, seconds: float) -> Coroutine[Any, Any, None]:
        return self._short(seconds) if seconds < LATEST_S else super().sleep(seconds)

    async def _short(self, seconds: float) -> None:
        await asyncio.sleep(0)
        self.forward(max(0.0, seconds - 0.003))


async def test_what_comes_due_while_it_is_looked_for_begins(tmp_path: Path) -> None:
    """A moment that passes between two looks at the clock is nobody's: no later one would begin the job."""
    async with open_workspace(tmp_path, run=True, clock=Hasty(), quiet_s=QUIET_S) as workspace:
        await workspace.turn(ADA, talk(10))
        await workspace.model.asked(1)
        await workspace.jobs.settled()

        assert await workspace.pointer(ADA) == 5
