"""What the ledger of one machine notes, in the workspace as well: for the one that takes a platform over.

Where machines keep their ledgers on disks of their own, each writes what it notes behind its ledger into
plain files that all of them see, one line a note, ``state/deliveries/<channel>/<machine>-<begun>.jsonl``::

    {"n": 7, "at": 1764000000000, "do": "sent", "key": …, "out_id": …, "piece": 0, "platform_id": "9"}

``n`` counts the lines of a file. Nobody writes into another machine's file but to take out what is forgotten.
Whoever gets the lease of the platform does first what the others have noted, and keeps up to which line.
"""

from __future__ import annotations

import contextlib
import errno
import os
from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime
from pathlib import Path
from typing import Any, Final

import orjson

import durable
from session.disk.local_files import local_state

FOLDER: Final = "deliveries"
# Of one file, and of all of a channel: the oldest go.
FILE_BYTES: Final = 2**20
MAX_BYTES: Final = 16 * 2**20
# As long as a letter that is done stays known.
KEPT_S: Final = 7 * 86_400.0
FORGET: Final = "forget"
# For another process that takes something out.
WAIT_S: Final = 10.0
_DONE: Final = ("sent_last", "done")


@dataclass(frozen=True, slots=True)
class Note:
    """A change of a ledger: by its name there, with its arguments."""

    do: str
    arguments: Mapping[str, Any]


class LedgerLog:
    """The files of one channel; for the ledger's thread.

    Args:
        folder: that of the channel.
        machine: whose notes are written here; empty: nothing is written, as where the ledgers are shared.
    """

    def __init__(self, folder: Path, machine: str) -> None:
        self.writes = bool(machine)
        self._folder = folder
        self._machine = machine
        self._path = folder
        self._fd: int | None = None
        self._n = self._size = 0

    @classmethod
    def of(cls, state: Path, channel: str) -> LedgerLog:
        """Return the log of a channel as this machine has to keep it; ``state`` is the workspace's."""
        place = local_state(state)
        return cls(state / FOLDER / channel, place.name if place != state else "")

    def append(self, notes: Sequence[Note], now_ms: int) -> None:
        """Write notes; on return they survive a power cut, and every machine sees them.

        Raises:
            OSError: the disk refused; they may be there or not, and are to be written again.
        """
        try:
            while True:
                fd = self._opened()
                with _locked(fd):
                    # Whoever takes something out replaces the file.
                    if durable.is_at(fd, self._path):
                        self._write(fd, notes, now_ms)
                        return
                self.close()
        except OSError:
            # What a failed sync left of it no later sync would bring to the disk.
            self.close()
            raise

    def close(self) -> None:
        """Close the file; the next notes begin another."""
        fd, self._fd = self._fd, None
        if fd is not None:
            os.close(fd)

    def others(self, known: Mapping[str, int]) -> Iterator[tuple[str, int, Note, int]]:
        """Yield what other machines have noted since, in the order of their files: file, ``n``, note, ms.

        ``known`` says up to which ``n`` a file was done. What a kill left of a line, or a disk has spoilt, is
        passed over.
        """
        for path in _files(self._folder):
            if not self._machine or not path.name.startswith(f"{self._machine}-"):
                done = known.get(path.name, 0)
                for n, at_ms, note in _notes(path):
                    if n > done:
                        yield path.name, n, note, at_ms

    def _write(self, fd: int, notes: Sequence[Note], now_ms: int) -> None:
        rows = [
            {"n": self._n + number, "at": now_ms, "do": note.do, **note.arguments}
            for number, note in enumerate(notes, 1)
        ]
        data = b"".join(orjson.dumps(row, option=orjson.OPT_APPEND_NEWLINE) for row in rows)
        durable.append_whole(fd, data, size=self._size)
        durable.sync_data(fd)
        self._n, self._size = self._n + len(rows), self._size + len(data)

    def _opened(self) -> int:
        if self._fd is not None and self._size < FILE_BYTES:
            return self._fd
        self.close()
        durable.make_folder(self._folder)
        self._tidy()
        self._path = self._folder / f"{self._machine}-{durable.new_id()}.jsonl"
        self._fd = durable.open_private(self._path, os.O_RDWR | os.O_APPEND)
        durable.sync_folder(self._folder)
        self._n = self._size = 0
        return self._fd

    def _tidy(self) -> None:
        """Remove files that are old, and the oldest of too many; what they say is done here already."""
        left = MAX_BYTES
        for path in reversed(_files(self._folder)):
            # What is not to be had now goes with the next file that is begun.
            with contextlib.suppress(OSError):
                found = path.stat()
                left -= found.st_size
                if left < 0 or durable.wall_s() - found.st_mtime > KEPT_S:
                    _discard(path)


def _discard(path: Path) -> None:
    """Remove a file, unless another machine is just writing into it, or has just replaced it."""
    with path.open("rb") as file:
        if durable.try_lock(file.fileno()) and durable.is_at(file.fileno(), path):
            durable.discard(path)


def forget(state: Path, keys: Collection[str], *, before: datetime | None) -> None:
    """Take out what was noted of these keys on any machine, and have the others forget it. For threads.

    With a time, what is noted of letters stays that were not done before it.

    Raises:
        OSError: the disk refused; call it again.
    """
    wanted = frozenset(keys)
    before_ms = None if before is None else int(before.timestamp() * 1000)
    for folder in sorted((state / FOLDER).glob("*")):
        files = _files(folder)
        rows = [(note, at_ms) for path in files for _, at_ms, note in _notes(path)]
        gone = {
            _letter(note)
            for note, at_ms in rows
            if note.arguments.get("key") in wanted
            and (before_ms is None or (note.do in _DONE and at_ms < before_ms))
        }
        for path in files if gone else ():
            _take_out(path, gone)
        log = LedgerLog.of(state, folder.name)
        if log.writes:
            try:
                arguments = {"keys": sorted(wanted), "before": before_ms}
                log.append([Note(FORGET, arguments)], int(durable.now().timestamp() * 1000))
            finally:
                log.close()


def notes_on(state: Path, message_id: str) -> Iterator[tuple[Note, int]]:
    """Yield what machines noted of what goes out for a message, with the time of each in ms. For threads."""
    mark = orjson.dumps(message_id)[1:-1]
    for folder in sorted((state / FOLDER).glob("*")):
        for path in _files(folder):
            for _, at_ms, note in _notes(path, mark):
                out_id = str(note.arguments.get("out_id", ""))
                if out_id == message_id or out_id.startswith(f"{message_id}#"):
                    yield note, at_ms


def _letter(note: Note) -> tuple[object, object]:
    return note.arguments.get("key"), note.arguments.get("out_id")


def _take_out(path: Path, gone: Collection[tuple[object, object]]) -> None:
    with contextlib.suppress(FileNotFoundError):
        while True:
            with path.open("rb") as file, _locked(file.fileno()):
                # Whoever had the lock before may have replaced the file: this one holds what was taken out.
                if not durable.is_at(file.fileno(), path):
                    continue
                # The lines that came until the lock was ours are among these.
                lines = file.readlines()
                rows = ((line, _row(line)) for line in lines)
                kept = [line for line, row in rows if row is not None and _letter(row[2]) not in gone]
                if len(kept) < len(lines):
                    durable.replace(path, b"".join(kept))
                return


@contextlib.contextmanager
def _locked(fd: int) -> Iterator[None]:
    until = durable.monotonic() + WAIT_S
    while not durable.try_lock(fd):
        if durable.monotonic() > until:
            raise OSError(errno.EBUSY, "another process has locked it")
        durable.pause(0.005)
    try:
        yield
    finally:
        durable.unlock(fd)


def _files(folder: Path) -> list[Path]:
    """List the files of a channel, by when each was begun."""
    return sorted(folder.glob("[!.]*.jsonl"), key=lambda path: path.stem.rpartition("-")[2])


def _notes(path: Path, mark: bytes = b"") -> Iterator[tuple[int, int, Note]]:
    try:
        with path.open("rb") as file:
            for line in file:
                if mark in line and (row := _row(line)) is not None:
                    yield row
    except FileNotFoundError:
        return


def _row(line: bytes) -> tuple[int, int, Note] | None:
    """Read a line; None where it is none, or not whole."""
    if not line.endswith(b"\n"):
        return None
    try:
        row = orjson.loads(line)
        n, at_ms, do = int(row.pop("n")), int(row.pop("at")), str(row.pop("do"))
    except (orjson.JSONDecodeError, AttributeError, KeyError, TypeError, ValueError):
        return None
    return n, at_ms, Note(do, row)
