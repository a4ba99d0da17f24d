"""A file that does not get through where a repeat is safe: its chat goes on all the same."""

from __future__ import annotations

from pathlib import Path

import pytest

from channels.base import Piece
from channels.errors import SendUnknown
from channels.message import Attachment, Outbound
from channels.testing import FakeChannel
from tests.gateway.delivery_place import Place, reply, until_empty
from tests.support.clock import Clock

NAMED = "[plan: this file could not be sent]"
CUT = SendUnknown("no answer in time")


class SlowChannel(FakeChannel):
    """Takes its time for every file, and is cut off then."""

    clock: Clock

    async def send(self, piece: Piece) -> str:
        if isinstance(piece.content, Path):
            self.clock.forward(240)
            self.platform.fail(CUT)
        return await super().send(piece)


@pytest.fixture
def place(tmp_path: Path) -> Place:
    (tmp_path / "plan").write_text("step 1")
    made = Place(tmp_path, safe_to_repeat=True)
    made.platform.remembers = True
    return made


def with_file() -> Outbound:
    return reply(1, "", files=[Attachment(name="plan", ref="plan")])


async def test_a_file_whose_outcome_stays_unknown_is_named_in_its_place(place: Place) -> None:
    """It is tried again for ten minutes; then a line says that it is missing, and the next letter is sent."""
    place.platform.fail(*[CUT] * 44)
    async with place.open() as mailbox:
        await place.put(mailbox, with_file(), reply(2, "next"))
        await until_empty(mailbox)

    assert place.platform.texts() == [NAMED, "next"]
    assert 600 <= sum(place.naps.taken) < 620


async def test_uploads_that_are_cut_off_count_with_their_time(tmp_path: Path, place: Place) -> None:
    """Three of four minutes each are enough."""
    channel = SlowChannel(place.platform, safe_to_repeat=True)
    channel.clock = Clock()
    place.channel, place.now = channel, channel.clock.monotonic
    async with place.open() as mailbox:
        await place.put(mailbox, with_file(), reply(2, "next"))
        await until_empty(mailbox)

    assert place.platform.texts() == [NAMED, "next"]
    assert channel.clock.monotonic() == 3 * 240


async def test_a_file_that_is_there_after_all_is_not_named_as_missing(place: Place) -> None:
    """What would stand in its place has its nonce, by which the platform gives the file back."""
    for _ in range(44):
        place.platform.fail("unknown")
    async with place.open() as mailbox:
        await place.put(mailbox, with_file(), reply(2, "next"))
        await until_empty(mailbox)

    assert place.platform.texts() == ["plan", "next"]


async def test_an_outage_is_not_counted(place: Place) -> None:
    """While the platform is away, nothing is in doubt: the file is sent when it is back."""
    for _ in range(100):
        place.platform.fail("down")
    async with place.open() as mailbox:
        await place.put(mailbox, with_file())
        await until_empty(mailbox)

    assert place.platform.texts() == ["plan"]
