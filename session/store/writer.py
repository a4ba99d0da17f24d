"""Writes one transcript under its fence: append, checkpoint, repair. Runs in threads, never on the loop."""

from __future__ import annotations

import contextlib
import os
from collections.abc import Callable, Iterator, Mapping, Sequence
from datetime import datetime
from itertools import chain
from pathlib import Path
from typing import Any, TypeVar

import durable
from durable import begin_sync, make_folder, write_all, write_lines
from session.disk.layout import Layout, OpenFile, Seen, append_whole, copy_rest, seen, sync_or_cut, taken
from session.disk.threads import WriteThenSync, finished
from session.errors import Fenced, StoreError
from session.store.fence import Busy, Fence, Held, Wait
from session.store.original import keep_original
from session.transcript.damage import Damage
from session.transcript.index_file import remove_index
from session.transcript.key import SessionKey, source_of
from session.transcript.lines import HeldFile, Lines
from session.transcript.loading import load
from session.transcript.transcript import Transcript, decode, dump, fresh

_TRIES = 20
# What may be read or copied beside the short jobs of other keys.
_QUICK_BYTES = 2**20
T = TypeVar("T")
Line = tuple[bytes, Mapping[str, Any]]
OnlyIf = Callable[[Transcript], bool]


class Moved(Exception):
    """The file under this stem belongs to another key; the stem must be resolved anew."""


class Changed(Exception):
    """Somebody else wrote the file since we looked; it was read again, the files must be opened again."""


class TranscriptWriter:
    """One transcript: what it holds, what its file looked like, and every way of writing it.

    One job at a time: the caller serialises them. What it holds may be read from the loop at any moment.
    """

    __slots__ = (
        *("_kept", "_name", "_seen", "_unread", "clock"),
        *("fence", "key", "layout", "stem", "transcript"),
    )

    def __init__(
        self, layout: Layout, stem: str, key: SessionKey, *, fence: Fence, clock: Callable[[], datetime]
    ) -> None:
        self.layout = layout
        self.stem = stem
        self.key = key
        self._name = str(layout.transcript(stem))
        self._kept = fence.kept
        self.fence = fence
        self.clock = clock
        self.transcript = self._empty()
        self._seen: Seen | None = None
        self._unread = True

    @property
    def path(self) -> Path:
        """The file; made when asked for: it takes three times the memory of its name."""
        return Path(self._name)

    def _empty(self) -> Transcript:
        now = self.clock()
        inner = {"session_id": durable.new_id(now), **source_of(self.key)}
        return fresh(self.stem, self.key, now=now, inner=inner)

    @property
    def exists(self) -> bool:
        """Whether there was a file at the last look."""
        return self._seen is not None

    def forget(self) -> None:
        """Let the next look read the file again, whatever it looks like."""
        self._unread = True

    def refresh(self, *, quick: bool = False) -> None:
        """Read the file if it is not as we left it.

        Raises:
            Busy: it is large, and this is a moment for ``quick`` work.
            Moved: it belongs to another key.
            StoreError: it cannot be read.
        """
        now = seen(self._name)
        if not self._unread and not self._is_broken() and now == self._seen:
            return
        if quick and now is not None and now[1] > _QUICK_BYTES:
            raise Busy
        index = None if self._is_broken() else self.layout.index(self.stem)
        found = load(self.path, self.stem, index)
        if found is None:
            if self._unread or self._seen is not None:
                self.transcript = self._empty()
            self._seen = None
        else:
            if found[0].key != self.key:
                raise Moved
            self.transcript, self._seen = found
        self._unread = False

    def _is_broken(self) -> bool:
        """Say whether the file was found to hold other lines than those that are known of it."""
        messages = self.transcript.messages
        return isinstance(messages, Lines) and messages.broken

    def current(self) -> bool:
        """Say whether the file is as we left it."""
        return not self._unread and not self._is_broken() and seen(self._name) == self._seen

    def owned(self) -> int | None:
        """Return the epoch if the key is ours; three calls that touch no disk."""
        record = self.fence.peek()
        return None if record is None else self.fence.epoch_of(record, self.key)

    def claim(self, wait: Wait | None, *, anew: bool = False) -> int:
        """Own the key and hold what its file holds; return the epoch.

        Raises:
            Busy, Moved, NewerFormat, StoreError.
        """
        self.refresh(quick=wait is None)
        with self.fence.hold(wait) as held:
            if held.record.key not in (None, self.key) and not self.exists:
                raise Moved
            epoch = held.claim(self.key, anew=anew)
            self.refresh(quick=wait is None)
            return epoch

    @contextlib.contextmanager
    def writing(self, epoch: int, wait: Wait | None) -> Iterator[tuple[Held, int | None]]:
        """Open the file, then hold the lock, for a writer with ``epoch`` that knows the file as it is.

        Raises:
            Busy, Fenced, StoreError.
            Changed: it was not as we left it, and has been read again: enter anew.
        """
        # Opened before the lock is taken: a writer that wakes overtaken then holds a file that nobody reads.
        file = taken(self._kept, self._name)
        try:
            with self.fence.hold(wait) as held:
                held.prove(epoch)
                self._compare(file, quick=wait is None)
                try:
                    yield held, None if file is None else file.fd
                except (Busy, Changed):
                    raise
                except (OSError, StoreError) as error:
                    self.forget()
                    # Who was overtaken meets all kinds of errors; ``check`` tells the true one.
                    held.check()
                    if isinstance(error, StoreError):
                        raise
                    raise StoreError(
                        f"the disk reported an error: {error.strerror}", hint="check the disk"
                    ) from error
                except BaseException:
                    self.forget()
                    raise
        except BaseException:
            if file is not None:
                os.close(file.fd)
            raise
        if file is not None:
            self._put_back(file)

    def _put_back(self, file: OpenFile) -> None:
        """Leave the file open for the next write, where it is still the one that is there."""
        if self._kept is None or self._unread or self._seen is None or self._seen[0] != file.inode:
            os.close(file.fd)
        else:
            self._kept.put(self._name, file)

    def _compare(self, file: OpenFile | None, *, quick: bool) -> None:
        """Make sure, under the lock, that the name means the open file, and that it is as we left it.

        Raises:
            Busy, Moved, StoreError: as ``refresh``.
            Changed: it was not, and has been read again.
        """
        now = seen(self._name)
        if not self._unread and now == self._seen:
            if (None if now is None else now[0]) == (None if file is None else file.inode):
                return
            # The file is as we left it, but the descriptor that was kept is of another one.
            raise Changed
        self._unread = True
        try:
            self.refresh(quick=quick)
        except Moved:
            # Another key was the first under this file name: the next claim gives ours a name of its own.
            raise Fenced("the file of this conversation was taken by another one") from None
        raise Changed

    def append(self, epoch: int, lines: Sequence[Line], wait: Wait | None) -> int:
        """Write message lines in one call and sync them; return the index of the first.

        Raises:
            Busy, Fenced, StoreError.
        """
        first = finished(self.begin_append(epoch, lines, wait))
        assert first is not None
        return first

    def begin_append(
        self, epoch: int, lines: Sequence[Line], wait: Wait | None, *, only_if: OnlyIf | None = None
    ) -> int | WriteThenSync[int | None] | None:
        """Write message lines as ``append`` does, but for the sync; the lock is held until that is done.

        Returns:
            What syncs them, or the index of the first line if all is done already. None: the transcript is no
            longer the one ``only_if`` accepts; nothing was written.

        Raises:
            Busy, Fenced, StoreError.
        """
        return again(lambda: self._append(epoch, lines, wait, only_if))

    def _append(
        self, epoch: int, lines: Sequence[Line], wait: Wait | None, only_if: OnlyIf | None
    ) -> int | WriteThenSync[int | None] | None:
        with contextlib.ExitStack() as stack:
            held, fd = stack.enter_context(self.writing(epoch, wait))
            transcript = self.transcript
            if only_if is not None and not only_if(transcript):
                return None
            first = len(transcript.messages)
            if fd is None or transcript.needs_checkpoint:
                if wait is None and transcript.size > _QUICK_BYTES:
                    raise Busy
                self.renew(held, fd, more=lines)
                return first
            size = transcript.size
            # A crash in mid-write left half a line: it goes first, or the new line would be glued to it.
            if transcript.torn:
                os.ftruncate(fd, transcript.keep)
                size = transcript.size = transcript.keep
            data = b"".join(raw + b"\n" for raw, _ in lines)
            append_whole(fd, b"\n" + data if transcript.open_end else data, size=size)
            rest = stack.pop_all()

        def sync() -> int | None:
            with rest:
                sync_or_cut(fd, size)
                # Who was frozen here may have been overtaken: these lines are in a file that is no longer it.
                held.check()
                self._seen = seen(fd)
                transcript.size = transcript.keep = size + len(data) + transcript.open_end
                transcript.open_end = False
                for raw, line in lines:
                    transcript.grow(raw, line)
                return first

        return WriteThenSync(sync, lambda: begin_sync(fd, size))

    def checkpoint(
        self,
        epoch: int,
        *,
        inner: Mapping[str, Any] | None,
        offset: int | None,
        wait: Wait | None,
        of: str | None = None,
    ) -> bool:
        """Renew line 1: ``inner`` is merged into its metadata (None removes a name), ``offset`` replaces.

        Returns:
            False where ``of`` names a session that is no longer the active one; nothing was written.

        Raises:
            Busy, Fenced, StoreError.
        """

        def once() -> bool:
            with self.writing(epoch, wait) as (held, fd):
                if of is not None and self.transcript.session_id != of:
                    return False
                self.renew(held, fd, inner=merged(self.transcript.inner, inner), offset=offset)
                return True

        done: bool = again(once)
        return done

    def renew(
        self,
        held: Held,
        fd: int | None,
        *,
        inner: Mapping[str, Any] | None = None,
        offset: int | None = None,
        more: Sequence[Line] = (),
    ) -> None:
        """Put a new file in the place of the old: line 1, the messages with their bytes, then ``more``."""
        transcript = self.transcript
        if fd is not None and transcript.needs_copy:
            self.keep_original(held, fd)
        head = transcript.head(now=self.clock(), inner=inner, offset=offset)
        make_folder(self.path.parent)
        moved: HeldFile | None = None
        try:
            with held.replacing(self.path, new=fd is None) as target:
                write_all(target, head)
                self.write_body(target, fd)
                write_lines(target, (raw for raw, _ in more))
                if isinstance(transcript.messages, Lines):
                    moved = HeldFile(os.dup(target))
                written = seen(target)
        except FileExistsError:
            self.forget()
            # Another process wrote the first line meanwhile: it is read before anything goes behind it.
            raise Changed from None
        self._seen = written
        held.check()
        if isinstance(transcript.messages, Lines) and moved is not None:
            transcript.messages.rebase(moved, len(head))
        self._settle(head, more)

    def begin_anew(
        self, held: Held, new: Transcript, *, body: Sequence[bytes] = (), more: Sequence[Line] = ()
    ) -> None:
        """Put a new transcript in the place of the file: line 1, the lines of ``body``, then ``more``.

        Where there is a body, what is held is read anew: whoever asks next sees what stands there now.
        """
        head = dump(new.metadata) + b"\n"
        with held.replacing(self.path) as target:
            write_all(target, head)
            write_lines(target, chain(body, (raw for raw, _ in more)))
            written = seen(target)
        self._seen = written
        remove_index(self.layout.index(self.stem))
        held.check()
        if body:
            self.forget()
            self.refresh()
            return
        self.transcript = new
        self._settle(head, more)

    def remove(self, held: Held) -> None:
        """Delete the transcript, and what is derived of it."""
        held.remove(self.path)
        remove_index(self.layout.index(self.stem))
        self.forget()

    def write_body(self, target: int, fd: int | None) -> None:
        """Write all messages behind a new line 1: by the kernel where the old file is sound."""
        transcript = self.transcript
        if fd is None or (transcript.needs_checkpoint and not isinstance(transcript.messages, Lines)):
            write_lines(target, transcript.messages)
        elif transcript.keep > transcript.body_at:
            copy_rest(fd, target, transcript.body_at, until=transcript.keep)
            if transcript.open_end:
                write_all(target, b"\n")

    def _settle(self, head: bytes, more: Sequence[Line]) -> None:
        """Let what is held say what the renewed file says."""
        transcript = self.transcript
        transcript.metadata = decode(head)
        transcript.last_consolidated = transcript.metadata["last_consolidated"]
        transcript.damage = Damage(heads=1)
        transcript.open_end = transcript.whole = False
        transcript.body_at = len(head)
        for raw, line in more:
            transcript.grow(raw, line)
        assert self._seen is not None
        transcript.size = transcript.keep = self._seen[1]

    def keep_original(self, held: Held, fd: int) -> None:
        """Keep the file as it was read, beside it, before bytes of it are left out."""
        keep_original(self.path, held, fd, now=self.clock())


def again(once: Callable[[], T]) -> T:
    """Run ``once`` until the file holds still between looking and locking."""
    for _ in range(_TRIES):
        try:
            return once()
        except Changed:
            continue
    raise StoreError("the file changes all the time", hint="check whether another program writes to it")


def merged(old: Mapping[str, Any], new: Mapping[str, Any] | None) -> dict[str, Any]:
    """Lay new metadata over the old; a value of None removes the name."""
    return {name: value for name, value in {**old, **(new or {})}.items() if value is not None}
