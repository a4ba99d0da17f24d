"""Goes once through the body of a big transcript, block by block: where its lines lie, and what they say."""

from __future__ import annotations

from array import array
from collections.abc import Iterator
from dataclasses import astuple
from itertools import accumulate, count
from operator import add
from typing import Any

import orjson

from session.errors import StoreError
from session.models.model import Totals, Usage
from session.transcript.index import Older, begin, copies_behind, spent
from session.transcript.line import ROLES
from session.transcript.lines import pread
from session.transcript.rescue import too_deep

# Above it each block costs the machine fresh pages.
_BLOCK_BYTES = 2**17
# What is sorted at once is short: a sort lets no other thread run.
_BUCKETS = 256
_SHIFT = 64 - 8


class Survey:
    """The lines of a body so far: offsets count from its beginning."""

    def __init__(self) -> None:
        self.starts = array("Q")
        # One past the newline of the last line.
        self.end = 0
        self._finals = array("I")
        self._records = array("I")
        self._begins = [array("Q") for _ in range(_BUCKETS)]
        self._last_id = ""
        self._turns, self._used = 0, [*astuple(Usage())]
        # So many of the first lines are copies, whose costs the archive counts that they come from.
        self._copies = 0

    def walk(self, fd: int, body_at: int, size: int) -> bool:
        """Take in the lines up to byte ``size`` of the file; what lacks its newline at the end is left.

        Returns:
            False where something else than sound message lines stands there, which only ``parse`` can read.

        Raises:
            StoreError: the file cannot be read.
        """
        for block in blocks(fd, body_at + self.end, size):
            if b"\r" in block:
                return False
            lines = block.split(b"\n")
            for at, raw in enumerate(lines, len(self.starts)):
                line = sound(raw)
                if line is None:
                    return False
                role = line["role"]
                if role == "user" and at >= self._copies:
                    self._turns += 1
                if "message_id" in line or role == "system":
                    self._mark(at, role, line)
                if "usage" in line and at >= self._copies:
                    self._used = [*map(add, self._used, spent(line["usage"]))]
            # One byte more each, for its newline.
            ends = list(map(add, accumulate(map(len, lines)), count(self.end + 1)))
            self.starts.append(self.end)
            self.end = ends.pop()
            self.starts.extend(ends)
        return True

    def _mark(self, at: int, role: str, line: dict[str, Any]) -> None:
        """Note what ``Index.add`` notes, each place where an id may begin included."""
        if role == "system" and type(line.get("kind")) is str:
            self._records.append(at)
            if at == 0:
                self._copies = 1 + copies_behind(line)
            return
        id_ = line.get("message_id")
        if type(id_) is not str:
            return
        if role == "user" or id_ != self._last_id:
            self._last_id = id_
            place = begin(id_, at)
            self._begins[place >> _SHIFT].append(place)
        if "final" in line and role != "user" and line["final"] is True and line.get("stopped") is not True:
            self._finals.append(at)

    def older(self) -> Older:
        """Say what is known of the lines."""
        together = array("Q")
        for bucket in self._begins:
            together.extend(sorted(bucket))
        totals = Totals(self._turns, Usage(*self._used))
        return Older(len(self.starts), together, self._finals, self._records, totals)


def sound(raw: bytes) -> dict[str, Any] | None:
    """Read a line as ``parse`` reads a usual one; None where that would have to look closer."""
    try:
        line = orjson.loads(raw)
    except orjson.JSONDecodeError:
        return None
    if type(line) is not dict or "_type" in line or line.get("role") not in ROLES:
        return None
    return None if len(raw) > 1000 and too_deep(raw) else line


def blocks(fd: int, at: int, size: int) -> Iterator[bytes]:
    """Yield whole lines, about a block at a time, without the newline of the last."""
    pieces: list[bytes] = []
    while at < size:
        block = pread(fd, min(_BLOCK_BYTES, size - at), at)
        if not block:
            raise StoreError("a transcript became shorter while it was read", hint="try again")
        at += len(block)
        cut = block.rfind(b"\n")
        if cut < 0:
            pieces.append(block)
            continue
        yield b"".join([*pieces, block[:cut]])
        pieces = [block[cut + 1 :]]
