"""Reads transcripts: small ones whole, big ones in parts by an index; and finds the name of a key's files."""

from __future__ import annotations

import errno
import os
from array import array
from collections.abc import Iterator
from dataclasses import astuple
from itertools import accumulate, count
from operator import add
from pathlib import Path
from typing import Any

import orjson

from session.disk.layout import Layout, Seen, pread, read_fd
from session.errors import StoreError
from session.models.model import Totals, Usage
from session.transcript.index import Index, Older, Saved, begin, copies_behind, holds, read_index, spent
from session.transcript.key import SessionKey, looks_marked, marked_stem, needs_mark, plain_stem
from session.transcript.line import ROLES, beginning, decode
from session.transcript.lines import HeldFile, Lines
from session.transcript.transcript import MAX_LINE_BYTES, Transcript, finish_parts, parse, too_deep

# Above it each block costs the machine fresh pages.
_BLOCK_BYTES = 2**17


class Survey:
    """The lines of a body so far: offsets count from its beginning."""

    def __init__(self) -> None:
        self.starts = array("Q")
        # One past the newline of the last line.
        self.end = 0
        self._finals = array("I")
        self._records = array("I")
        self._begins = array("Q")
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
            self._begins.append(begin(id_, at))
        if "final" in line and role != "user" and line["final"] is True and line.get("stopped") is not True:
            self._finals.append(at)

    def older(self) -> Older:
        """Say what is known of the lines."""
        totals = Totals(self._turns, Usage(*self._used))
        return Older(len(self.starts), array("Q", sorted(self._begins)), self._finals, self._records, totals)


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


# Files up to this size are read as a whole.
WHOLE_BYTES = 2**22
# Behind an index; where there is more, reading all anew makes a better one.
MAX_NEW_BYTES = 2**24
_HEAD_BYTES = 2**16


def load(path: Path, stem: str, index: Path | None = None) -> tuple[Transcript, Seen] | None:
    """Read a transcript together with what its file was when it was read; None where there is none.

    Args:
        path: the file.
        stem: its name without ``.jsonl``, from which the key comes where line 1 names none.
        index: where its index may lie; None: it is not to be used.

    Raises:
        StoreError: it cannot be read.
    """
    for tries in (1, 2):
        try:
            file = HeldFile(os.open(path, os.O_RDONLY | os.O_CLOEXEC))
            return _loaded(file, path, stem, index)
        except FileNotFoundError:
            break
        except OSError as error:
            # On a network's disk that is a file which was replaced, or removed, after it was opened.
            if error.errno == errno.ESTALE and tries == 1:
                continue
            why = f"{path.name} cannot be read: {error.strerror}"
            raise StoreError(why, hint=f"check {path}") from error
    return None


def _loaded(file: HeldFile, path: Path, stem: str, index: Path | None) -> tuple[Transcript, Seen]:
    now = os.fstat(file.fd)
    if now.st_size > WHOLE_BYTES:
        transcript = _in_parts(file, now.st_size, stem, index)
        if transcript is not None:
            return transcript, (now.st_ino, now.st_size, now.st_mtime_ns)
    data, looked = read_fd(file.fd, path.name)
    transcript = parse(data, stem=stem)
    transcript.whole = now.st_size > WHOLE_BYTES
    return transcript, looked


def _in_parts(file: HeldFile, size: int, stem: str, index: Path | None) -> Transcript | None:
    """Read a big file; None where anything but line 1 and sound message lines stands in it."""
    first = _first_line(file.fd, size)
    if first is None:
        return None
    body_at = len(first) + 1
    known = _known(file, body_at, size, index) or _surveyed(file, body_at, size)
    if known is None:
        return None
    transcript = Transcript(stem, metadata=decode(first), messages=known[0])
    transcript.index = Index(known[0], known[1])
    transcript.damage.heads = 1
    transcript.size = transcript.keep = size
    transcript.body_at = body_at
    if not _take_new(transcript, known[0], file.fd):
        return None
    at = body_at + known[0].body_bytes
    return transcript if finish_parts(transcript, pread(file.fd, size - at, at)) else None


def _first_line(fd: int, size: int) -> bytes | None:
    """Return line 1 without its newline; None where it is no metadata, or not written as usual."""
    data = b""
    while b"\n" not in data:
        if len(data) >= min(size, MAX_LINE_BYTES):
            return None
        data += pread(fd, _HEAD_BYTES, len(data))
    first = data[: data.index(b"\n")]
    try:
        head = orjson.loads(first)
    except orjson.JSONDecodeError:
        return None
    if type(head) is not dict or head.get("_type") != "metadata" or first.endswith(b"\r") or too_deep(first):
        return None
    return first


def _known(file: HeldFile, body_at: int, size: int, index: Path | None) -> tuple[Lines, Older] | None:
    saved: Saved | None = None if index is None else read_index(index)
    if saved is None or size - body_at - saved.end > MAX_NEW_BYTES or not holds(saved, file.fd, body_at):
        return None
    try:
        lines = Lines(file, body_at, saved.starts, saved.end)
    except StoreError:
        return None
    lines.saved_bytes = saved.end
    return lines, saved.older


def _surveyed(file: HeldFile, body_at: int, size: int) -> tuple[Lines, Older] | None:
    survey = Survey()
    if not survey.walk(file.fd, body_at, size) or not survey.starts:
        return None
    return Lines(file, body_at, survey.starts, survey.end), survey.older()


def _take_new(transcript: Transcript, lines: Lines, fd: int) -> bool:
    for block in blocks(fd, transcript.body_at + lines.body_bytes, transcript.size):
        if b"\r" in block:
            return False
        for raw in block.split(b"\n"):
            line = sound(raw)
            if line is None:
                return False
            transcript.grow(raw, line)
    return True


def read_beginning(path: Path, stem: str) -> Transcript | None:
    """Read line 1 and the first whole messages of a session, active or ended.

    None: it is gone, or its line 1 is longer than any line may be, and nobody knows whose it is.

    Raises:
        StoreError: it cannot be read.
    """
    try:
        with path.open("rb") as file:
            data = beginning(file)
    # Between the listing and here it may have been reopened or deleted.
    except FileNotFoundError:
        return None
    except OSError as error:
        raise StoreError(f"{path.name} cannot be read: {error.strerror}") from error
    return parse(data, stem=stem) if data is not None else None


def resolve(layout: Layout, key: SessionKey) -> str:
    """Return the stem of a key's files: nanobot's, or the marked one where that belongs to another key.

    The transcript's line 1 decides whose a stem is. A key that is written like the marked stem of another is
    marked itself, so that none can take another's last name; a file that it had before stays its own.
    """
    marked = marked_stem(key)
    if needs_mark(key):
        return marked
    plain = plain_stem(key)
    owner = owner_of(layout, plain)
    if owner == key:
        return plain
    if owner is not None or looks_marked(plain) or owner_of(layout, marked) == key:
        return marked
    return plain


def owner_of(layout: Layout, stem: str) -> str | None:
    """Return the key to which a stem belongs; None while it is free."""
    return key_in_file(layout, stem)


def key_in_file(layout: Layout, stem: str) -> str | None:
    """Return the key that an active transcript names; None where there is no such file."""
    found = load(layout.transcript(stem), stem, layout.index(stem))
    return None if found is None else found[0].key
