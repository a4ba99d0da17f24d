"""Writes one transcript: lines are appended, all else renews the file, and damaged originals are kept."""

from __future__ import annotations

import asyncio
import contextlib
import os
import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from datetime import datetime
from itertools import chain
from pathlib import Path
from typing import Any, TypeVar

import structlog

import durable
from durable import (
    Append,
    Change,
    Commit,
    Conflict,
    Put,
    Remove,
    StateUnavailable,
    beside_file,
    make_folder,
    new_file,
    new_id,
    sync_folder,
    write_all,
    write_lines,
)
from session.disk.layout import Layout, Seen, copy_rest, seen
from session.errors import Fenced, StoreError
from session.store.journal_rows import JournalRows
from session.store.state import StoreState
from session.transcript.index import remove_index
from session.transcript.key import SessionKey, mark_of, source_of
from session.transcript.lines import HeldFile, Lines
from session.transcript.loading import load
from session.transcript.transcript import Damage, Transcript, decode, dump, fresh

log = structlog.get_logger(__name__)
_MARK = ".corrupt-"
_COPY = re.compile(r"(.+)\.corrupt-[0-9A-Z]{26}", re.DOTALL)
# A file name has 255 bytes, a ULID 26.
_MAX_NAME_BYTES = 255 - len(_MARK) - 26


def keep_original(path: Path, fd: int, *, now: datetime) -> Path:
    """Keep the open file of ``path`` as it was read; return the copy, which is the same file where possible.

    It is called ``<name>.corrupt-<ULID>``. Where that is too long for a file system the stem is cut, and a
    mark of the whole one stands behind it: ``<cut>~<mark>.jsonl.corrupt-<ULID>``.

    Raises:
        OSError: the disk refused.
    """
    copy = path.with_name(f"{_name_in_copies(path.name)}{_MARK}{new_id(now)}")
    os.fchmod(fd, 0o600)
    try:
        # By the descriptor: it names this very inode, whatever stands under the path by now.
        os.link(f"/proc/self/fd/{fd}", copy, follow_symlinks=True)
    except OSError:
        with new_file(copy) as target:
            copy_rest(fd, target, 0)
            os.fsync(target)
    sync_folder(copy.parent)
    log.warning("transcript.copied", file=path.name, copy=copy.name)
    return copy


def originals_of(path: Path) -> list[Path]:
    """List what was kept of a transcript, which need not be there any more."""
    name = _name_in_copies(path.name)
    try:
        found = sorted(path.parent.iterdir())
    except (FileNotFoundError, NotADirectoryError):
        return []
    copies = [(each, _COPY.fullmatch(each.name)) for each in found if each.is_symlink() or not each.is_dir()]
    return [copy for copy, match in copies if match is not None and match[1] == name]


def _name_in_copies(name: str) -> str:
    if _cut(name, _MAX_NAME_BYTES) == name:
        return name
    stem, dot, ending = name.rpartition(".")
    end = f"~{mark_of(stem)}{dot}{ending}"
    return _cut(stem, _MAX_NAME_BYTES - len(end)) + end


def _cut(name: str, size: int) -> str:
    raw = name.encode("utf-8", "surrogateescape")
    return name if len(raw) <= size else raw[:size].decode("utf-8", "ignore")


_TRIES = 20
T = TypeVar("T")
Line = tuple[bytes, Mapping[str, Any]]
OnlyIf = Callable[[Transcript], bool]


class Moved(Exception):
    """The file under this stem belongs to another key; the stem must be resolved anew."""


class Changed(Exception):
    """Somebody else wrote the file since we looked; it was read again."""


class TranscriptWriter:
    """One transcript: what it holds, what its file looked like, and every way of writing it.

    One job at a time: the caller serialises them. What it holds may be read from the loop at any moment. A
    change by another process is noticed when the file is written, and nothing is written then.
    """

    __slots__ = (
        "_name",
        "_seen",
        "_unread",
        "clock",
        "journal",
        "key",
        "layout",
        "state",
        "stem",
        "transcript",
    )

    def __init__(
        self, layout: Layout, stem: str, key: SessionKey, *, state: StoreState, clock: Callable[[], datetime]
    ) -> None:
        self.layout = layout
        self.stem = stem
        self.key = key
        self.state = state
        self._name = str(layout.transcript(stem))
        self.clock = clock
        self.journal = JournalRows(key, clock=clock)
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

    def refresh(self) -> None:
        """Read the file if it is not as we left it.

        Raises:
            Moved: it belongs to another key.
            StoreError: it cannot be read.
        """
        now = seen(self._name)
        if not self._unread and not self._is_broken() and now == self._seen:
            return
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

    # -- appending -------------------------------------------------------------------------------------

    async def append(
        self,
        lines: Sequence[Line],
        changes: Sequence[Change] = (),
        *,
        only_if: OnlyIf = lambda _: True,
    ) -> int | None:
        """Commit message lines, together with other changes; then they are in the file.

        Args:
            lines: each encoded, and as it was.
            changes: rows that are written with them.
            only_if: whether the transcript is still one to which they belong.

        Returns:
            The index of the first line; None: ``only_if`` says no, and nothing was written.

        Raises:
            Fenced: another key took the file; nothing was written.
            StoreError: the disk refused; nothing was written.
        """
        for _ in range(_TRIES):
            transcript = self.transcript
            if not only_if(transcript):
                return None
            first = len(transcript.messages)
            try:
                if self._seen is not None and transcript.needs_checkpoint:
                    # By itself: a crash before the rename would lose lines whose changes are committed.
                    await asyncio.to_thread(self.mend)
                    continue
                await self._append(transcript, lines, changes)
            except Conflict:
                await asyncio.to_thread(self._read_anew)
                continue
            except OSError:
                return await asyncio.to_thread(self._settle_append, transcript, lines)
            return first
        raise _restless()

    def _settle_append(self, transcript: Transcript, lines: Sequence[Line]) -> int:
        """Bring lines that are durable in the state database into the file; return the index of the first.

        Raises:
            Fenced: the file was replaced meanwhile.
        """
        session_id = transcript.session_id
        try:
            self._read_anew()
        except Fenced:
            raise
        except StoreError:
            # The next write or the next flush tries again; whatever reads here knows the lines by then.
            for raw, line in lines:
                transcript.grow(raw, line)
        if self.transcript.session_id != session_id:
            raise Fenced("the file of this conversation was replaced by another one")
        return len(self.transcript.messages) - len(lines)

    def _read_anew(self) -> None:
        self.state.settle_now(self._name)
        self.forget()
        try:
            self.refresh()
        except Moved:
            # Another key was the first under this file name: the next use gives ours a name of its own.
            raise Fenced("the file of this conversation was taken by another one") from None

    async def _append(self, transcript: Transcript, lines: Sequence[Line], changes: Sequence[Change]) -> None:
        data, cut, head = b"".join(raw + b"\n" for raw, _ in lines), None, b""
        if self._seen is None:
            head = transcript.head(now=self.clock())
            data = head + data
        elif transcript.torn:
            # A crash in mid-write left half a line: it goes first, or the new line would be glued to it.
            cut = transcript.keep
        if transcript.open_end:
            data = b"\n" + data
        append = Append(self._name, self._seen, data, transcript.session_id, cut)
        (now,) = await self.state.write(changes, [append])
        self._seen = now
        if head:
            self._settle(head, lines)
            return
        self._appended(len(data))
        for raw, line in lines:
            transcript.grow(raw, line)

    def _appended(self, size: int) -> None:
        self.transcript.size = self.transcript.keep = self.transcript.keep + size
        self.transcript.open_end = False

    def append_ahead(self, lines: Sequence[Line]) -> Commit | None:
        """Hand lines over to be committed; they are known at once, and ``finish_ahead`` must follow.

        Returns:
            None: it cannot be done so, and nothing was done.
        """
        transcript = self.transcript
        if self._seen is None or transcript.needs_checkpoint or transcript.torn or transcript.open_end:
            return None
        data = b"".join(raw + b"\n" for raw, _ in lines)
        commit = self.state.submit((), [Append(self._name, self._seen, data, transcript.session_id)])
        if commit is not None:
            for raw, line in lines:
                transcript.grow(raw, line)
        return commit

    async def finish_ahead(self, commit: Commit, lines: Sequence[Line]) -> None:
        """Wait until lines are durable, and append them again where something else was written before.

        Raises:
            Fenced, StoreError: as ``append``; nothing was written.
        """
        try:
            (self._seen,) = await commit.done
            self._appended(sum(len(raw) + 1 for raw, _ in lines))
        except Conflict:
            # They are known and were not written: whatever fails from here on, nobody may read them.
            self.forget()
            await asyncio.to_thread(self._read_anew)
            await self.append(lines)
        except OSError:
            # The lines are durable in the state database, which brings them into the file.
            await asyncio.to_thread(self._settle_append, self.transcript, ())
        except BaseException as error:
            self.forget()
            if isinstance(error, StateUnavailable):
                raise StoreError(str(error), hint=error.hint) from error
            raise

    # -- renewing --------------------------------------------------------------------------------------

    @contextlib.contextmanager
    def reading(self) -> Iterator[int | None]:
        """Open the file as it is known, for a change that takes bytes of it over; None where there is none.

        Raises:
            StoreError: it cannot be opened.
            Changed: it was not as we left it, and has been read again: enter anew.
            Moved: it belongs to another key.
        """
        try:
            fd: int | None = os.open(self._name, os.O_RDONLY | os.O_CLOEXEC)
        except FileNotFoundError:
            fd = None
        except OSError as error:
            raise StoreError(f"{self.path.name} cannot be opened: {error.strerror}") from error
        try:
            opened = None if fd is None else seen(fd)
            if self._unread or opened != self._seen:
                self._read_anew()
                raise Changed
            try:
                yield fd
            except Conflict:
                self._read_anew()
                raise Changed from None
            except OSError as error:
                self.forget()
                raise StoreError(
                    f"the disk reported an error: {error.strerror}", hint="check the disk"
                ) from error
            except (StoreError, Moved):
                self.forget()
                raise
        finally:
            if fd is not None:
                os.close(fd)

    @contextlib.contextmanager
    def replacing(self, changes: Sequence[Change] = ()) -> Iterator[int]:
        """Open a file for what is to stand in the place of the transcript; at the end it is there, durable.

        Raises:
            Conflict: the transcript was changed meanwhile; it stands.
            OSError, StoreError: the disk refused; the old one stands.
        """
        make_folder(self.path.parent)
        # By the key: a killed writer leaves it behind, and an erasure must find it.
        with beside_file(self.path.with_name(mark_of(self.key)), inherit=True) as (fd, temp):
            yield fd
            os.fsync(fd)
            (self._seen,) = self.state.write_now(changes, [Put(self._name, self._seen, str(temp))])

    def checkpoint(
        self, *, inner: Mapping[str, Any] | None, offset: int | None, of: str | None = None
    ) -> bool:
        """Renew the header: ``inner`` is merged into its metadata (None removes a name), ``offset`` replaces.

        Returns:
            False where ``of`` names a session that is no longer the active one; nothing was written.

        Raises:
            Fenced, StoreError.
        """

        def once() -> bool:
            with self.reading() as fd:
                if of is not None and self.transcript.session_id != of:
                    return False
                self.renew(fd, inner=merged(self.transcript.inner, inner), offset=offset)
                return True

        return again(once)

    def mend(self) -> None:
        """Put a file that was found damaged, or is not as we write it, in order; for threads."""

        def once() -> None:
            with self.reading() as fd:
                self.renew(fd)

        again(once)

    def renew(
        self,
        fd: int | None,
        *,
        inner: Mapping[str, Any] | None = None,
        offset: int | None = None,
        more: Sequence[Line] = (),
        changes: Sequence[Change] = (),
    ) -> None:
        """Put a new file in the place of the old: header, messages with their bytes, then ``more``."""
        transcript = self.transcript
        self.keep_original(fd)
        head = transcript.head(now=self.clock(), inner=inner, offset=offset)
        moved: HeldFile | None = None
        with self.replacing(changes) as target:
            write_all(target, head)
            self.write_body(target, fd)
            write_lines(target, (raw for raw, _ in more))
            if isinstance(transcript.messages, Lines):
                moved = HeldFile(os.dup(target))
        if isinstance(transcript.messages, Lines) and moved is not None:
            transcript.messages.rebase(moved, len(head))
        self._settle(head, more)

    def begin_anew(
        self,
        new: Transcript,
        *,
        body: Sequence[bytes] = (),
        more: Sequence[Line] = (),
        changes: Sequence[Change] = (),
    ) -> None:
        """Put a new transcript in the place of the file: its header, the lines of ``body``, then ``more``.

        Where there is a body, what is held is read anew: whoever asks next sees what stands there now.
        """
        head = dump(new.metadata) + b"\n"
        with self.replacing(changes) as target:
            write_all(target, head)
            write_lines(target, chain(body, (raw for raw, _ in more)))
        remove_index(self.layout.index(self.stem))
        if body:
            self.forget()
            self.refresh()
            return
        self.transcript = new
        self._settle(head, more)

    def remove(self, changes: Sequence[Change] = ()) -> None:
        """Delete the transcript, what killed writers left of it, and what is derived of it."""
        for left in self.path.parent.glob(f".{mark_of(self.key)}.*.tmp"):
            left.unlink(missing_ok=True)
        self.state.write_now(changes, [Remove(self._name, self._seen)])
        remove_index(self.layout.index(self.stem))
        self.forget()

    def write_body(self, target: int, fd: int | None) -> None:
        """Write all messages behind a new header: by the kernel where the old file is sound."""
        transcript = self.transcript
        if fd is None or (transcript.needs_checkpoint and not isinstance(transcript.messages, Lines)):
            write_lines(target, transcript.messages)
        elif transcript.keep > transcript.body_at:
            copy_rest(fd, target, transcript.body_at, until=transcript.keep)
            if transcript.open_end:
                write_all(target, b"\n")

    def _settle(self, head: bytes, more: Sequence[Line]) -> None:
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

    def keep_original(self, fd: int | None) -> None:
        """Keep a damaged file as it was read, beside it, before bytes of it are left out."""
        if fd is not None and self.transcript.needs_copy:
            keep_original(self.path, fd, now=self.clock())


def again(once: Callable[[], T]) -> T:
    """Run ``once`` until the file holds still between looking and writing."""
    for _ in range(_TRIES):
        try:
            return once()
        except Changed:
            continue
    raise _restless()


def _restless() -> StoreError:
    return StoreError("the file changes all the time", hint="check whether another program writes to it")


def merged(old: Mapping[str, Any], new: Mapping[str, Any] | None) -> dict[str, Any]:
    """Lay new metadata over the old; a value of None removes the name."""
    return {name: value for name, value in {**old, **(new or {})}.items() if value is not None}
