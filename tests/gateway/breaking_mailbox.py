"""An embedded queue that breaks where a test wants it to."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from gateway.queue.embedded.mailbox import EmbeddedMailbox
from gateway.queue.mailbox import Letter, Mark, ParkedAs, Post


class BreakingMailbox(EmbeddedMailbox):
    """It cannot settle one message, and, where told, park none; ``tried`` counts the parkings."""

    def __init__(self, state: Path, *, poison: str = "", parks: bool = True) -> None:
        super().__init__(state)
        self._poison, self._parks = poison, parks
        self.tried = 0

    async def settle(self, letter: Letter, puts: Sequence[Post] = ()) -> None:
        if self._poison and letter.id == self._poison:
            raise RuntimeError("a queue that breaks")
        await super().settle(letter, puts)

    async def park(self, letter: Letter, listed: ParkedAs, *, mark: Mark | None = None) -> None:
        self.tried += 1
        if not self._parks:
            raise RuntimeError("a queue that breaks")
        await super().park(letter, listed, mark=mark)
