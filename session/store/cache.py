"""What is kept of the conversations between turns: those used last, bounded in bytes."""

from __future__ import annotations

import asyncio
import os
import struct
import threading
from array import array
from collections import OrderedDict
from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from typing import TypeVar

import structlog

import durable
from session.disk.state import locked
from session.disk.threads import start_thread
from session.errors import Fenced, StoreError
from session.store.state import StoreState
from session.store.writer import TranscriptWriter
from session.transcript.index import Saved, identity_of, sample, write_index
from session.transcript.key import SessionKey
from session.transcript.lines import Lines
from session.transcript.loading import WHOLE_BYTES

T = TypeVar("T")
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
        # Raised by a clearing: turns that run write nothing from then on.
        self.epoch = 0
        # Lines of the last turn that are being committed; nothing else of the key runs until they are.
        self.ahead: Ahead | None = None
        # Whether anything was written since it was last looked at, for those who share the conversation.
        self.wrote = False

    def current(self) -> bool:
        """Say whether nothing must be read before it is used; one call that touches no disk."""
        writer = self.writer
        return writer is not None and not self.turn.locked() and writer.journal.is_read and writer.current()

    def begin_write(self, epoch: int) -> None:
        """Let whoever opened the conversation in this epoch write.

        Raises:
            Fenced: it was cleared or replaced meanwhile.
        """
        if self.epoch != epoch:
            raise Fenced("this conversation was cleared or replaced meanwhile")
        self.wrote = True

    async def run(self, state: StoreState, job: Callable[[], T]) -> T:
        """Run one disk job of the key in a thread.

        Raises:
            StoreError: the disk refused, at whatever step; else what the job does.
        """
        await state.open()
        async with self.turn:
            try:
                return await start_thread(job, name="disk")
            except OSError as error:
                raise StoreError(
                    f"the disk reported an error: {error.strerror or error}", hint="check the disk"
                ) from error

    async def write(self, epoch: int, work: Callable[[], Awaitable[T]]) -> T:
        """Run a coroutine that writes while no other job of the key runs, to its end even if cancelled.

        Raises:
            Fenced: as ``begin_write``; else what the coroutine does.
        """

        async def alone() -> T:
            async with self.turn:
                self.begin_write(epoch)
                return await work()

        task = asyncio.ensure_future(alone())
        try:
            return await asyncio.shield(task)
        except asyncio.CancelledError:
            await asyncio.wait([task])
            if not task.cancelled():
                # Nobody is left to tell.
                task.exception()
            raise

    @property
    def weight(self) -> int:
        """About how many bytes of memory it takes."""
        writer = self.writer
        return _HELD_COST + (
            0 if writer is None else writer.transcript.weight + 3 * writer.journal.state.size
        )

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
    found = os.fstat(file.fd)
    finish = writer.transcript.index.snapshot()

    def work() -> None:
        # Set even where writing fails: it is tried again when as much has come again.
        lines.saved_bytes = end
        try:
            saved = Saved(
                identity_of(found), body_at, end, array("Q", starts), finish(), sample(file.fd, body_at, end)
            )
            # Under the lock nobody clears or ends the session between the look and the write.
            with locked(layout.lock(stem)):
                # While it is open no other file has its numbers.
                if os.path.samestat(os.stat(transcript), found):  # noqa: PTH116
                    write_index(path, saved)
        except FileNotFoundError:
            return
        except (OSError, StoreError, struct.error) as error:
            log.warning("index.not_written", file=path.name, error=str(error))

    return work
