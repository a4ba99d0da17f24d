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

    __slots__ = ("ahead", "epoch", "key", "pins", "turn", "weighed", "writer", "wrote")

    def __init__(self, key: SessionKey) -> None:
        self.key = key
        self.pins = 0
        # Its share in the sum of the handles.
        self.weighed = 0
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
        if self.writer is None:
            return _HELD_COST
        return _HELD_COST + self.writer.transcript.weight + 3 * self.writer.journal.state.size

    def slim(self) -> None:
        """Have a transcript that grew big in memory read anew, which leaves its newest lines there alone."""
        if self.writer is not None and self.writer.transcript.line_bytes > 2 * WHOLE_BYTES:
            transcript = self.writer.transcript
            if transcript.size > WHOLE_BYTES and not transcript.whole:
                self.writer.forget()


class Handles:
    """The handles of a store; those used longest ago are given up first, never one in use.

    Each use ends with a few steps, however many are kept: where there are many chats the cache is full.
    """

    def __init__(self, max_bytes: int) -> None:
        self._max_bytes = max_bytes
        self._handles: dict[SessionKey, Handle] = {}
        # Those that nobody uses, the one used longest ago first.
        self._idle: OrderedDict[SessionKey, Handle] = OrderedDict()
        self.indexer = Indexer()
        self.weight = 0
        self.hits = self.misses = 0

    def get(self, key: SessionKey) -> Handle | None:
        """Look at a handle without using it."""
        return self._handles.get(key)

    def enter(self, key: SessionKey) -> Handle:
        """Begin to use a handle."""
        handle = self._handles.get(key)
        if handle is None:
            handle = self._handles[key] = Handle(key)
        self._idle.pop(key, None)
        handle.pins += 1
        return handle

    def leave(self, handle: Handle) -> None:
        """End one use of a handle; give up others while they are too heavy together."""
        handle.pins -= 1
        if handle.pins == 0:
            self._idle[handle.key] = handle
            if handle.writer is not None:
                self.indexer.offer(handle.writer)
                handle.slim()
        weight = handle.weight
        self.weight += weight - handle.weighed
        handle.weighed = weight
        while self.weight > self._max_bytes and self._idle:
            key, oldest = self._idle.popitem(last=False)
            del self._handles[key]
            self.weight -= oldest.weighed


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
