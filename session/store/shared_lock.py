"""Puts a lock in the place of another on a disk whose locks are leases: one claimer at a time gets there.

On a network's disk two machines may believe that they hold the same lock. What its server does in one step
for one of them alone is to give a name that nobody has. So whoever takes a key over from epoch 7 gives its
new lock file the name ``.<mark>.7.next.tmp`` first, looks that the lock is still that of epoch 7, and only
then puts it in the place of the lock. Whoever finds that name taken goes on from there: it takes away what
the other would rename, and takes over from the other one.

Epochs are raised by a drawn number there: two that claim at once must not name their files alike.
"""

from __future__ import annotations

import contextlib
import fcntl
import os
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path

import durable
from durable import discard, new_file, sync_folder, try_lock
from session.disk.file_system import locks_are_leases
from session.disk.layout import OpenFile, opened
from session.errors import Fenced, StoreError
from session.store.lock_record import LockRecord, read_record, write_record

_STEP = 1_000_000
_TRIES = 16


@dataclass(frozen=True, slots=True)
class Taking:
    """A lock file that is to be taken over: where it lies, and how the files of its writers are named."""

    path: Path
    mark: str
    # Names the temporary file of an epoch beside the lock.
    temp: Callable[[int], Path]
    # Takes away all temporary files of a writer with an epoch, so that what it would rename is gone.
    remove_temps: Callable[[int], None]

    def ticket(self, epoch: int) -> Path:
        """Name what only one of those that take over from ``epoch`` can make."""
        return self.path.with_name(f".{self.mark}.{epoch}.next.tmp")


def machine_of(owner: str) -> str:
    """Return what an owner's name says of the machine, and of the start of it, that it runs on."""
    return owner.partition(":")[0]


def read_anew(path: Path) -> LockRecord | None:
    """Read a lock file as its server has it; None where there is none.

    What was looked up before may be minutes old: only opening a file asks the server.

    Raises:
        NewerFormat, StoreError.
    """
    try:
        return read_record(path.read_bytes(), path.name)
    except FileNotFoundError:
        return None
    except OSError as error:
        raise StoreError(f"the lock cannot be read: {error.strerror}", hint=f"check {path}") from error


def is_still(path: Path, record: LockRecord) -> bool:
    """Say whether the lock is the one that was read, by what the server has of it.

    Raises:
        NewerFormat, StoreError.
    """
    now = read_anew(path)
    return now is not None and (now.owner, now.epoch) == (record.owner, record.epoch)


@contextlib.contextmanager
def alone_in(folder: Path) -> Iterator[bool]:
    """Let one process at a time replace locks in a folder; yields whether it is this one."""
    fd = os.open(folder, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    try:
        yield try_lock(fd)
    finally:
        os.close(fd)


def look_anew(folder: Path, mark: str) -> None:
    """Have the server asked for the names in a folder, which may be believed for a while as they were.

    A client that changes a folder itself knows that what it knew of it is old. No folder there is fine.

    Raises:
        OSError: the disk refused.
    """
    probe = folder / f".{mark}.{durable.token_hex(8)}.look.tmp"
    with contextlib.suppress(FileNotFoundError), new_file(probe):
        probe.unlink()


def take_over(
    taking: Taking, known: LockRecord, *, key: str | None, owner: str, foreign: bool
) -> tuple[OpenFile, LockRecord]:
    """Put a lock of ``owner`` in the place of the one that says ``known``; return it, open and held.

    What it says is left to be renewed are the files of the writer before where that is ``foreign``, and
    those of others that were about to take over.

    Raises:
        Fenced: another one was quicker.
        OSError, StoreError: the disk refused.
    """
    leases = locks_are_leases(str(taking.path.parent))
    gone = [known.epoch]
    for _ in range(_TRIES):
        renew = (*known.renew, *(gone if foreign else gone[1:]))
        record = LockRecord(key, owner, gone[-1] + 1 + (durable.random_below(_STEP) if leases else 0), renew)
        temp = taking.temp(record.epoch)
        with new_file(temp) as fd:
            # The new file is locked before it has its name, so that nobody else can take it in between.
            fcntl.flock(fd, fcntl.LOCK_EX)
            write_record(fd, record)
            if leases:
                os.fsync(fd)
                if (other := _next_of(taking, temp, gone)) is not None:
                    taking.remove_temps(other)
                    gone.append(other)
                    discard(temp)
                    continue
            try:
                temp.rename(taking.path)
            except FileNotFoundError as error:
                # Whoever takes over from us has taken it away.
                raise Fenced("another process took this conversation over") from error
            # A copy of the descriptor shares the open file, and with it the lock.
            ours = opened(os.dup(fd))
        try:
            sync_folder(taking.path.parent)
            for epoch in gone if leases else ():
                discard(taking.ticket(epoch))
        except BaseException:
            os.close(ours.fd)
            raise
        return ours, record
    raise StoreError("other processes keep taking this conversation over")


def _next_of(taking: Taking, temp: Path, gone: list[int]) -> int | None:
    """Return the epoch of whoever is about to take over from the last of ``gone``; None: we are.

    Raises:
        Fenced: the lock is none of theirs any more.
    """
    ticket, other = taking.ticket(gone[-1]), None
    try:
        os.link(temp, ticket)
    except FileExistsError:
        other = read_anew(ticket)
    stands = read_anew(taking.path)
    if stands is not None and stands.epoch in gone:
        if other is not None:
            return other.epoch
        if _is_ours(ticket, temp):
            return None
    if _is_ours(ticket, temp):
        discard(ticket)
    raise Fenced("another process took this conversation over")


def _is_ours(ticket: Path, temp: Path) -> bool:
    try:
        return ticket.samefile(temp)
    except FileNotFoundError:
        return False
