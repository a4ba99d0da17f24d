"""A letter delivered again while its first delivery ends: both are acknowledged, it is answered once."""

from __future__ import annotations

from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import pytest

from gateway.errors import LetterLost
from gateway.queue.embedded.buffer import EmbeddedLetter
from gateway.queue.embedded.mailbox import EmbeddedMailbox
from gateway.queue.mailbox import INBOUND, Letter, ParkedAs
from gateway.queue.rabbitmq.broker import RabbitMailbox
from session.errors import ModelRefused
from tests.gateway.worker_rig import ADA, rig
from tests.support.broker import Broker
from tests.support.guarantee import guarantee
from tests.support.until import until


def come_before(letter: Letter) -> Letter:
    """Have a letter look as if it had been delivered before."""
    assert isinstance(letter, EmbeddedLetter)
    letter.suspect = True
    return letter


class Parking(EmbeddedMailbox):
    """Does something more before whoever parked a letter goes on."""

    def __init__(self, state: Path, then: Callable[[Letter], Awaitable[None]]) -> None:
        super().__init__(state)
        self._then = then

    async def park(self, letter: Letter, listed: ParkedAs, **how: Any) -> None:
        await super().park(letter, listed, **how)
        await self._then(letter)


async def test_a_letter_that_is_put_back_at_once_is_answered(tmp_path: Path) -> None:
    """Its first delivery still stands in the lane: the new one is a letter of its own."""

    async def put_back(_parked: Letter) -> None:
        entry = r.worker.lanes.begun(ADA)
        assert entry is not None
        await r.put_back("m1")
        await until(lambda: bool(entry.copies))

    parking = Parking(tmp_path / "state", put_back)
    async with rig(tmp_path, ModelRefused("no"), "fine", mailbox=parking) as r:
        await r.put("hello", "m1")

        assert await r.ids(2) == ["m1#notice.refused", "m1#reply"]
        await r.settled()


class LosesParking(EmbeddedMailbox):
    """Loses each letter that is parked, whose next delivery another daemon lets go of.

    ``again`` says whether what is put back comes to this one as a letter that was delivered before.
    """

    def __init__(self, state: Path, *, again: bool) -> None:
        super().__init__(state)
        self._again = again
        self._lost: set[str] = set()

    @asynccontextmanager
    async def take(self, box: str) -> AsyncIterator[AsyncIterator[Letter]]:
        async with super().take(box) as letters:
            yield self._marked(letters) if box == INBOUND else letters

    async def _marked(self, letters: AsyncIterator[Letter]) -> AsyncIterator[Letter]:
        async for letter in letters:
            yield come_before(letter) if self._again and letter.id in self._lost else letter

    async def park(self, letter: Letter, listed: ParkedAs, **how: Any) -> None:
        await super().park(letter, listed, **how)
        assert isinstance(letter, EmbeddedLetter)
        letter.given_back = True
        self._lost.add(letter.id)
        raise LetterLost("it is another daemon's by now")


@guarantee(
    "loss", "A parked message that an operator retries is answered, even if another process parked it."
)
@pytest.mark.parametrize("again", [False, True], ids=["fresh", "delivered before"])
async def test_a_letter_put_back_is_not_taken_for_the_one_that_another_daemon_let_go_of(
    tmp_path: Path, again: bool
) -> None:
    """Whether it is parked is what the journal says by now, and not what this daemon remembers."""
    mailbox = LosesParking(tmp_path / "state", again=again)
    async with rig(tmp_path, ModelRefused("no"), "fine", mailbox=mailbox) as r:
        await r.put("hello", "m1")
        assert await r.ids(1) == ["m1#notice.refused"]
        await r.settled()
        await r.put_back("m1")

        assert await r.texts(1) == ["fine"]
        await r.settled()


@guarantee(
    "once", "A message that is published several times under one id is asked once, and every copy is removed."
)
async def test_each_letter_under_one_id_leaves_the_queue(
    tmp_path: Path, broker: Broker, broker_name: str
) -> None:
    """Other programs may publish a message several times, before its turn or in it: it is asked once."""
    mailbox = RabbitMailbox(broker.url, name=broker_name, partitions=1)
    async with rig(tmp_path, "one", "two", "three", mailbox=mailbox) as r:
        await r.begin("hello", "m1")
        for message_id in ("m1", "m2", "m2", "m1", "m2", "m3"):
            await r.put(message_id, message_id)
        await r.until_in_lane(3)
        r.model.release.set()

        await r.settled()
    assert [prompt.messages[-1]["content"] for prompt in r.model.prompts] == ["hello", "m2", "m3"]


@guarantee(
    "once", "A message that is published several times under one id is asked once, and every copy is removed."
)
async def test_each_letter_under_one_id_leaves_the_queue_where_it_is_refused(
    tmp_path: Path, broker: Broker, broker_name: str
) -> None:
    mailbox = RabbitMailbox(broker.url, name=broker_name, partitions=1)
    async with rig(tmp_path, "one", "two", mailbox=mailbox, flood_per_chat=1) as r:
        await r.begin("hello", "m1")
        for message_id in ("m2", "m3", "m4", "m4", "m5", "m3", "m4"):
            await r.put(message_id, message_id)
        await r.until_waiting(2)
        r.model.release.set()

        await r.settled()
    assert len(r.model.prompts) == 2
