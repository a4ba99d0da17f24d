"""Letters whose delivery ends while they are worked on, at instants that a broker hits by chance."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path

import pytest

from channels.message import Outbound
from gateway.errors import LetterLost
from tests.gateway.delivery_place import BOX, DEADLINE_S, FreeLimiter, Place, reply
from tests.gateway.handed_letter import HandedLetter


class HandMailbox:
    """Hands over letters one by one as the test says; a settle may be held up, a lost letter fails it."""

    def __init__(self) -> None:
        self.settled: list[HandedLetter] = []
        self.settling = asyncio.Event()
        self.may_settle = asyncio.Event()
        self.may_settle.set()
        self._changed = asyncio.Condition()
        self._letters: asyncio.Queue[HandedLetter] = asyncio.Queue()

    def hand(self, out: Outbound, *, again: bool = False) -> HandedLetter:
        letter = HandedLetter(out.id, out.to_bytes(), again, BOX)
        self._letters.put_nowait(letter)
        return letter

    async def until_settled(self, *letters: HandedLetter) -> None:
        async with asyncio.timeout(DEADLINE_S), self._changed:
            await self._changed.wait_for(lambda: all(letter in self.settled for letter in letters))

    @asynccontextmanager
    async def take(self, box: str) -> AsyncIterator[AsyncIterator[HandedLetter]]:
        async def letters() -> AsyncIterator[HandedLetter]:
            while True:
                yield await self._letters.get()

        yield letters()

    async def settle(self, letter: HandedLetter) -> None:
        self.settling.set()
        await self.may_settle.wait()
        if letter.lost:
            raise LetterLost("it comes again")
        async with self._changed:
            self.settled.append(letter)
            self._changed.notify_all()


class SlowLimiter(FreeLimiter):
    """Lets nothing pass until the test says so."""

    def __init__(self) -> None:
        super().__init__()
        self.asked, self.free = asyncio.Event(), asyncio.Event()

    async def wait(self, chat_id: str, *, group: bool) -> None:
        self.asked.set()
        await self.free.wait()


@pytest.fixture
def place(tmp_path: Path) -> Place:
    return Place(tmp_path)


async def test_letters_lost_before_a_send_are_left_to_their_next_delivery(place: Place) -> None:
    """A lost letter is not begun, nor is any behind it: they come again, in order, and are sent once."""
    mailbox, limiter = HandMailbox(), SlowLimiter()
    place.limiter = limiter
    async with place.delivering(mailbox):  # type: ignore[arg-type]
        first = [mailbox.hand(reply(number, f"text {number}")) for number in (1, 2)]
        await limiter.asked.wait()
        for letter in first:
            letter.lost = True
        limiter.free.set()
        other = mailbox.hand(reply(1, "other", chat="bob"))
        await mailbox.until_settled(other)
        assert place.platform.texts() == []

        again = [mailbox.hand(reply(number, f"text {number}"), again=True) for number in (1, 2)]
        await mailbox.until_settled(*again)

    assert place.platform.texts() == ["text 1", "text 2"]


async def test_a_letter_that_comes_again_in_mid_send_is_the_one_to_settle(place: Place) -> None:
    """The new delivery takes the place of the old one: one send, and the new letter is gone."""
    mailbox, held = HandMailbox(), asyncio.Event()
    place.platform.fail(held)
    async with place.delivering(mailbox):  # type: ignore[arg-type]
        letter = mailbox.hand(reply(1, "text"))
        await place.platform.until(lambda platform: platform.hanging == 1)
        letter.lost = True
        again = mailbox.hand(reply(1, "text"), again=True)
        other = mailbox.hand(reply(1, "other", chat="bob"))
        await mailbox.until_settled(other)
        held.set()
        await mailbox.until_settled(again)

    assert place.platform.texts() == ["text"]
    assert letter not in mailbox.settled


@asynccontextmanager
async def lost_in_settling(place: Place) -> AsyncIterator[HandMailbox]:
    """Deliver a letter, and lose it while it is being settled."""
    mailbox = HandMailbox()
    mailbox.may_settle.clear()
    async with place.delivering(mailbox):  # type: ignore[arg-type]
        letter = mailbox.hand(reply(1, "text"))
        await mailbox.settling.wait()
        letter.lost = True
        yield mailbox


async def test_a_letter_that_comes_again_while_it_is_settled_is_settled(place: Place) -> None:
    """The old delivery cannot be let go of any more; the new one is, and nothing stays behind."""
    async with lost_in_settling(place) as mailbox:
        again = mailbox.hand(reply(1, "text"), again=True)
        for _ in range(5):
            await asyncio.sleep(0)
        mailbox.may_settle.set()
        await mailbox.until_settled(again)

    assert place.platform.texts() == ["text"]


async def test_a_letter_lost_after_its_last_chunk_is_only_settled(place: Place) -> None:
    """It comes again when all of it was accepted: nothing is sent."""
    async with lost_in_settling(place) as mailbox:
        mailbox.may_settle.set()
        other = mailbox.hand(reply(1, "other", chat="bob"))
        await mailbox.until_settled(other)
        again = mailbox.hand(reply(1, "text"), again=True)
        await mailbox.until_settled(again)

    assert place.platform.texts() == ["text"]


async def test_a_letter_put_twice_is_sent_once(place: Place) -> None:
    """A repeat that waits behind its first is settled when its turn comes."""
    mailbox, held = HandMailbox(), asyncio.Event()
    place.platform.fail(held)
    async with place.delivering(mailbox):  # type: ignore[arg-type]
        both = [mailbox.hand(reply(1, "text")) for _ in range(2)]
        await place.platform.until(lambda platform: platform.hanging == 1)
        held.set()
        await mailbox.until_settled(*both)

    assert place.platform.texts() == ["text"]
