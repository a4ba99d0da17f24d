"""The files in which all daemons of a workspace count what models cost, one a day, and their lock."""

from __future__ import annotations

import asyncio
import contextlib
import errno
import os
import threading
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from datetime import date, datetime, timedelta
from itertools import accumulate
from pathlib import Path
from typing import Protocol, TypeVar

import orjson

import durable
from session.errors import StoreError
from session.models.caps import Ask, Caps, Refused, refused
from session.models.tally import HOUR, Tally
from session.models.usage_lines import CUT_SHORT, VERSION, SpendingRow, UsageLine, read_line

T = TypeVar("T")
KEPT_DAYS = 35
_READ_BYTES = 2**20


class Disk(Protocol):
    """Where disk work is done off the event loop."""

    def beside(self, job: Callable[[], T]) -> asyncio.Future[T]:
        """Run a short job."""
        ...


@dataclass(frozen=True, slots=True)
class Exchange:
    """What one visit to the files brought.

    ``written`` counts the lines that were written, ``found`` holds all that were read, of the days ``kept``.
    ``refusals`` says of each request that asked why it may not be made; None: it is held.
    """

    written: int
    found: list[UsageLine]
    kept: set[date]
    refusals: Sequence[Refused | None] = ()
    error: StoreError | None = None


class DayFiles:
    """Appends to and reads the files ``<day>.jsonl`` of a folder. For threads, one at a time.

    Requests that ask are decided one process after the other, under the lock file beside the folder.
    """

    def __init__(self, folder: Path, caps: Caps = Caps()) -> None:  # noqa: B008 - it is frozen
        self._folder = folder
        self._caps = caps
        # That of the thread which decides; nobody else may look into it.
        self._tally = Tally(by_subject=True, with_ends=False) if caps.any else None
        self._lock = threading.Lock()
        self._read_to: dict[date, int] = {}

    def exchange(self, lines: Sequence[UsageLine], now: datetime, asks: Sequence[Ask] = ()) -> Exchange:
        """Append ``lines``, then read everything of the last hour's days that was not read yet.

        With ``asks``, each is then decided, and what is granted is held: on return other processes see it.

        Raises:
            NewerFormat: a newer version writes these files; nothing was written.
            StoreError: they cannot be read, or another process has held the lock for 10 s.
        """
        with self._lock, self._alone() if asks else contextlib.nullcontext():
            days = sorted({(now - HOUR).date(), now.date(), *(line.at.date() for line in lines)})
            self._keep(days)
            try:
                found = self._read(days, now)
            except OSError as error:
                raise StoreError(f"the usage records cannot be read: {error.strerror}") from error
            written, refusals = 0, list[Refused | None]()
            try:
                while written < len(lines):
                    written += self._append(lines[written:], now.date())
                found += self._read(days, now)
                for ask in asks:
                    refusals.append(self._decide(ask, now))
                    found += self._read(days, now)
            except OSError as error:
                failed = StoreError(f"the usage records could not be written: {error.strerror}")
                return Exchange(written, found, set(days), error=failed)
            return Exchange(written, found, set(days), refusals)

    def calls(self, since: datetime, now: datetime) -> list[datetime]:
        """List the ends of all calls after ``since`` that were no turns; for whoever lost count of them.

        Raises:
            NewerFormat, StoreError: as for ``exchange``.
        """
        days = [
            since.date() + timedelta(days=further) for further in range((now.date() - since.date()).days + 1)
        ]
        try:
            found = DayFiles(self._folder)._read(days, now)
        except OSError as error:
            raise StoreError(f"the usage records cannot be read: {error.strerror}") from error
        ends = [line.at for line in found if isinstance(line, SpendingRow) and not line.turn]
        return sorted(at for at in ends if since < at <= now)

    @contextlib.contextmanager
    def _alone(self) -> Iterator[None]:
        path = self._folder.with_name(f"{self._folder.name}.lock")
        with contextlib.ExitStack() as held:
            try:
                held.enter_context(durable.locked(path))
            except durable.LockHeld as error:
                raise StoreError(str(error), hint=error.hint) from error
            except OSError as error:
                raise StoreError(f"{path.name} cannot be opened: {error.strerror}") from error
            yield

    def _decide(self, ask: Ask, now: datetime) -> Refused | None:
        """Hold what a request may cost, or say why not."""
        assert self._tally is not None
        refusal = refused(self._caps, self._tally, ask, now)
        if refusal is None:
            self._append([ask.hold(now)], now.date())
        return refusal

    def _keep(self, days: Sequence[date]) -> None:
        """Forget other days with what was read of them: where the clock comes back they are read anew."""
        self._read_to = {day: end for day, end in self._read_to.items() if day in days}
        if self._tally is not None:
            self._tally.keep(days)

    def _append(self, lines: Sequence[UsageLine], today: date) -> int:
        """Append the lines of the first one's day in one write; return how many went in whole.

        Another daemon may have died in its write, or the disk be full in ours: what is left of that line is
        marked as cut short, and the next one begins anew.
        """
        day = lines[0].at.date()
        path = self._path(day)
        if not path.exists():
            self._create(path, today)
        texts = [line.to_bytes() for line in lines if line.at.date() == day]
        # Several daemons write here: one write with O_APPEND is not mixed with those of others.
        fd = os.open(path, os.O_RDWR | os.O_APPEND | os.O_CLOEXEC)
        try:
            size = os.fstat(fd).st_size
            torn = size > 0 and os.pread(fd, 1, size - 1) != b"\n"
            # Where that write was under way still, the mark stands on a line of its own behind it.
            end = CUT_SHORT + b"\n" if torn else b""
            left = os.write(fd, end + b"".join(texts)) - len(end)
        finally:
            os.close(fd)
        whole = sum(1 for end in accumulate(map(len, texts)) if end <= left)
        if not whole:
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
        return whole

    def _create(self, path: Path, today: date) -> None:
        durable.make_folder(path.parent)
        temp = path.with_name(f".{path.name}.{durable.new_id()}.tmp")
        with (
            # Another daemon may create it at the same moment: its file stays.
            contextlib.suppress(FileExistsError),
            durable.replacing(path, temp=temp, new=True) as fd,
        ):
            durable.write_all(fd, orjson.dumps({"v": VERSION}) + b"\n")
        for old in path.parent.glob("*.jsonl"):
            day = _day_of(old)
            if day is not None and today - day > timedelta(days=KEPT_DAYS):
                old.unlink(missing_ok=True)

    def _read(self, days: Iterable[date], now: datetime) -> list[UsageLine]:
        found = [line for day in days for line in self._read_day(day)]
        if self._tally is not None:
            for line in found:
                self._tally.take(line, now)
        return found

    def _read_day(self, day: date) -> list[UsageLine]:
        """Read the whole lines that were not read yet."""
        try:
            fd = os.open(self._path(day), os.O_RDONLY | os.O_CLOEXEC)
        except FileNotFoundError:
            self._read_to.pop(day, None)
            return []
        try:
            start = self._read_to.get(day, 0)
            data = _all_from(fd, start)
        finally:
            os.close(fd)
        # A line without its end may be in the middle of another daemon's write: it is read the next time.
        keep = data.rfind(b"\n") + 1
        found = [line for raw in data[:keep].split(b"\n") if (line := read_line(raw, day)) is not None]
        self._read_to[day] = start + keep
        return found

    def _path(self, day: date) -> Path:
        return self._folder / f"{day.isoformat()}.jsonl"


def _all_from(fd: int, start: int) -> bytes:
    pieces = []
    while piece := os.pread(fd, _READ_BYTES, start):
        pieces.append(piece)
        start += len(piece)
    return b"".join(pieces)


def _day_of(path: Path) -> date | None:
    try:
        return date.fromisoformat(path.stem)
    except ValueError:
        return None
