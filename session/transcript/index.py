"""What a transcript shows of each message id, counted line by line; of a big one it is kept in a file."""

from __future__ import annotations

import contextlib
import hashlib
import os
import re
import struct
import sys
import zlib
from array import array
from bisect import bisect_left
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import astuple, dataclass, field
from itertools import islice
from operator import add
from pathlib import Path
from typing import Any, Protocol

import orjson

from durable import make_folder, new_file, write_all
from session.disk.layout import pread, read_file
from session.errors import StoreError
from session.models.model import Totals, Usage
from session.transcript.line import decode, taken_back
from session.transcript.lines import walk

# How a writer may spell an ASCII character that needs no escape.
_SPELLED = re.compile(rb"\\u00[2-7]")
# What one of the newest ids takes beside its place in the table: its text, the number of its first line.
_ID_COST = 90
# How many of the newest ids are kept by their text at least, and how many that may become. Where there are
# many it is a share of all: sorting the others anew for each few would cost more the longer a transcript is.
_NEWEST_IDS = 8
_NEWEST_IDS_MAX = 32
_NEWEST_SHARE = 4
# A number beyond it counts as 0.
_MAX = 1e15
_OLDER_FIELDS = 3


@dataclass(frozen=True, slots=True)
class Exchange:
    """What the active transcript shows of one message id: its last occurrence.

    ``start`` is the index of its user line and ``stop`` one past its last line; ``final`` is the index of the
    line that answers it; ``tail`` says that no message of another id follows (our own records do not count)
    and that it was not withdrawn. Messages that entered its turn (``part_of``) belong to it; of such a one it
    is the user line alone, and never the tail: its turn is the other's.
    """

    start: int
    stop: int
    final: int | None
    tail: bool


@dataclass(slots=True)
class Older:
    """What is known of the first ``lines`` lines of a big transcript, in few bytes a line.

    ``begins`` holds, sorted, a number for each place where an id may begin; see ``begin``.
    """

    lines: int = 0
    begins: array[int] = field(default_factory=lambda: array("Q"))
    finals: array[int] = field(default_factory=lambda: array("I"))
    records: array[int] = field(default_factory=lambda: array("I"))
    totals: Totals = field(default_factory=Totals)


def begin(id_: str, at: int) -> int:
    """Return 64 bits for line ``at`` as one where an id may begin: the id's checksum above, the line below.

    Two ids may share a checksum, so that only the line itself says whose it is.
    """
    return zlib.crc32(id_.encode("utf-8", "surrogatepass")) << 32 | at


class _End:
    """An exchange of which the last line is known, found line by line towards its beginning."""

    __slots__ = ("begun", "final", "start", "stop")

    def __init__(self, stop: int, final: int | None) -> None:
        self.start, self.stop, self.final = stop, stop, final
        # Whether its user line was found: what stands before that is an older exchange.
        self.begun = False

    def go_back(self, at: int, line: Mapping[str, Any]) -> None:
        if self.begun:
            return
        self.start, self.begun = at, line["role"] == "user"
        if line.get("final") is True and not self.begun:
            self.end_at(at)

    def end_at(self, at: int) -> None:
        if not self.begun and self.final is None:
            self.final = at

    def exchange(self) -> Exchange:
        final = self.final if self.final is not None and self.final >= self.start else None
        # What came before it answered no line of it.
        return Exchange(self.start, self.stop, final, tail=False)


class Derived(Protocol):
    """What was made of the lines for a reader; ``weight``: about how many bytes of memory it takes."""

    weight: int


class Index:
    """Grows with the transcript; keeps where each id begins, and looks the rest up in the raw lines.

    The newest ids are kept by their text, at some 130 bytes each, the others as ``begin`` has them, at 8.

    One thread at a time grows both, the lines first, any number may read meanwhile: a reader finds at most
    the last line missing here, and leaves out what came after it had counted them.
    """

    __slots__ = ("_begins", "_messages", "_starts", "_summed", "_totals", "finals", "records")

    def __init__(self, messages: Sequence[bytes], older: Older | None = None) -> None:
        """Know nothing yet, or what ``older`` says of the first lines; it is taken over."""
        older = Older() if older is None else older
        # Lines that were sent as a reply.
        self.finals = older.finals
        # Our own ``role: system`` lines: overlay, undo, note, compact.
        self.records = older.records
        self._messages = messages
        # Where each of the newest ids begins.
        self._starts: dict[str, int] = {}
        # Where each of the others may; replaced, never changed.
        self._begins = older.begins
        self._totals, self._summed = older.totals, older.lines

    def add(self, at: int, line: Mapping[str, Any]) -> None:
        """Take in message line ``at``; one without ``message_id`` that is no system line may be left out."""
        role = line["role"]
        if role == "system" and type(line.get("kind")) is str:
            self.records.append(at)
            if at == 0:
                # What these lines cost stands in the archive that they are copies of.
                self._summed = 1 + copies_behind(line)
            return
        id_ = line.get("message_id")
        if type(id_) is not str:
            return
        if role == "user" or self._start(id_) is None:
            self._starts[id_] = at
            if len(self._starts) > _NEWEST_IDS_MAX:
                self._fold()
        if "final" in line and role != "user" and line["final"] is True and line.get("stopped") is not True:
            self.finals.append(at)

    def find(self, id_: str) -> Exchange | None:
        """Return the newest exchange of a message id; None where no line begins one."""
        start = self._start(id_)
        if start is None:
            return None
        count = len(self._messages)
        stop, final, is_part = start + 1, None, False
        needle = orjson.dumps(id_) if _is_plain(id_) else b'"message_id"'
        for at, raw in enumerate(islice(walk(self._messages, start), count - start), start):
            if needle not in raw and not (b"\\u00" in raw and _SPELLED.search(raw)):
                continue
            line = decode(raw)
            if _is_record(line):
                continue
            if line.get("message_id") == id_:
                if line.get("role") == "user":
                    # A newer one than ``start`` came in since, and stands behind the rest.
                    start, final, is_part = at, None, False
                stop = at + 1
                is_part = is_part or (at == start and "part_of" in line)
                if line.get("final") is True and line.get("role") != "user":
                    final = at
            elif line.get("part_of") == id_:
                stop = at + 1
            answers = line.get("answers")
            if isinstance(answers, list) and id_ in answers:
                final = at
        tail = not is_part and self._last_message(count) < stop and not self._withdrawn(start)
        return Exchange(start, stop, final, tail)

    @property
    def weight(self) -> int:
        """About how many bytes of memory it takes."""
        tables = (self._starts, self._begins, self.finals, self.records)
        return sum(map(sys.getsizeof, tables)) + _ID_COST * len(self._starts)

    def snapshot(self) -> Callable[[], Older]:
        """Copy what is known, while nothing grows; what is returned makes one of it, in any thread."""
        begins, newer = self._begins, dict(self._starts)
        finals, records = self.finals[:], self.records[:]
        messages, lines, totals, summed = self._messages, len(self._messages), self._totals, self._summed

        def finish() -> Older:
            sums = sum_up(totals, islice(walk(messages, summed), max(lines - summed, 0)))
            return Older(lines, _merged(begins, newer.items()), finals, records, sums)

        return finish

    def _fold(self) -> None:
        """Keep the newest ids by their text alone, once they are a share of all."""
        if len(self._starts) * _NEWEST_SHARE <= len(self._begins):
            return
        folded = len(self._starts) - _NEWEST_IDS
        self._begins = _merged(self._begins, islice(self._starts.items(), folded))
        self._starts = dict(islice(self._starts.items(), folded, None))

    def _start(self, id_: str) -> int | None:
        start = self._starts.get(id_)
        if start is not None:
            return start
        # An id is folded into these before it leaves the others: looked for there first, it is found.
        begins, first = self._begins, begin(id_, 0)
        for place in range(bisect_left(begins, first), len(begins)):
            at = begins[place] - first
            if at >> 32:
                break
            line = decode(self._messages[at])
            if line.get("message_id") == id_ and (start is None or line.get("role") == "user"):
                start = at
        return start

    def _withdrawn(self, at: int) -> bool:
        for record in reversed(self.records):
            if record <= at:
                return False
            if at in taken_back(decode(self._messages[record]), record):
                return True
        return False

    def last_message(self) -> int:
        """Return the index of the newest line that is not our own record; -1 without one."""
        return self._last_message(len(self._messages))

    def _last_message(self, count: int) -> int:
        """Return the same of the first ``count`` lines, which were all at some moment."""
        at, records = count - 1, self.records
        if at >= 0 and (not records or records[-1] < at):
            # It may be missing here still. Then it is one of ours, and spelled as we do.
            raw = self._messages[at]
            if b'"system"' in raw and _is_record(decode(raw)):
                at -= 1
        for record in reversed(records):
            if record < at:
                break
            if record == at:
                at -= 1
        return at

    def ends(self, is_recent: Callable[[Mapping[str, Any]], bool]) -> dict[str, Exchange]:
        """Find the newest exchange of each id whose last line ``is_recent``, in one pass; oldest first.

        ``tail`` stays False.
        """
        ends: dict[str, _End] = {}
        # Ids that a later line answers than any of their own.
        answered: dict[str, int] = {}
        for at in range(len(self._messages) - 1, -1, -1):
            raw = self._messages[at]
            if b'"message_id"' not in raw and b'"answers"' not in raw and b"\\u00" not in raw:
                continue
            line = decode(raw)
            if _is_record(line):
                continue
            answers = line.get("answers")
            for other in answers if isinstance(answers, list) else ():
                if isinstance(other, str):
                    answered.setdefault(other, at)
                    if other in ends:
                        ends[other].end_at(at)
            id_ = line.get("message_id")
            if type(id_) is not str:
                continue
            end = ends.get(id_)
            if end is None and is_recent(line):
                end = ends[id_] = _End(at + 1, answered.get(id_))
            if end is not None:
                end.go_back(at, line)
        return {id_: end.exchange() for id_, end in sorted(ends.items(), key=lambda one: one[1].start)}

    def totals(self) -> Totals:
        """Sum up turns, tokens and price; only lines that came since the last call are read."""
        count = len(self._messages)
        if self._summed < count:
            self._totals = sum_up(
                self._totals, islice(walk(self._messages, self._summed), count - self._summed)
            )
            self._summed = count
        return self._totals


def _merged(begins: array[int], more: Iterable[tuple[str, int]]) -> array[int]:
    return array("Q", sorted([*begins, *sorted(begin(id_, at) for id_, at in more)]))


def sum_up(sums: Totals, lines: Iterable[bytes]) -> Totals:
    """Add to ``sums`` what ``lines`` say."""
    turns, used = sums.turns, astuple(sums.usage)
    for raw in lines:
        if b'"user"' not in raw and b'"usage"' not in raw:
            continue
        line = decode(raw)
        turns += line.get("role") == "user"
        used = tuple(map(add, used, spent(line.get("usage"))))
    return Totals(turns, Usage(*used))


def copies_behind(line: Mapping[str, Any]) -> int:
    """Return how many lines behind a ``compact`` line stand in the archive that it names, too."""
    kept = line.get("kept") if line.get("kind") == "compact" else 0
    return kept if type(kept) is int and kept > 0 else 0


def _is_record(line: Mapping[str, Any]) -> bool:
    return line.get("role") == "system" and type(line.get("kind")) is str


def usage_of(line: Mapping[str, Any]) -> Usage:
    """Read what a stored line says that its request used."""
    return Usage(*spent(line.get("usage")))


def spent(usage: object) -> tuple[int, int, float, int, int, int]:
    """Read the fields of a ``Usage`` out of a stored one; what cannot be meant counts as 0."""
    if not isinstance(usage, dict):
        return 0, 0, 0.0, 0, 0, 0
    prompt, completion, cost = usage.get("prompt"), usage.get("completion"), usage.get("cost_usd")
    if not (type(prompt) is int and type(completion) is int and abs(prompt) + abs(completion) < _MAX):
        prompt, completion = int(_number(prompt)), int(_number(completion))
    if not (type(cost) is float and -_MAX < cost < _MAX):
        cost = _number(cost)
    # An older version wrote a cost of 0 where it knew none.
    unpriced = 0 if cost else prompt + completion
    if len(usage) == _OLDER_FIELDS:
        return prompt, completion, cost, 0, 0, unpriced
    cached, written = int(_number(usage.get("cached"))), int(_number(usage.get("cache_written")))
    return prompt, completion, cost, cached, written, int(_number(usage.get("unpriced", unpriced)))


def _is_plain(id_: str) -> bool:
    """Say whether every JSON writer spells the id alike, so that its bytes can be searched for."""
    return id_.isascii() and id_.isprintable() and not any(c in id_ for c in '"\\/')


def _number(value: object) -> float:
    if type(value) is int or type(value) is float:
        return float(value) if abs(value) < _MAX else 0.0
    return 0.0


VERSION = 2
_MAGIC = b"cg-index"
# In the byte order of this machine: the index of another one is not believed.
_HEAD = struct.Struct("=8sIQQQqqQQQQQqqqdqqq16s")
_DIGEST_BYTES = 16
_SAMPLES = 32
_SAMPLE_BYTES = 4096
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
        found = read_file(path)
    except StoreError:
        return None
    return unpack(found[0]) if found is not None else None


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
