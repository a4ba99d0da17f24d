"""A daemon's session part with a model by script, made to be killed: it says on stdout what it does.

``python -m tests.gateway.attempts_victim FOLDER HOW [URL NAME]``, on the embedded queue or on RabbitMQ. HOW
says what becomes of requests: ``hang`` no answer ever, once the question is stored; ``answer``; ``import``
the model's library is never loaded. Each line of stdin is a letter, ``<chat> <text>``, its id the chat. Of
the texts, ``die now`` kills the process in the request, ``die late`` once the question is stored, ``takes S``
takes S seconds where others are answered. It ends by itself when nothing waits any more, with the ids of what
is parked. SIGTERM ends it in good order, its running turns cancelled.
"""

from __future__ import annotations

import asyncio
import os
import signal
import sys
from pathlib import Path

import structlog

from channels.message import Inbound
from gateway.dispatch.worker import DispatchRules
from gateway.queue.rabbitmq.broker import RabbitMailbox
from session.models.model import Answer, OnDelta, Prompt
from tests.contracts.models import Script
from tests.gateway.worker_rig import Rig
from tests.support.until import until


def say(*words: str) -> None:
    os.write(1, (" ".join(words) + "\n").encode())


class Model(Script):
    """Does what texts and the life's HOW say."""

    def __init__(self, folder: Path, how: str) -> None:
        super().__init__()
        self._sessions = folder / "sessions"
        self._how = how

    async def warm(self) -> None:
        """Load the library, which may take for ever."""
        if self._how == "import":
            say("importing")
            await asyncio.Event().wait()

    async def ask(self, prompt: Prompt, on_delta: OnDelta | None = None) -> Answer:
        text = str(prompt.messages[-1]["content"])
        if (self._how == "hang" and not text.startswith("die now")) or text.startswith("die late"):
            await until(lambda: any(text in path.read_text() for path in self._sessions.glob("*.jsonl")), 600)
        say("asked", text)
        if text.startswith("die"):
            os.kill(os.getpid(), signal.SIGKILL)
        if self._how == "hang":
            await asyncio.Event().wait()
        if text.startswith("takes"):
            await asyncio.sleep(float(text.split()[1]))
        return Answer(f"about {text}")


class Life(Rig):
    """One life of the victim."""

    async def main(self) -> None:
        ended = asyncio.Event()
        loop = asyncio.get_running_loop()
        loop.add_signal_handler(signal.SIGTERM, ended.set)
        self.more["letter_ended"] = self._letter_ended
        async with self.open(), asyncio.TaskGroup() as group:
            say("ready")
            tasks = [group.create_task(self._receive()), group.create_task(self._until_empty(ended))]
            await ended.wait()
            for task in tasks:
                task.cancel()
            await self.worker.drain(0.05)
            say("ended")

    def _letter_ended(self, inbound: Inbound, status: str, error: str, duration_ms: int) -> None:
        say("parked" if error else "answered", inbound.id)

    async def _receive(self) -> None:
        reader = asyncio.StreamReader()
        protocol = asyncio.StreamReaderProtocol(reader)
        await asyncio.get_running_loop().connect_read_pipe(lambda: protocol, sys.stdin)
        while line := (await reader.readline()).decode().strip():
            chat, text = line.split(" ", 1)
            await self.put(text, chat, key=f"foreign:{chat}")
            say("put", chat)

    async def _until_empty(self, ended: asyncio.Event) -> None:
        """End once something came, and nothing of it waits any more."""

        async def here() -> int:
            depths = await self.mailbox.depths()
            return sum(depth.count for box, depth in depths.items() if box != "parked")

        async def empty() -> bool:
            return not await here()

        await until(here, 600)
        await until(empty, 600)
        say("left", *sorted(str(letter.id) for letter in await self.mailbox.parked()))
        ended.set()


def main(folder: str, how: str, *broker: str) -> None:
    structlog.configure(
        wrapper_class=structlog.make_filtering_bound_logger(40),
        logger_factory=structlog.PrintLoggerFactory(sys.stderr),
    )
    mailbox = RabbitMailbox(broker[0], name=broker[1], partitions=2, young_s=0.0) if broker else None
    life = Life(Path(folder), Model(Path(folder), how), DispatchRules(), mailbox=mailbox)
    asyncio.run(life.main())


if __name__ == "__main__":
    main(*sys.argv[1:])
