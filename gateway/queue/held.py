"""How many bytes of bodies a process holds over all its queues, and how many more each of them may take.

A small part of the bound is divided among the queues, so that one with very large letters leaves each of the
others some; the rest goes to whichever queue needs it.
"""

from __future__ import annotations

from typing import Final

BYTES_MAX: Final = 64 * 2**20
# The part of the bound that is divided.
_DIVIDED = 16


class HeldBytes:
    """Counts what the queues of one process hold; a queue is whatever joined.

    What all hold stays within ``max_bytes``, except that a queue which holds nothing takes one letter of any
    size: it would otherwise stand still for ever.
    """

    def __init__(self, max_bytes: int = BYTES_MAX) -> None:
        self.max_bytes = max_bytes
        self.total = 0
        self._divided = max_bytes // _DIVIDED
        self._of: dict[object, int] = {}

    def join(self, queue: object) -> None:
        """Count a further queue, which holds nothing yet."""
        self._of[queue] = 0

    def leave(self, queue: object) -> None:
        """Forget a queue with all that it holds."""
        self.total -= self._of.pop(queue, 0)

    def of(self, queue: object) -> int:
        """Say how many bytes a queue holds."""
        return self._of[queue]

    def add(self, queue: object, size: int) -> None:
        """Count what a queue took; below zero: what it let go."""
        self._of[queue] += size
        self.total += size

    def bound_of(self, queue: object) -> int:
        """Say how many bytes a queue may hold while the others hold what they do."""
        share = self._divided // len(self._of)
        beyond = sum(max(0, size - share) for other, size in self._of.items() if other is not queue)
        return share + max(0, self.max_bytes - self._divided - beyond)

    def takes(self, queue: object, size: int) -> bool:
        """Say whether a queue may take ``size`` bytes more."""
        # This comes first because it is asked for each letter, and summing up is for the rare case.
        if self.total + size <= self.max_bytes - self._divided:
            return True
        return not self._of[queue] or self._of[queue] + size <= self.bound_of(queue)
