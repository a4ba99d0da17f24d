"""What a turn asks for gives way to the turns that follow at once, but not for ever."""

from __future__ import annotations

from pathlib import Path

from session.background.due import LATEST_S
from tests.session.memory_place import ADA, BOB, open_workspace, talk

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
