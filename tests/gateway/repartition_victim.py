"""Moves partitions for a test, and kills itself before a step. Arguments: url, name, partitions, step."""

from __future__ import annotations

import asyncio
import os
import signal
import sys

from gateway.queue.rabbitmq.connection import Link
from gateway.queue.rabbitmq.declare import Topology
from gateway.queue.rabbitmq.repartition import repartition
from gateway.queue.rabbitmq.topology import Names


async def main(url: str, name: str, partitions: int, fatal: str) -> None:
    """Do the work as far as the step of this name."""

    def on_step(step: str) -> None:
        if step == fatal:
            os.kill(os.getpid(), signal.SIGKILL)

    link = await Link.open(url, title="victim", heartbeat_s=10)
    await repartition(link, Topology(Names(name, partitions), "auto", 0.0), listens_s=0.1, on_step=on_step)


if __name__ == "__main__":
    url_, name_, partitions_, fatal_ = sys.argv[1:]
    asyncio.run(main(url_, name_, int(partitions_), fatal_))
