"""Reads transcripts: small ones whole, big ones in parts and with what an index knows of them."""

from __future__ import annotations

import errno
import os
from pathlib import Path

import orjson

from session.disk.layout import Seen, read_fd
from session.errors import StoreError
from session.transcript.beginning import beginning
from session.transcript.index import Index, Older
from session.transcript.index_file import Saved, holds, read_index
from session.transcript.line import decode
from session.transcript.lines import HeldFile, Lines, pread
from session.transcript.rescue import too_deep
from session.transcript.survey import Survey, blocks, sound
from session.transcript.transcript import MAX_LINE_BYTES, Transcript, finish_parts, parse

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
    """Take the lines from the index, where it can be believed."""
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
    """Take in the whole lines behind those that are known; False where one is not sound."""
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
