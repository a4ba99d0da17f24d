"""The lock of a key: who may write, under which epoch, and what happens to a writer that froze.

A lock file is never deleted, and replaced only to overtake a frozen holder. Every file of the key is opened
before the lock is taken, and every temporary file is named by the epoch: so a writer that wakes after it was
overtaken holds files that nobody reads any more, and names that are gone.
"""

from __future__ import annotations

import contextlib
import fcntl
import os
import shutil
import threading
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager
from dataclasses import dataclass, field, replace
from functools import partial
from pathlib import Path

import structlog

import durable
from durable import (
    discard,
    is_free,
    make_folder,
    make_private,
    open_private,
    replacing,
    sync_file,
    sync_folder,
    try_lock,
)
from session.disk.file_system import locks_are_leases
from session.disk.layout import Layout, OpenFile, OpenFiles, Seen, copy_rest, seen
from session.errors import Fenced, StoreError
from session.store.lock_record import LockPlace, LockRecord, read_record, temp_mark, write_record
from session.store.shared_lock import Taking, alone_in, is_still, look_anew, machine_of, take_over

log = structlog.get_logger(__name__)
# How long a process that does not move may hold a lock.
FREEZE_S = 30.0
_POLL_S = 0.005
# So many looks at least, before a holder is taken for frozen.
_LOOKS = 4
_READ_BYTES = 65536


class Busy(Exception):
    """Another process holds the lock now; only raised for ``wait=None``."""


@dataclass(slots=True)
class Held:
    """The lock while it is ours: until the end of the ``with`` block."""

    fence: Fence
    file: OpenFile
    record: LockRecord

    def __enter__(self) -> Held:
        return self

    def __exit__(self, *_: object) -> None:
        self.fence.let_go(self.file)

    def check(self) -> None:
        """Make sure that nobody has replaced the lock under our feet.

        Raises:
            Fenced: somebody has; what was written since may lie in an orphaned file.
        """
        fence = self.fence
        if not (is_still(fence.path, self.record) if fence.leases else self.file.is_at(fence.name)):
            raise Fenced(
                "the lock was replaced while it was held", hint="the process was suspended for too long"
            )

    def temp(self, folder: Path) -> Path:
        """Name the temporary file of this epoch in ``folder``."""
        if self.fence.leases and self.record.owner != self.fence.owner:
            # The owner of the epoch may believe that it has the lock as well: it has a name of its own.
            return folder / f".{self.fence.mark}.{self.record.epoch}.{temp_mark(self.fence.owner)[:8]}.tmp"
        return self.fence.temp(folder, self.record.epoch)

    @contextlib.contextmanager
    def replacing(self, path: Path, *, new: bool = False) -> Iterator[int]:
        """Open a file for what is to stand under ``path``; when the block ends it is there, durable.

        With ``new`` nothing may stand there yet.

        Raises:
            Fenced: another writer overtook us; it did not get its name.
            FileExistsError: something stands there, and ``new`` is asked for.
            OSError: the disk refused; what stood there does so still.
        """
        with replacing(path, temp=self.temp(path.parent), check=self.check, new=new) as fd:
            yield fd

    def remove(self, path: Path, *, by: Path | None = None) -> None:
        """Delete a file or folder for good, by way of the folder ``by`` of the key, or the one it lies in.

        Raises:
            Fenced: another writer overtook us; a file that it wrote still stands.
            OSError: the disk refused.
        """
        self.check()
        folder = by or path.parent
        # Another machine may have made it: whoever makes it too knows of that.
        if self.fence.leases:
            make_folder(folder)
        if not folder.is_dir():
            return
        # A killed writer of this epoch may have left its own there.
        bin_ = self.temp(folder)
        shutil.rmtree(bin_, ignore_errors=True)
        make_private(bin_)
        self.check()
        # A writer may be overtaken between the check and this line. Its folder is taken away then, so the
        # rename fails, and the file of the new owner stays.
        with contextlib.suppress(FileNotFoundError):
            path.rename(bin_ / "gone")
        with contextlib.suppress(FileNotFoundError):
            sync_folder(path.parent)
        shutil.rmtree(bin_, ignore_errors=True)
        self.check()

    def prove(self, epoch: int) -> None:
        """Make sure that the writer with ``epoch`` still owns the key.

        Raises:
            Fenced: it does not; nothing was written.
        """
        record = self.record
        if record.owner != self.fence.owner or record.epoch != epoch or record.renew:
            raise Fenced(f"another process owns this key (epoch {record.epoch}, ours was {epoch})")
        if self.fence.leases:
            self.check()

    def claim(self, key: str, *, anew: bool = False) -> int:
        """Own the key, raising the epoch where another owner held it (or always, with ``anew``).

        Returns:
            The epoch under which this process may write.
        """
        record = self.record
        ours = self.fence.epoch_of(record, key)
        if ours is not None and not anew:
            return ours
        if self.fence.leases:
            self._replace(key)
        self.fence.remove_temps(*record.renew, record.epoch)
        settle_files(self.fence.layout, self.fence.stem)
        if not self.fence.leases:
            self._put_record(LockRecord(key, self.fence.owner, record.epoch + 1, record.renew))
        if self.record.renew:
            self.renew()
        self.check()
        return self.record.epoch

    def _replace(self, key: str) -> None:
        """Put a lock of our own in the place of another's, who may believe that it holds it as well.

        From another machine it may write on, into the files that it has open: they are to be renewed.
        """
        old, known, owner = self.file, self.record, self.fence.owner
        foreign = known.epoch > 0 and machine_of(known.owner) != machine_of(owner)
        try:
            self.file, self.record = take_over(
                self.fence.taking, known, key=key, owner=owner, foreign=foreign
            )
        except OSError as error:
            raise StoreError(f"the lock could not be replaced: {error.strerror}") from error
        os.close(old.fd)
        if foreign:
            log.info("lock.taken_from_afar", lock=self.fence.path.name, epoch=self.record.epoch)

    def renew(self) -> None:
        """Renew the files of overtaken writers, then call it done."""
        self.fence.remove_temps(*self.record.renew)
        try:
            renew_files(self.fence.layout, self.fence.stem, self.replacing)
        except StoreError:
            # Who was overtaken in turn meets all kinds of errors; this tells the true one.
            self.check()
            raise
        self._put_record(replace(self.record, renew=()))

    def _put_record(self, record: LockRecord) -> None:
        write_record(self.file.fd, record)
        self.record = record


@dataclass(slots=True)
class Wait:
    """How long one waits for a lock: until it is free, its holder is found frozen, or ``abort`` is set."""

    abort: threading.Event = field(default_factory=threading.Event)


class Fence(LockPlace):
    """The lock of one stem, for one process (``owner``). Used from threads, never on the event loop."""

    __slots__ = ("_freeze_s", "_peeked", "_read", "kept", "layout", "owner")

    def __init__(
        self,
        layout: Layout,
        stem: str,
        *,
        owner: str,
        freeze_s: float = FREEZE_S,
        kept: OpenFiles | None = None,
    ) -> None:
        """Touch nothing yet; with ``kept``, the key's lock and transcript stay open between two jobs."""
        super().__init__(layout.lock(stem), stem)
        self.owner = owner
        self.layout = layout
        self._freeze_s = freeze_s
        self.kept = kept
        self._read: tuple[bytes, LockRecord] = (b"", LockRecord())
        self._peeked: tuple[Seen | None, LockRecord] = (None, LockRecord())

    @property
    def leases(self) -> bool:
        """Whether another machine may hold the lock that we believe to hold."""
        return locks_are_leases(self.name.rpartition(os.sep)[0])

    @property
    def taking(self) -> Taking:
        """What is known of the lock by whoever puts another in its place."""
        return Taking(
            self.path, self.mark, temp=partial(self.temp, self.path.parent), remove_temps=self.remove_temps
        )

    def hold(self, wait: Wait | None) -> Held:
        """Hold the lock for the ``with`` block that this opens.

        Raises:
            Busy: another process holds it, and ``wait`` is None.
            NewerFormat: the lock file was written by a newer version.
            StoreError: the folder refused, or waiting was aborted.
        """
        file = self._acquire(wait)
        try:
            return Held(self, file, self._record_in(file.fd))
        except BaseException:
            os.close(file.fd)
            raise

    def let_go(self, file: OpenFile) -> None:
        """Unlock the lock file, and keep it open where that is wanted."""
        if self.kept is None:
            os.close(file.fd)
            return
        try:
            # The file stays open, so that its lock must be let go of by hand.
            fcntl.flock(file.fd, fcntl.LOCK_UN)
        except BaseException:
            os.close(file.fd)
            raise
        self.kept.put(self.name, file)

    def peek(self) -> LockRecord | None:
        """Read the lock file without holding it, or recall it where it looks as before; None: there is none.

        Two owners within one tick of the file system's clock may look alike: it is a look before the turn,
        and the proof under the lock, at each write, reads the file itself.
        """
        now = seen(self.name)
        if now is None:
            return None
        if now != self._peeked[0]:
            try:
                fd = os.open(self.name, os.O_RDONLY | os.O_CLOEXEC)
            except FileNotFoundError:
                return None
            try:
                self._peeked = (seen(fd), self._record_in(fd))
            finally:
                os.close(fd)
        return self._peeked[1]

    def proves(self, epoch: int) -> bool:
        """Read the lock file anew, without holding it: does the writer with ``epoch`` own the key?"""
        try:
            raw = self.path.read_bytes()
        # Who cannot read the lock has no proof, and whatever hangs on it is not done.
        except OSError:
            return False
        record = read_record(raw, self.path.name)
        return record.owner == self.owner and record.epoch == epoch and not record.renew

    def epoch_of(self, record: LockRecord, key: str) -> int | None:
        """Return the epoch if ``record`` says that this process owns the key."""
        ours = record.owner == self.owner and record.key == key and not record.renew
        return record.epoch if ours else None

    def _record_in(self, fd: int) -> LockRecord:
        raw = os.pread(fd, _READ_BYTES, 0)
        known, record = self._read
        if raw != known:
            record = read_record(raw, self.path.name)
            self._read = (raw, record)
        return record

    def _acquire(self, wait: Wait | None) -> OpenFile:
        while True:
            file = self.kept.take(self.name) if self.kept is not None else None
            if file is None:
                file = self._open()
            try:
                if try_lock(file.fd):
                    # While we waited the lock may have been replaced: ours would then guard nothing.
                    if file.is_at(self.name):
                        return file
                elif wait is None:
                    raise Busy
                elif self._is_frozen(file, wait) and (ours := self._overtake(file)) is not None:
                    os.close(file.fd)
                    return ours
            except BaseException:
                os.close(file.fd)
                raise
            os.close(file.fd)

    def _open(self) -> OpenFile:
        try:
            try:
                fd = open_private(self.path)
            except FileNotFoundError:
                # Only the first key of a workspace finds no folder: the others spare themselves a look.
                make_folder(self.path.parent)
                fd = open_private(self.path)
            found = os.fstat(fd)
        except OSError as error:
            raise StoreError(
                f"the lock cannot be opened: {error.strerror}", hint=f"check {self.path}"
            ) from error
        return OpenFile(fd, found.st_dev, found.st_ino)

    def _is_frozen(self, file: OpenFile, wait: Wait) -> bool:
        """Wait until the lock is free or replaced (False), or nothing moved for too long (True).

        Time in which this process stood still itself counts little: the holder may have done so, too.
        """
        fd = file.fd
        signs, still_s, looked = self._signs(fd), 0.0, durable.monotonic()
        while True:
            if is_free(fd) or not file.is_at(self.name):
                return False
            if wait.abort.wait(_POLL_S):
                raise StoreError("gave up waiting for the lock of this conversation")
            now, last, looked = self._signs(fd), looked, durable.monotonic()
            if now != signs:
                signs, still_s = now, 0.0
                continue
            still_s += min(looked - last, self._freeze_s / _LOOKS)
            if still_s >= self._freeze_s:
                return True

    def _signs(self, fd: int) -> list[object]:
        """Collect what a holder that still moves would change."""
        layout = self.layout
        epoch = self._record_in(fd).epoch
        files = [layout.transcript(self.stem), layout.journal(self.stem), self.path]
        return [seen(path) for path in (*files, *(self.temp(folder, epoch) for folder in self._folders()))]

    def _folders(self) -> tuple[Path, ...]:
        return (self.layout.sessions, self.layout.keys, self.layout.archive(self.stem))

    def _overtake(self, frozen: OpenFile) -> OpenFile | None:
        """Replace the lock of a frozen holder and renew the key's files; None where another was quicker."""
        with alone_in(self.path.parent) as alone:
            # The holder may have woken, or another process been quicker, since it was found frozen.
            if not alone or not frozen.is_at(self.name) or is_free(frozen.fd):
                return None
            old = self._record_in(frozen.fd)
            ours, record = take_over(self.taking, old, key=old.key, owner=self.owner, foreign=True)
        log.warning("lock.overtaken", lock=self.path.name, epoch=record.epoch, frozen=old.owner)
        try:
            # The frozen writer may have both files open: it must wake on such as nobody reads any more.
            Held(self, ours, record).renew()
        except BaseException:
            os.close(ours.fd)
            raise
        return ours

    def remove_temps(self, *epochs: int) -> None:
        """Take away the temporary files of writers that are dead or overtaken."""
        for folder in self._folders():
            if self.leases:
                look_anew(folder, self.mark)
            for epoch in set(epochs):
                discard(self.temp(folder, epoch))


def settle_files(layout: Layout, stem: str) -> None:
    """Sync transcript and journal with their names, as their last writer left them; none there is fine.

    What a new owner reads is believed from then on: a reply that is told by it must not be made anew after
    a power cut.

    Raises:
        StoreError: the disk refused.
    """
    try:
        for path in (layout.transcript(stem), layout.journal(stem)):
            if path.parent.is_dir():
                sync_file(path)
                sync_folder(path.parent)
    except OSError as error:
        raise StoreError(f"a conversation could not be synced: {error.strerror}") from error


def renew_files(layout: Layout, stem: str, replacing: Callable[[Path], AbstractContextManager[int]]) -> None:
    """Copy transcript and journal over themselves, so that an overtaken writer goes on in orphans.

    Raises:
        Fenced: we were overtaken in turn.
        StoreError: the disk refused; the next claim tries again.
    """
    # Another machine may have made it: whoever makes it too knows of that.
    make_folder(layout.sessions)
    for path in (layout.transcript(stem), layout.journal(stem)):
        source = -1
        try:
            # The new file comes first: what a client knows of a folder's names is old from then on.
            with replacing(path) as fd:
                source = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
                copy_rest(source, fd, 0)
        except OSError as error:
            # There was none, where it was not even opened.
            if source >= 0 or not isinstance(error, FileNotFoundError):
                raise StoreError(f"{path.name} could not be renewed: {error.strerror}") from error
        finally:
            if source >= 0:
                os.close(source)
