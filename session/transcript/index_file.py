"""The index of a big transcript as a file: derived, checked before it is believed, safe to delete."""

from __future__ import annotations

import contextlib
import hashlib
import os
import struct
from array import array
from dataclasses import astuple, dataclass
from pathlib import Path

from durable import make_folder, new_file, write_all
from session.errors import StoreError
from session.models.model import Totals, Usage
from session.transcript.index import Older
from session.transcript.lines import pread

VERSION = 2
_MAGIC = b"cg-index"
# In the byte order of this machine: the index of another one is not believed.
_HEAD = struct.Struct("=8sIQQQqqQQQQQqqqdqqq16s")
_DIGEST_BYTES = 16
_SAMPLES = 32
_SAMPLE_BYTES = 4096
_MAX_BYTES = 2**30
_UNFINISHED = ".new"

# The inode, the size, mtime_ns and ctime_ns.
Identity = tuple[int, int, int, int]


@dataclass(slots=True)
class Saved:
    """What an index file says: of which file, and of how much of it; its lines are known up to ``end``."""

    identity: Identity
    body_at: int
    end: int
    starts: array[int]
    older: Older
    samples: bytes


def identity_of(found: os.stat_result) -> Identity:
    """Tell one state of one file from all others, as far as a look can."""
    return found.st_ino, found.st_size, found.st_mtime_ns, found.st_ctime_ns


def sample(fd: int, body_at: int, end: int) -> bytes:
    """Digest some blocks of a body, its first and its last bytes among them.

    Raises:
        StoreError: the file cannot be read.
    """
    digest = hashlib.blake2b(end.to_bytes(8, "big"), digest_size=_DIGEST_BYTES)
    last = max(end - _SAMPLE_BYTES, 0)
    for number in range(_SAMPLES):
        at = last * number // (_SAMPLES - 1)
        digest.update(pread(fd, min(_SAMPLE_BYTES, end - at), body_at + at))
    return digest.digest()


def pack(saved: Saved) -> bytes:
    """Write an index as bytes."""
    older, sums = saved.older, saved.older.totals
    counts = (len(older.begins), len(older.finals), len(older.records))
    sizes = (saved.body_at, saved.end, *counts)
    spent = (sums.turns, *astuple(sums.usage))
    head = _HEAD.pack(_MAGIC, VERSION, older.lines, *saved.identity, *sizes, *spent, saved.samples)
    data = b"".join([head, *(part.tobytes() for part in _parts(saved))])
    return data + hashlib.blake2b(data, digest_size=_DIGEST_BYTES).digest()


def unpack(data: bytes) -> Saved | None:
    """Read the bytes of an index; None where it is damaged or of another version or machine."""
    body = memoryview(data)[:-_DIGEST_BYTES]
    if len(body) < _HEAD.size or not data.startswith(_MAGIC):
        return None
    head = _HEAD.unpack(body[: _HEAD.size])
    if (
        head[1] != VERSION
        or hashlib.blake2b(body, digest_size=_DIGEST_BYTES).digest() != data[-_DIGEST_BYTES:]
    ):
        return None
    lines, identity, (body_at, end), counts = head[2], head[3:7], head[7:9], head[9:12]
    totals = Totals(head[12], Usage(*head[13:19]))
    saved = Saved(identity, body_at, end, array("Q"), Older(lines, totals=totals), head[19])
    at = _HEAD.size
    for part, count in zip(_parts(saved), (lines, *counts), strict=True):
        piece = body[at : at + count * part.itemsize]
        part.frombytes(piece)
        at += len(piece)
    return saved if at == len(body) and len(saved.starts) == lines else None


def _parts(saved: Saved) -> list[array[int]]:
    return [saved.starts, saved.older.begins, saved.older.finals, saved.older.records]


def holds(saved: Saved, fd: int, body_at: int) -> bool:
    """Say whether an index tells the truth of an open file, whose lines may have become more since.

    Raises:
        StoreError: the file cannot be read.
    """
    now = identity_of(os.fstat(fd))
    if body_at + saved.end > now[1]:
        return False
    if (body_at, now[1]) == (saved.body_at, saved.identity[1]) and now != saved.identity:
        # The file is as long as it was, but was written anew.
        return False
    return sample(fd, body_at, saved.end) == saved.samples


def read_index(path: Path) -> Saved | None:
    """Read an index file; None where there is none that can be used."""
    try:
        fd = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
    except OSError:
        return None
    try:
        size = os.fstat(fd).st_size
        return unpack(pread(fd, size, 0)) if size <= _MAX_BYTES else None
    except (OSError, StoreError):
        return None
    finally:
        os.close(fd)


def write_index(path: Path, saved: Saved) -> None:
    """Put an index in the place of an older one, whole or not at all; it need not survive a power cut.

    Two processes that write it at once spoil at worst the index, which its own digest shows.

    Raises:
        OSError: the disk refused.
    """
    data = pack(saved)
    make_folder(path.parent)
    temp = path.with_suffix(_UNFINISHED)
    with new_file(temp) as fd:
        write_all(fd, data)
        # Without a sync, since an index that a power cut spoils is known by its digest, and is made anew.
        temp.rename(path)


def remove_index(path: Path) -> None:
    """Delete an index, and what a kill left of one; that there is none is fine, and a disk that refuses."""
    for each in (path, path.with_suffix(_UNFINISHED)):
        with contextlib.suppress(OSError):
            each.unlink()
