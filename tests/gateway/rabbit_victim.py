"""A daemon for a test to kill: takes the inbound box, settles some letters, says so, and holds the rest.

Arguments: url, name, how many letters to take, how many of them to settle, how many bytes to hold at most.
"""

from __future__ import annotations

import asyncio
import sys

from gateway.queue.feed import BYTES_MAX
from gateway.queue.mailbox import INBOUND
from gateway.queue.rabbitmq.broker import RabbitMailbox


async def main(url: str, name: str, take: int, settle: int, max_bytes: int) -> None:
    """Take ``take`` letters, settle the first ``settle``, print ``held``, and wait to be killed."""
    mailbox = RabbitMailbox(url, name=name, partitions=4, young_s=0.0, max_bytes=max_bytes)
    serving = asyncio.create_task(mailbox.serve())
    await mailbox.ready()
    async with mailbox.take(INBOUND) as letters:
        for number in range(take):
            letter = await anext(letters)
            if number < settle:
                await mailbox.settle(letter)
        # An answer on the same connection shows that the acknowledgements have arrived.
        await mailbox.depths()
        print("held", flush=True)
        await serving


if __name__ == "__main__":
    url_, name_, *numbers = sys.argv[1:]
    take_, settle_, max_bytes_ = map(int, [*numbers, BYTES_MAX][:3])
    asyncio.run(main(url_, name_, take_, settle_, max_bytes_))
