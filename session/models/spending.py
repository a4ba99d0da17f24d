"""What models cost: a line for each turn and each other call, summed up over all daemons and restarts.

A call that is no turn's own (consolidation, a summary, a name) has a line that says ``"turn": false`` and
names no person; a line without the field is a turn. In all else the form is the same, and so its version.
A process of an earlier version, which does not know the field, counts tokens and cost of such a line too,
shows it as one turn more, and takes it for nobody's where it looks at how much a person may still ask.
"""

from __future__ import annotations

import asyncio
import contextlib
import errno
import os
import threading
from collections import deque
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from datetime import UTC, date, datetime, timedelta
from itertools import accumulate
from pathlib import Path
from typing import Any, Protocol, TypeVar

import orjson
import structlog
from ulid import ULID

import durable
from session.errors import NewerFormat, NotNow, StoreError
from session.models.model import Totals, Usage

log = structlog.get_logger("spending")

VERSION = 1
HOUR, DAY = timedelta(hours=1), timedelta(days=1)
COST_SAID = "What may be spent on answers today is used up. Messages are answered again from midnight UTC on."
KEPT_DAYS = 35
_READ_BYTES = 2**20
T = TypeVar("T")


class Disk(Protocol):
    """Where disk work is done off the event loop."""

    def beside(self, job: Callable[[], T]) -> asyncio.Future[T]:
        """Run a short job."""
        ...


@dataclass(frozen=True, slots=True)
class SpendingRow:
    """One turn, or a call that is none's own: when it ended (UTC), its conversation, who asked, its cost."""

    at: datetime
    key: str
    person: str
    usage: Usage
    turn: bool = True

    def to_bytes(self) -> bytes:
        """Write it as a line."""
        fields: dict[str, Any] = {
            "at": self.at.isoformat(),
            "key": self.key.encode("utf-8", "replace").decode(),
            "person": self.person.encode("utf-8", "replace").decode(),
            "prompt": self.usage.prompt,
            "completion": self.usage.completion,
            "cost_usd": self.usage.cost_usd,
        }
        if not self.turn:
            fields["turn"] = False
        return orjson.dumps(fields) + b"\n"


@dataclass(frozen=True, slots=True)
class _Exchange:
    """What one visit to the files brought: how many rows were written, and all rows that were read."""

    written: int
    found: list[SpendingRow]
    error: StoreError | None = None


class Spending:
    """Counts turns and calls at once in memory and writes them behind; reads what other daemons wrote.

    Used from the event loop; what a kill cuts off from its line is not counted afterwards.
    """

    def __init__(
        self,
        folder: Path,
        *,
        disk: Disk,
        clock: Callable[[], datetime],
        durable: bool,
        per_day_usd: float = 0.0,
    ) -> None:
        """Touch nothing yet.

        Args:
            folder: that of the day files.
            disk: where files are read and written.
            clock: the time now, aware.
            durable: whether anything is read or written at all; else it counts for this process alone.
            per_day_usd: what may be spent in a day (UTC); 0 is no limit.
        """
        self._disk = disk
        self._clock = clock
        self._durable = durable
        self._per_day_usd = per_day_usd
        self._told_until: datetime | None = None
        self._files = DayFiles(folder)
        self._days: dict[date, Totals] = {}
        self._people: dict[str, deque[datetime]] = {}
        # Rows that count already, and are not on disk yet.
        self._pending: list[SpendingRow] = []
        self._visit: asyncio.Future[_Exchange] | None = None
        self._swept = clock()

    def record(self, key: str, person: str, usage: Usage) -> None:
        """Count a turn that ends now."""
        self._record(SpendingRow(self._clock().astimezone(UTC), key, person, usage))

    def pay(self, key: str, usage: Usage) -> None:
        """Count what a call cost that is no turn of anybody's; see ``CostMeter``."""
        self._record(SpendingRow(self._clock().astimezone(UTC), key, "", usage, turn=False))

    def _record(self, row: SpendingRow) -> None:
        if not self._durable:
            self._take(row)
            return
        self._pending.append(row)
        if self._visit is None:
            self._start()

    async def refresh(self) -> None:
        """Take in what other daemons wrote.

        Raises:
            NewerFormat: a newer version writes these files.
        """
        if not self._durable:
            return
        visit = self._visit or self._start()
        try:
            await visit
        except NewerFormat:
            raise
        except StoreError as error:
            log.warning("usage.unread", error=str(error), hint=error.hint)
        finally:
            # The callback of a visit that had ended before runs only in the next pass of the loop.
            self._end(visit)

    async def aclose(self) -> None:
        """Write what was counted and not written yet, as far as the disk takes it."""
        while self._pending and self._durable:
            # A visit that began with nothing pending only reads.
            visit = self._visit or self._start()
            # What failed is logged where the visit ends.
            with contextlib.suppress(NewerFormat):
                await self.refresh()
            if visit.exception() is not None or visit.result().error is not None:
                return

    def today(self) -> Totals:
        """Sum up the running day (UTC), as far as it was read."""
        day = self._clock().astimezone(UTC).date()
        sums = self._days.get(day, Totals())
        for row in self._pending:
            if row.at.date() == day:
                sums = _added(sums, row)
        return sums

    @property
    def limited(self) -> bool:
        """Whether there is a limit on what may be spent in a day."""
        return self._per_day_usd > 0

    def closed_until(self) -> datetime | None:
        """Return when the next day begins, where this one's limit is reached as far as it was read."""
        if not self.limited or (cost := self.today().cost_usd) < self._per_day_usd:
            return None
        now = self._clock().astimezone(UTC)
        until = now.replace(hour=0, minute=0, second=0, microsecond=0) + DAY
        if until != self._told_until:
            self._told_until = until
            log.warning(
                "usage.limit_reached", cost_usd=cost, limit_usd=self._per_day_usd, until=until.isoformat()
            )
        return until

    async def afford(self) -> None:
        """See that a call may still be paid today; see ``CostMeter``."""
        if not self.limited:
            return
        await self.refresh()
        until = self.closed_until()
        if until is not None:
            hint = f"wait until {until.isoformat()}, or raise limits.cost_per_day_usd"
            raise NotNow("what may be spent today is used up", reason="cost", until=until, hint=hint)

    def within_hour(self, person: str) -> list[datetime]:
        """List the ends of a person's turns of the last hour, oldest first."""
        since = self._clock() - HOUR
        ends = self._people.get(person, deque())
        while ends and ends[0] <= since:
            ends.popleft()
        pending = [row.at for row in self._pending if row.turn and row.person == person and row.at > since]
        return sorted([*ends, *pending])

    def _start(self) -> asyncio.Future[_Exchange]:
        rows, now = list(self._pending), self._clock().astimezone(UTC)
        visit = self._visit = self._disk.beside(lambda: self._files.exchange(rows, now))
        visit.add_done_callback(self._end)
        return visit

    def _end(self, visit: asyncio.Future[_Exchange]) -> None:
        """Take in what a visit brought, once: whoever sees its end first."""
        if visit is not self._visit or not visit.done():
            return
        self._visit = None
        error = visit.exception()
        if error is not None:
            log.warning("usage.unwritten", error=str(error))
            return
        done = visit.result()
        # What was counted while the disk was busy stays for the next visit.
        del self._pending[: done.written]
        for row in done.found:
            self._take(row)
        if done.error is not None:
            log.warning("usage.unwritten", error=str(done.error), hint=done.error.hint)
        elif self._pending:
            self._start()

    def _take(self, row: SpendingRow) -> None:
        day = row.at.date()
        if day not in self._days:
            self._days = {old: sums for old, sums in self._days.items() if day - old < timedelta(days=2)}
        self._days[day] = _added(self._days.get(day, Totals()), row)
        since = self._clock() - HOUR
        if row.turn and row.at > since:
            ends = self._people.setdefault(row.person, deque())
            ends.append(row.at)
            if len(ends) > 1 and ends[-2] > row.at:
                self._people[row.person] = deque(sorted(ends))
            if row.at - self._swept > HOUR:
                self._swept = row.at
                self._people = {who: ends for who, ends in self._people.items() if ends and ends[-1] > since}


class DayFiles:
    """Appends to and reads the files ``<day>.jsonl`` of a folder. For threads, one at a time."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self._lock = threading.Lock()
        self._read_to: dict[date, int] = {}

    def exchange(self, rows: Sequence[SpendingRow], now: datetime) -> _Exchange:
        """Append ``rows``, then read everything of the last hour's days that was not read yet.

        Raises:
            NewerFormat: a newer version writes these files; nothing was written.
            StoreError: they cannot be read.
        """
        with self._lock:
            days = sorted({(now - HOUR).date(), now.date(), *(row.at.date() for row in rows)})
            try:
                found = self._read(days)
            except OSError as error:
                raise StoreError(f"what models cost cannot be read: {error.strerror}") from error
            written = 0
            try:
                while written < len(rows):
                    written += self._append(rows[written:], now.date())
                found += self._read(days)
            except OSError as error:
                failed = StoreError(f"what models cost could not be written: {error.strerror}")
                return _Exchange(written, found, failed)
            return _Exchange(written, found)

    def _append(self, rows: Sequence[SpendingRow], today: date) -> int:
        """Append the rows of the first one's day in one write; return how many went in whole.

        Another daemon may have died in its write, or the disk be full in ours: the next line begins anew.
        """
        day = rows[0].at.date()
        path = self._path(day)
        if not path.exists():
            self._create(path, today)
        lines = [row.to_bytes() for row in rows if row.at.date() == day]
        # Several daemons write here: one write with O_APPEND is not mixed with those of others.
        fd = os.open(path, os.O_RDWR | os.O_APPEND | os.O_CLOEXEC)
        try:
            size = os.fstat(fd).st_size
            torn = size > 0 and os.pread(fd, 1, size - 1) != b"\n"
            left = os.write(fd, (b"\n" if torn else b"") + b"".join(lines)) - torn
        finally:
            os.close(fd)
        whole = sum(1 for end in accumulate(map(len, lines)) if end <= left)
        if not whole:
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
        return whole

    def _create(self, path: Path, today: date) -> None:
        durable.make_folder(path.parent)
        temp = path.with_name(f".{path.name}.{ULID()}.tmp")
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

    def _read(self, days: Iterable[date]) -> list[SpendingRow]:
        return [row for day in days for row in self._read_day(day)]

    def _read_day(self, day: date) -> list[SpendingRow]:
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
        rows = [row for raw in data[:keep].split(b"\n") if (row := _read_row(raw, day)) is not None]
        self._read_to[day] = start + keep
        return rows

    def _path(self, day: date) -> Path:
        return self._folder / f"{day.isoformat()}.jsonl"


def _all_from(fd: int, start: int) -> bytes:
    pieces = []
    while piece := os.pread(fd, _READ_BYTES, start):
        pieces.append(piece)
        start += len(piece)
    return b"".join(pieces)


def _read_row(raw: bytes, day: date) -> SpendingRow | None:
    """Read a line; None where it is torn, or the heading.

    Raises:
        NewerFormat: it is the heading of a newer version.
    """
    try:
        fields: Any = orjson.loads(raw)
        if "v" in fields:
            durable.check_version(fields["v"], VERSION, f"usage of {day}", error=NewerFormat)
        at = datetime.fromisoformat(fields["at"]).astimezone(UTC)
        usage = Usage(int(fields["prompt"]), int(fields["completion"]), float(fields["cost_usd"]))
        return SpendingRow(
            at, str(fields["key"]), str(fields["person"]), usage, turn=fields.get("turn") is not False
        )
    except (ValueError, TypeError, KeyError):
        return None


def _day_of(path: Path) -> date | None:
    try:
        return date.fromisoformat(path.stem)
    except ValueError:
        return None


def _added(sums: Totals, row: SpendingRow) -> Totals:
    usage = row.usage
    return Totals(
        sums.turns + row.turn,
        sums.prompt_tokens + usage.prompt,
        sums.completion_tokens + usage.completion,
        sums.cost_usd + usage.cost_usd,
    )
