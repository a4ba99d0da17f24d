"""Hands letters to whoever iterates, as they come, and lets the rest of the loop run in between."""

from __future__ import annotations

import asyncio
from abc import ABC, abstractmethod
from collections.abc import AsyncIterator

from gateway.queue.mailbox import Letter

# Letters handed out in a row before others run.
IN_A_ROW = 64


class LetterFeed(ABC):
    """Letters of a box for one taker, until it is ended; ``arrived`` is set when there may be one more."""

    def __init__(self) -> None:
        self.arrived = asyncio.Event()
        self._ended = False
        self._error: BaseException | None = None
        self._run = 0

    @abstractmethod
    def next(self) -> Letter | None:
        """Take the next letter out; None: there is none yet."""

    def end(self, error: BaseException | None = None) -> None:
        """End the iteration, with ``error`` if something went wrong."""
        self._ended, self._error = True, error
        self.arrived.set()

    def __aiter__(self) -> AsyncIterator[Letter]:
        return self

    async def __anext__(self) -> Letter:
        self._run += 1
        if self._run % IN_A_ROW == 0:
            await asyncio.sleep(0)
        while not self._ended:
            letter = self.next()
            if letter is not None:
                return letter
            self._run = 0
            self.arrived.clear()
            await self.arrived.wait()
        raise self._error or StopAsyncIteration
