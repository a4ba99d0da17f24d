"""Proof that the broker still knows a connection, without which no work on its letters begins.

A process that was frozen wakes with letters in its socket that the broker gave to another one long ago. They
do not tell how old they are, nor do the frames around them: the answer to a question asked since then does.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable, Sequence
from typing import Final

from gateway.queue.rabbitmq.connection import Link
from gateway.queue.rabbitmq.wire import LinkDown, NotFound

# The broker gives a silent client up two heartbeats after its last frame at the earliest.
LEASE: Final = 1.5
ASKS_EACH: Final = 0.25
# Goes on while the machine sleeps, where the system has one that does.
_CLOCK: Final[int] = getattr(time, "CLOCK_BOOTTIME", time.CLOCK_MONOTONIC)


class Pulse:
    """Asks the broker over a connection, again and again, whether the exchanges are there.

    ``missing`` is called where one is not.
    """

    def __init__(
        self,
        link: Link,
        exchanges: Sequence[tuple[str, str]],
        missing: Callable[[], None],
        *,
        heartbeat_s: float,
    ) -> None:
        self._link, self._exchanges, self._missing = link, exchanges, missing
        self._heartbeat_s = heartbeat_s
        # It was just opened: the broker has answered its login.
        self._proven_at = _now()

    @property
    def proven(self) -> bool:
        """Whether the broker cannot have given its letters to another process yet."""
        return _now() - self._proven_at <= LEASE * self._heartbeat_s

    async def run(self) -> None:
        """Ask until the connection is lost."""
        while not self._link.ended.is_set():
            try:
                channel = await self._link.channel()
                while True:
                    for exchange, kind in self._exchanges:
                        asked_at = _now()
                        await channel.declare_exchange(exchange, kind, passive=True)
                        self._proven_at = asked_at
                    await asyncio.sleep(ASKS_EACH * self._heartbeat_s)
            except NotFound:
                # An answer, too: somebody deleted the exchange.
                self._proven_at = asked_at
                self._missing()
                await asyncio.sleep(ASKS_EACH * self._heartbeat_s)
            except LinkDown:
                await self._link.ended.wait()


def _now() -> float:
    return time.clock_gettime(_CLOCK)
