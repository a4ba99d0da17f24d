"""What is kept of the conversations between turns: those used last, bounded in bytes."""

from __future__ import annotations

import asyncio
import os
import struct
import threading
from array import array
from collections import OrderedDict
from collections.abc import Callable
from dataclasses import dataclass

import structlog

import durable
from session.disk.layout import opened
from session.errors import StoreError
from session.store.journal_rows import JournalRows
from session.store.key_lock import key_locked
from session.store.writer import TranscriptWriter
from session.transcript.index_file import Saved, identity_of, sample, write_index
from session.transcript.key import SessionKey
from session.transcript.lines import Lines
from session.transcript.loading import WHOLE_BYTES

# What a key takes that has no message yet: its writers, line 1, names of files.
_HELD_COST = 3900
# Transcripts that read from an open file while nobody uses them.
MAX_FILES = 64


@dataclass(frozen=True, slots=True)
class Ahead:
    """Lines that were handed over before they were durable, and the task that sees them through."""

    commit: durable.Commit
    task: asyncio.Task[None]

    async def durable(self) -> None:
        """Return when they are durable, even if the caller is cancelled.

        Raises:
            Fenced, StoreError: they could not be written.
        """
        await asyncio.wait([self.task])
        self.task.result()


class Handle:
    """The writers of one key, and who uses them."""

    __slots__ = (
        "ahead",
        "epoch",
        "journal_rows",
        "key",
        "pins",
        "reads",
        "turn",
        "weighed",
        "writer",
        "wrote",
    )

    def __init__(self, key: SessionKey) -> None:
        self.key = key
        self.pins = 0
        # Its share in the sum of the handles.
        self.weighed = 0
        # Whether it was counted among those that hold a file open.
        self.reads = False
        # One disk job at a time.
        self.turn = asyncio.Lock()
        self.writer: TranscriptWriter | None = None
        self.journal_rows: JournalRows | None = None
        # Raised by a clearing: turns that run write nothing from then on.
        self.epoch = 0
        # Lines of the last turn that are being committed; nothing else of the key runs until they are.
        self.ahead: Ahead | None = None
        # Whether anything was written since it was last looked at, for those who share the conversation.
        self.wrote = False

    @property
    def held(self) -> tuple[TranscriptWriter, JournalRows] | None:
        """The writers, where there are any."""
        if self.writer is None or self.journal_rows is None:
            return None
        return self.writer, self.journal_rows

    def current(self) -> bool:
        """Say whether nothing must be read before it is used; one call that touches no disk."""
        if self.turn.locked() or self.writer is None or self.journal_rows is None:
            return False
        return self.journal_rows.is_read and self.writer.current()

    @property
    def weight(self) -> int:
        """About how many bytes of memory it takes."""
        held = 0 if self.writer is None else self.writer.transcript.weight
        return _HELD_COST + held + (0 if self.journal_rows is None else 3 * self.journal_rows.state.size)

    @property
    def reads_from_file(self) -> bool:
        """Whether its transcript holds a file open to read older lines from."""
        return self.writer is not None and isinstance(self.writer.transcript.messages, Lines)

    @property
    def is_prepared(self) -> bool:
        """Whether something is kept of its history for the next request."""
        return self.writer is not None and self.writer.transcript.prepared is not None

    def shed(self) -> None:
        """Give up what was prepared of the history for the next request."""
        if self.writer is not None:
            self.writer.transcript.prepared = None

    def slim(self) -> None:
        """Have a transcript that grew big in memory read anew, which leaves its newest lines there alone."""
        if self.writer is not None and self.writer.transcript.line_bytes > 2 * WHOLE_BYTES:
            transcript = self.writer.transcript
            if transcript.size > WHOLE_BYTES and not transcript.whole:
                self.writer.forget()


class Handles:
    """The handles of a store; those used longest ago are given up first, never one in use.

    Before any of them goes what was prepared of their histories, which takes less to make anew. Each use ends
    with a few steps, however many are kept: a full cache is the rule where there are many chats.
    """

    def __init__(self, max_bytes: int, *, max_files: int = MAX_FILES) -> None:
        self._max_bytes = max_bytes
        self._max_files = max_files
        self._handles: dict[SessionKey, Handle] = {}
        # Those that nobody uses, the one used longest ago first; and which of them have what may go alone.
        self._idle: OrderedDict[SessionKey, Handle] = OrderedDict()
        self._prepared: OrderedDict[SessionKey, Handle] = OrderedDict()
        self._reading: OrderedDict[SessionKey, Handle] = OrderedDict()
        self.indexer = Indexer()
        self.weight = 0
        self.hits = self.misses = 0
        self._files = 0

    def found(self, held: bool) -> None:
        """Count an opening: of what is held, or of what must be read or claimed before."""
        self.hits += held
        self.misses += not held

    def get(self, key: SessionKey) -> Handle | None:
        """Look at a handle without using it."""
        return self._handles.get(key)

    def enter(self, key: SessionKey) -> Handle:
        """Begin to use a handle."""
        handle = self._handles.get(key)
        if handle is None:
            handle = self._handles[key] = Handle(key)
        elif handle.pins == 0:
            self._take(key)
        handle.pins += 1
        return handle

    def leave(self, handle: Handle) -> None:
        """End one use of a handle; give up others while they are too heavy together."""
        handle.pins -= 1
        if handle.pins == 0 and handle.writer is not None:
            self.indexer.offer(handle.writer)
            handle.slim()
        self._count(handle, handle.weight, reads=handle.reads_from_file)
        if handle.pins == 0:
            self._rest(handle)
        while self.weight > self._max_bytes and self._prepared:
            _, shed = self._prepared.popitem(last=False)
            shed.shed()
            self._count(shed, shed.weight, reads=shed.reads_from_file)
        while self._files > self._max_files and self._reading:
            self._give_up(next(iter(self._reading)))
        while self.weight > self._max_bytes and self._idle:
            self._give_up(next(iter(self._idle)))

    def close(self) -> None:
        """Wait until what is being written is written."""
        self.indexer.close()

    def _rest(self, handle: Handle) -> None:
        self._idle[handle.key] = handle
        if handle.is_prepared:
            self._prepared[handle.key] = handle
        if handle.reads:
            self._reading[handle.key] = handle

    def _take(self, key: SessionKey) -> None:
        for line in (self._idle, self._prepared, self._reading):
            line.pop(key, None)

    def _give_up(self, key: SessionKey) -> None:
        self._take(key)
        self._count(self._handles.pop(key), 0, reads=False)

    def _count(self, handle: Handle, weight: int, *, reads: bool) -> None:
        self.weight += weight - handle.weighed
        self._files += reads - handle.reads
        handle.weighed, handle.reads = weight, reads


log = structlog.get_logger(__name__)
# Bytes of lines that no index knows: more would take too long to read at the next opening.
STALE_BYTES = 2**21


class Indexer:
    """Takes what is held of a transcript while nobody uses it, and puts it on disk as its index."""

    def __init__(self) -> None:
        self._thread: threading.Thread | None = None

    def offer(self, writer: TranscriptWriter) -> None:
        """Write the index where it is missing or long out of date; nothing may be written meanwhile.

        Where an older one is still being written it is left for the next time.
        """
        lines = writer.transcript.messages
        if not isinstance(lines, Lines) or lines.body_bytes - lines.saved_bytes < STALE_BYTES:
            return
        # The last line may still grow: its newline is yet to come.
        if writer.transcript.open_end:
            return
        if (self._thread is not None and self._thread.is_alive()) or not writer.current():
            return
        work = begin(writer, lines)
        self._thread = threading.Thread(target=work, name="disk-index", daemon=True)
        self._thread.start()

    def close(self) -> None:
        """Wait until what is being written is written."""
        if self._thread is not None:
            self._thread.join()


def begin(writer: TranscriptWriter, lines: Lines) -> Callable[[], None]:
    """Copy what an index is made of, and return what writes it; not where the file is gone by then."""
    layout, stem = writer.layout, writer.stem
    path, transcript = layout.index(stem), str(layout.transcript(stem))
    file, body_at, starts, end = lines.snapshot()
    identity, indexed = identity_of(os.fstat(file.fd)), opened(file.fd)
    finish = writer.transcript.index.snapshot()

    def work() -> None:
        # Set even where writing fails: it is tried again when as much has come again.
        lines.saved_bytes = end
        try:
            saved = Saved(identity, body_at, end, array("Q", starts), finish(), sample(file.fd, body_at, end))
            # Under the lock nobody clears or ends the session between the look and the write.
            with key_locked(layout, stem):
                if indexed.is_at(transcript):
                    write_index(path, saved)
        except (OSError, StoreError, struct.error) as error:
            log.warning("index.not_written", file=path.name, error=str(error))

    return work
