"""The lines of a big transcript: the newest in memory, older ones read from the file when asked for."""

from __future__ import annotations

import os
import sys
from array import array
from bisect import bisect_left, bisect_right
from collections.abc import Iterator, Sequence
from itertools import islice
from typing import overload

from session.disk.layout import pread
from session.errors import StoreError

HOT_BYTES = 2**21
BLOCK_BYTES = 2**18
# What a line takes beside its bytes: the head of its object, the end of its place.
LINE_COST = 42


class HeldFile:
    """A descriptor of ours: it means one inode whatever its name means, and is closed with its last user."""

    __slots__ = ("fd",)

    def __init__(self, fd: int) -> None:
        self.fd = fd

    def __del__(self) -> None:
        os.close(self.fd)


class Lines(Sequence[bytes]):
    """Message lines that follow each other in a file without a gap; they only ever grow.

    One thread at a time grows them, any number may read meanwhile: what they share is replaced whole.
    """

    __slots__ = (
        *("_block", "_block_bytes", "_end", "_hot", "_hot_bytes", "_max_hot_bytes"),
        *("_place", "_starts", "broken", "saved_bytes"),
    )

    def __init__(
        self,
        file: HeldFile,
        body_at: int,
        starts: array[int],
        end: int,
        *,
        hot_bytes: int = HOT_BYTES,
        block_bytes: int = BLOCK_BYTES,
    ) -> None:
        """Hold the lines of ``file``, whose body begins at byte ``body_at``.

        Args:
            file: read from, never written.
            body_at: where line 2 of the file begins, the first message.
            starts: where each line begins, counted from there.
            end: one past the newline of the last line, counted likewise.
            hot_bytes: of the newest lines that stay in memory; up to twice that as they grow.
            block_bytes: what is read at once by whoever goes from line to line.

        Raises:
            StoreError: the newest lines cannot be read.
        """
        self._place = (file, body_at)
        self._starts = starts
        self._end = end
        # What was read last, since the next line asked for is mostly beside it.
        self._block: tuple[int, list[bytes]] = (0, [])
        self._hot: tuple[int, list[bytes]] = (len(starts), [])
        self._hot_bytes = 0
        self._max_hot_bytes = 2 * hot_bytes
        self._block_bytes = block_bytes
        # The file does not hold what the index says: it must be read anew as a whole.
        self.broken = False
        # How much of the body the index on disk covers.
        self.saved_bytes = 0
        first = self._first_within(len(starts), hot_bytes)
        self._take_hot(first, self._read(first, len(starts)))

    def __len__(self) -> int:
        return len(self._starts)

    @overload
    def __getitem__(self, at: int) -> bytes: ...
    @overload
    def __getitem__(self, at: slice) -> list[bytes]: ...
    def __getitem__(self, at: int | slice) -> bytes | list[bytes]:
        if isinstance(at, slice):
            places = range(len(self))[at]
            if places.step == 1:
                return list(islice(self.walk(places.start), len(places)))
            return [self._line(number) for number in places]
        count = len(self)
        if not -count <= at < count:
            raise IndexError("no such message line")
        return self._line(at % count)

    def __iter__(self) -> Iterator[bytes]:
        return self.walk(0)

    def __reversed__(self) -> Iterator[bytes]:
        return (self._line(at) for at in range(len(self) - 1, -1, -1))

    def walk(self, start: int) -> Iterator[bytes]:
        """Yield the lines from ``start`` on, with no more than a block of them in memory."""
        at = start
        while True:
            first, hot = self._hot
            if at >= first:
                break
            stop = min(self._stop_within(at), first)
            yield from self._read(at, stop)
            at = stop
        while at - first < len(hot):
            yield hot[at - first]
            at += 1

    def append(self, raw: bytes) -> None:
        """Take in a line that now stands at the end of the file."""
        self._hot[1].append(raw)
        self._hot_bytes += len(raw) + LINE_COST
        self._starts.append(self._end)
        self._end += len(raw) + 1
        if self._hot_bytes > self._max_hot_bytes:
            first, hot = self._hot
            kept = self._first_within(len(self), self._max_hot_bytes // 2)
            self._take_hot(kept, hot[kept - first :])

    def rebase(self, file: HeldFile, body_at: int) -> None:
        """Read from another file from now on, which holds the same lines behind another line 1."""
        self._place = (file, body_at)

    @property
    def body_bytes(self) -> int:
        """How many bytes the lines take in the file, with their newlines."""
        return self._end

    @property
    def weight(self) -> int:
        """About how many bytes of memory they take."""
        lines = self._hot_bytes + sys.getsizeof(self._hot[1])
        return lines + sys.getsizeof(self._starts) + self._block_bytes

    def snapshot(self) -> tuple[HeldFile, int, bytes, int]:
        """Return file, beginning of the body, starts and end as they are, while nothing grows."""
        return *self._place, self._starts.tobytes(), self._end

    def _line(self, at: int) -> bytes:
        first, hot = self._hot
        if at >= first:
            return hot[at - first]
        begin, block = self._block
        if not begin <= at < begin + len(block):
            begin, block = self._block = self._around(at, begin, begin + len(block))
        return block[at - begin]

    def _around(self, at: int, begin: int, end: int) -> tuple[int, list[bytes]]:
        """Read a line, and more in the direction of whoever went on from the block before."""
        if at == end and end > begin:
            return at, self._read(at, min(self._stop_within(at), self._hot[0]))
        if at == begin - 1 or at == self._hot[0] - 1:
            first = self._first_within(at + 1, self._block_bytes)
            return first, self._read(first, at + 1)
        return at, self._read(at, at + 1)

    def _first_within(self, stop: int, max_bytes: int) -> int:
        return bisect_left(self._starts, self._offset(stop) - max_bytes, 0, max(stop - 1, 0))

    def _stop_within(self, first: int) -> int:
        goal = self._starts[first] + self._block_bytes
        if self._end <= goal:
            return len(self._starts)
        return max(bisect_right(self._starts, goal, first + 1) - 1, first + 1)

    def _offset(self, at: int) -> int:
        return self._starts[at] if at < len(self._starts) else self._end

    def _take_hot(self, first: int, lines: list[bytes]) -> None:
        self._hot_bytes = sum(map(len, lines)) + LINE_COST * len(lines)
        self._hot = (first, lines)

    def _read(self, first: int, stop: int) -> list[bytes]:
        """Read the lines from ``first`` to before ``stop``, and see that they are where they were."""
        if first >= stop:
            return []
        file, body_at = self._place
        begin, end = self._starts[first], self._offset(stop)
        # With the newline before it: where none stands, the file is another than the index knows.
        data = pread(file.fd, end - begin + 1, body_at + begin - 1)
        lines = data.split(b"\n")
        if len(data) != end - begin + 1 or lines[0] or lines[-1] or len(lines) != stop - first + 2:
            self.broken = True
            raise StoreError("a transcript was changed while it was read", hint="try again")
        return lines[1:-1]


def walk(messages: Sequence[bytes], start: int) -> Iterator[bytes]:
    """Yield message lines from ``start`` on, those of a big transcript block by block."""
    if isinstance(messages, Lines):
        return messages.walk(start)
    return iter(messages[start:])
