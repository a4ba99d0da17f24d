"""Lives of a daemon that is killed, one after the other on one folder, and what each of them did."""

from __future__ import annotations

import asyncio
import signal
import sys
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path

from tests.support import forked
from tests.support.harness import ROOT

WITHIN_S = 60


class Life:
    """One process of ``attempts_victim``, and the lines it said."""

    def __init__(self, process: forked.Awaited) -> None:
        self.lines: list[str] = []
        self._process = process
        self._silent = False
        self._spoke = asyncio.Condition()
        self._reader = asyncio.create_task(self._read(), name="victim")

    async def _read(self) -> None:
        assert self._process.stdout is not None
        async for line in self._process.stdout:
            async with self._spoke:
                self.lines.append(line.decode().strip())
                self._spoke.notify_all()
        async with self._spoke:
            self._silent = True
            self._spoke.notify_all()

    def all(self, word: str) -> list[str]:
        """What followed ``word`` in each line that begins with it."""
        return [line.partition(" ")[2] for line in self.lines if line.partition(" ")[0] == word]

    async def said(self, word: str, times: int = 1) -> list[str]:
        """Wait until that many lines begin with ``word``."""
        async with asyncio.timeout(WITHIN_S), self._spoke:
            await self._spoke.wait_for(lambda: self._silent or len(self.all(word)) >= times)
        assert len(self.all(word)) >= times, f"it died before {word} x{times}: {self.lines}"
        return self.all(word)

    async def put(self, **letters: str) -> None:
        """Put a letter for each chat, and wait until all are durable."""
        before = len(self.all("put"))
        self.send(**letters)
        await self.said("put", before + len(letters))

    def send(self, **letters: str) -> None:
        """Put a letter for each chat; one that kills the process may do so before it can say that it came."""
        assert self._process.stdin is not None
        self._process.stdin.write("".join(f"{chat} {text}\n" for chat, text in letters.items()).encode())

    async def died(self) -> int:
        """Wait until it is gone and all that it said was read."""
        code = await asyncio.wait_for(self._process.wait(), WITHIN_S)
        await self._reader
        return code

    async def kill(self) -> None:
        """SIGKILL."""
        self._process.send_signal(signal.SIGKILL)
        await self.died()

    async def stop(self) -> None:
        """End it in good order, its running turns cancelled."""
        self._process.send_signal(signal.SIGTERM)
        assert await self.died() == 0, self.lines

    async def left(self) -> list[str]:
        """Wait until all letters have ended and it has, too; return the ids of the parked ones."""
        assert await self.died() == 0, self.lines
        return self.all("left")[0].split()

    async def end(self) -> None:
        if self._process.returncode is None:
            await self.kill()


class Place:
    """One folder and one queue, over all lives."""

    def __init__(self, folder: Path, *broker: str) -> None:
        self.folder = folder
        self._broker = broker

    @asynccontextmanager
    async def life(self, how: str) -> AsyncIterator[Life]:
        """Start the next life; what is left of it in the end is killed."""
        process = await forked.spawn(
            *(sys.executable, "-m", "tests.gateway.attempts_victim", str(self.folder), how, *self._broker),
            cwd=ROOT,
            stdin=asyncio.subprocess.PIPE,
            stdout=asyncio.subprocess.PIPE,
        )
        life = Life(process)
        try:
            await life.said("ready")
            yield life
        finally:
            await life.end()
