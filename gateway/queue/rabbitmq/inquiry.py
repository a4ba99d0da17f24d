"""Asks a broker about itself: which version it is, and what time it has.

AMQP shows the broker's clock in one place: on a letter that it took out of a queue by itself (``x-death``).
So one is laid where nobody takes it and none may stay; what it was moved to is ours, and goes with us.
"""

from __future__ import annotations

import asyncio
from collections.abc import Mapping
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import Final

from aio_pika.abc import AbstractIncomingMessage

import durable
from gateway.errors import MailboxDown
from gateway.queue.rabbitmq.connection import AccessRefused, Link, Sending
from gateway.queue.rabbitmq.tls import NO_FILES, TlsFiles

ANSWERS_S: Final = 5.0
NO_RIGHT: Final = "this user may make no queue of its own, by which it is asked"
_HEARTBEAT_S: Final = 10


@dataclass(frozen=True, slots=True)
class BrokerTold:
    """What a broker said of itself.

    Args:
        version: as it writes it, such as ``3.13.7``; empty where it does not say.
        ahead_s: by how many seconds this machine's clock is ahead of its, to a second or so, below 0: behind;
            None: it could not be asked, and ``unasked`` says why.
        unasked: see there.
    """

    version: str
    ahead_s: float | None = None
    unasked: str = ""


async def ask(url: str, *, name: str, tls: TlsFiles = NO_FILES, timeout_s: float = ANSWERS_S) -> BrokerTold:
    """Ask over a connection of its own; nothing of it is left on the broker.

    ``name`` is the broker.name of the gateway, under which its users may make queues.

    Raises:
        MailboxDown: nobody answers, or the broker refuses.
    """
    title = f"{name} doctor"
    link = await Link.open(url, title=title, heartbeat_s=_HEARTBEAT_S, tls=tls, timeout_s=timeout_s)
    try:
        async with asyncio.timeout(timeout_s):
            return BrokerTold(link.version, await _ahead_s(link, f"{name}.clock.{durable.new_id()}"))
    except AccessRefused:
        return BrokerTold(link.version, unasked=NO_RIGHT)
    except TimeoutError:
        return BrokerTold(link.version, unasked=f"it did not answer within {timeout_s:g} s")
    except MailboxDown as error:
        return BrokerTold(link.version, unasked=str(error))
    finally:
        await link.close()


async def _ahead_s(link: Link, queue: str) -> float | None:
    channel = await link.channel(confirms=True)
    moved = f"{queue}.moved"
    await channel.declare_queue(moved, exclusive=True)
    to_moved = {"x-message-ttl": 0, "x-dead-letter-exchange": "", "x-dead-letter-routing-key": moved}
    await channel.declare_queue(queue, exclusive=True, arguments=to_moved)
    came: asyncio.Future[AbstractIncomingMessage] = asyncio.get_running_loop().create_future()

    async def take(message: AbstractIncomingMessage) -> None:
        came.set_result(message)

    await channel.consume(moved, take, no_ack=True)
    sent_s = durable.wall_s()
    await channel.publish(Sending("", queue, b"{}", transient=True))
    message = await came
    there_s = _moved_at(message.headers)
    # A broker writes whole seconds: the middle of the one it names, and of the time it took.
    return None if there_s is None else (sent_s + durable.wall_s()) / 2 - (there_s + 0.5)


def _moved_at(headers: Mapping[str, object]) -> float | None:
    deaths = headers.get("x-death")
    first = deaths[0] if isinstance(deaths, list) and deaths else None
    at = first.get("time") if isinstance(first, dict) else None
    if not isinstance(at, datetime):
        return None
    return (at if at.tzinfo else at.replace(tzinfo=UTC)).timestamp()
