"""A process to be killed: it puts and settles letters for ever and says each one that was done.

``python -m tests.gateway.embedded_victim STATE RUN [STEP COUNT]``: with a step it kills itself when its
commits reach that step for the COUNT-th time.
"""

from __future__ import annotations

import asyncio
import itertools
import os
import signal
import sys
from pathlib import Path

from gateway.queue.embedded.mailbox import EmbeddedMailbox
from gateway.queue.mailbox import INBOUND, Letter, Post, outbound


def say(words: str) -> None:
    os.write(1, f"{words}\n".encode())


async def chat(mailbox: EmbeddedMailbox, key: str, run: str) -> None:
    """Put letters one after the other."""
    for number in itertools.count():
        id_ = f"{key}|{run}|{number}"
        await mailbox.put(Post(INBOUND, key, id_, b"x" * 300))
        say(f"put {id_}")


async def answer(mailbox: EmbeddedMailbox, line: asyncio.Queue[Letter]) -> None:
    """Settle the letters of one key, each with its reply."""
    while True:
        letter = await line.get()
        key = letter.id.partition("|")[0]
        await mailbox.settle(letter, [Post(outbound("web"), key, f"{letter.id}#reply", letter.body)])
        say(f"settled {letter.id}")


async def work(mailbox: EmbeddedMailbox, tasks: asyncio.TaskGroup) -> None:
    """Give every key its own line."""
    lines: dict[str, asyncio.Queue[Letter]] = {}
    async with mailbox.take(INBOUND) as letters:
        async for letter in letters:
            key = letter.id.partition("|")[0]
            if key not in lines:
                lines[key] = asyncio.Queue()
                tasks.create_task(answer(mailbox, lines[key]))
            lines[key].put_nowait(letter)


async def main(state: str, run: str, step: str = "", count: str = "0") -> None:
    reached = itertools.count(1)

    def at(name: str) -> None:
        if name == step and next(reached) == int(count):
            os.kill(os.getpid(), signal.SIGKILL)

    mailbox = EmbeddedMailbox(Path(state), at=at)
    async with asyncio.TaskGroup() as tasks:
        tasks.create_task(mailbox.serve())
        await mailbox.ready()
        tasks.create_task(work(mailbox, tasks))
        for number in range(8):
            tasks.create_task(chat(mailbox, f"web:{number}", run))


if __name__ == "__main__":
    asyncio.run(main(*sys.argv[1:]))
