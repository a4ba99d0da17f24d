"""Reads how a transcript begins: line 1 whole, however long it is, and what follows; for threads."""

from __future__ import annotations

from typing import BinaryIO

from session.transcript.line import MAX_LINE_BYTES

# So much of what stands behind line 1 belongs to the beginning.
BEGINNING_BYTES = 256 * 1024


def first_line(file: BinaryIO) -> bytes | None:
    """Read line 1 with its newline, where it has one; None where it is longer than any line may be."""
    line = file.readline(MAX_LINE_BYTES + 1)
    return line if line.endswith(b"\n") or len(line) <= MAX_LINE_BYTES else None


def beginning(file: BinaryIO) -> bytes | None:
    """Read line 1 and the first whole lines behind it; None where line 1 is longer than any line may be."""
    first = first_line(file)
    if first is None:
        return None
    data = first + file.read(BEGINNING_BYTES)
    # A file of one line that lacks its newline is that line.
    return data[: data.rfind(b"\n") + 1] or data
