"""Letters that come again while they are being sent: nothing is sent twice, nothing stays behind."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path

from gateway.queue.mailbox import Letter
from gateway.queue.rabbitmq.mailbox import RabbitMailbox
from tests.gateway.delivery_place import BOX, DEADLINE_S, Place, reply
from tests.gateway.on_rabbit import opened
from tests.support.broker import Broker

LONG = "a" * 40 + "b" * 40


class Watched:
    """A mailbox that tells how many letters came again."""

    def __init__(self, mailbox: RabbitMailbox) -> None:
        self._mailbox = mailbox
        self.again = 0
        self.changed = asyncio.Condition()

    def __getattr__(self, name: str) -> object:
        return getattr(self._mailbox, name)

    @asynccontextmanager
    async def take(self, box: str) -> AsyncIterator[AsyncIterator[Letter]]:
        async with self._mailbox.take(box) as letters:
            yield self._watch(letters)

    async def _watch(self, letters: AsyncIterator[Letter]) -> AsyncIterator[Letter]:
        async for letter in letters:
            yield letter
            async with self.changed:
                self.again += letter.suspect
                self.changed.notify_all()

    async def until_again(self, count: int) -> None:
        async with asyncio.timeout(DEADLINE_S), self.changed:
            await self.changed.wait_for(lambda: self.again >= count)


async def until_empty(mailbox: RabbitMailbox) -> None:
    async with asyncio.timeout(DEADLINE_S):
        while (depth := (await mailbox.depths()).get(BOX)) is None or depth.count:
            await asyncio.sleep(0.05)


async def test_letters_that_come_again_go_on_where_they_were(
    tmp_path: Path, broker: Broker, broker_name: str
) -> None:
    """The channel is opened anew twice while a send hangs: the same letters, once each, in order, gone."""
    place, held = Place(tmp_path), asyncio.Event()
    pieces = [text for number in ("", 1, 2) for text in place.channel_texts(f"{number}{LONG}")]
    async with opened(broker.url, broker_name, renew_after_s=0.5) as mailbox:
        watched = Watched(mailbox)
        place.platform.fail(held, chat_id="ada")
        await place.put(mailbox, reply(0, LONG))
        async with place.delivering(watched):  # type: ignore[arg-type]
            await place.platform.until(lambda platform: platform.hanging == 1)
            await place.put(mailbox, *(reply(number, f"{number}" + LONG) for number in (1, 2)))
            await place.put(mailbox, reply(3, "other", chat="bob"))
            await watched.until_again(6)
            held.set()
            # While a channel is opened anew its letters are counted nowhere: what was sent tells more.
            await place.platform.until(lambda it: len(it.texts("ada") + it.texts("bob")) > len(pieces))
            await until_empty(mailbox)

    assert place.platform.texts("ada") == pieces
    assert place.platform.texts("bob") == ["other"]
    assert place.delivery.parked == 0
