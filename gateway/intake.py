"""The first hand-over: an accepted message is durable in the inbound box before its source lets go of it."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from typing import TypeVar

import orjson
from ulid import ULID

from channels.message import Inbound
from gateway.errors import MailboxDown
from gateway.mailbox import INBOUND, Mailbox, Post
from gateway.policy import back_off_s
from session import commands
from session.key import slot_of

T = TypeVar("T")


async def until_durable(
    put: Callable[[], Awaitable[T]],
    *,
    retried: tuple[type[Exception], ...] = (MailboxDown,),
    told: Callable[[Exception, int], None] | None = None,
    pause: Callable[[float], Awaitable[None]] = asyncio.sleep,
) -> T:
    """Do ``put`` until it comes to its end, however long the queue is away; return what it returns.

    Args:
        put: the hand-over; doing it twice does no harm.
        retried: what is tried again; everything else is raised.
        told: hears of each failure, within its ``except``, with the number of tries so far.
        pause: waits between two tries, for 1, 2, 4 … 60 seconds.
    """
    tries = 0
    while True:
        try:
            return await put()
        except retried as error:
            tries += 1
            if told is not None:
                told(error, tries)
        await pause(back_off_s(tries))


class Intake:
    """Puts what adapters, HTTP and the terminal accept into the inbound box."""

    def __init__(self, mailbox: Mailbox) -> None:
        self._mailbox = mailbox

    async def accept(self, inbound: Inbound) -> None:
        """Return once the message is durable; a ``/stop`` is also told out of line.

        Raises:
            MailboxDown: not confirmed; accept the same message again.
        """
        await self._mailbox.put(Post(INBOUND, inbound.key, inbound.id, inbound.to_bytes()))
        command = None if inbound.kind == "edit" else commands.parse(inbound.text)
        if command is not None and command.name == "stop":
            await self.stop(inbound.key, inbound.id)

    async def stop(self, key: str, message_id: str = "") -> None:
        """Ask whichever daemon runs a turn of ``key`` to stop it."""
        body = {"v": 1, "id": message_id or f"stop:{ULID()}", "do": "stop", "key": key}
        await self._mailbox.tell("control", slot_of(key), orjson.dumps(body))
