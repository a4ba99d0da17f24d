"""Moves partitions for a test, and kills itself in mid-work. Arguments: url, name, partitions, type, step.

The step is one of the move's own, or "put 30", "ack 30": before the letter of that number is put into its new
queue, or taken out of its old one.
"""

from __future__ import annotations

import asyncio
import os
import signal
import sys
from collections import Counter

from gateway.errors import MailboxDown
from gateway.queue.rabbitmq.connection import AmqpChannel, Link
from gateway.queue.rabbitmq.declare import Topology
from gateway.queue.rabbitmq.repartition import repartition
from gateway.queue.rabbitmq.topology import Names
from gateway.queue.rabbitmq.wire import Sending

DONE: Counter[str] = Counter()
DYING = asyncio.Event()
LEAVES_S = 0.3


class Mortal(Link):
    """Sends the letters before the one of ``fatal``, none from there on, and dies when they have left."""

    fatal = ""

    async def channel(self, *, confirms: bool = False) -> AmqpChannel:
        """Open one that dies."""
        channel = await super().channel(confirms=confirms)
        publish, ack = channel.publish, channel.ack

        def put(sending: Sending, *, mandatory: bool = True) -> asyncio.Future[None]:
            if confirms and sending.id and self._dies("put"):
                return asyncio.get_running_loop().create_future()
            return publish(sending, mandatory=mandatory)

        def acknowledge(tag: int) -> None:
            if not self._dies("ack"):
                ack(tag)

        channel.publish, channel.ack = put, acknowledge  # type: ignore[method-assign]
        return channel

    def _dies(self, does: str) -> bool:
        DONE[does] += 1
        if f"{does} {DONE[does]}" == self.fatal:
            DYING.set()
            asyncio.get_running_loop().call_later(LEAVES_S, die)
        return DYING.is_set()


def die() -> None:
    """End as a kill does."""
    os.kill(os.getpid(), signal.SIGKILL)


async def main(url: str, name: str, partitions: int, queue_type: str, fatal: str) -> None:
    """Do the work as far as the step of this name."""

    def on_step(step: str) -> None:
        if step == fatal:
            die()

    Mortal.fatal = fatal
    link = await Mortal.open(url, title="victim", heartbeat_s=10)
    topology = Topology(Names(name, partitions), queue_type, 0.0)
    try:
        await repartition(link, topology, listens_s=0.1, on_step=on_step)
    except MailboxDown:
        # It may see that letters stay in the old queue before it dies of that.
        if not DYING.is_set():
            raise
        await asyncio.Event().wait()


if __name__ == "__main__":
    url_, name_, partitions_, type_, fatal_ = sys.argv[1:]
    asyncio.run(main(url_, name_, int(partitions_), type_, fatal_))
