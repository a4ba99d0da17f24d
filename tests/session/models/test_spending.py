"""What models cost is counted at once, kept over restarts, and summed up over all daemons."""

from __future__ import annotations

import asyncio
import os
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any, TypeVar

import orjson
import pytest
import structlog

from session.disk.threads import DiskThreads
from session.errors import NewerFormat, NotNow
from session.models.caps import Caps
from session.models.model import Totals, Usage
from session.models.spending import Spending
from session.models.usage_files import KEPT_DAYS, DayFiles
from session.models.usage_lines import SpendingRow
from tests.support.clock import Clock

T = TypeVar("T")
NOON = datetime(2027, 1, 1, 12, tzinfo=UTC)
ONE = Usage(10, 2, 0.5)


class Daemon:
    """A Spending with its own threads and a clock that the test moves."""

    def __init__(
        self, folder: Path, now: datetime, *, durable: bool = True, per_day_usd: float = 0.0
    ) -> None:
        self.clock = Clock(now)
        self.hop = DiskThreads()
        self.visits = 0
        self.spending = Spending(
            folder,
            disk=self,
            clock=self.clock,
            durable=durable,
            caps=Caps(cost_per_day_usd=per_day_usd),
            turns_per_hour=100,
        )

    def beside(self, job: Callable[[], T]) -> asyncio.Future[T]:
        self.visits += 1
        return self.hop.start(job)


@asynccontextmanager
async def daemon(folder: Path, now: datetime = NOON, **more: Any) -> AsyncIterator[Daemon]:
    one = Daemon(folder, now, **more)
    try:
        yield one
        await one.spending.aclose()
    finally:
        one.hop.close()


def rows_in(path: Path) -> list[dict[str, object]]:
    return [orjson.loads(line) for line in path.read_bytes().split(b"\n") if line]


def newer(workspace: Path) -> Path:
    """Return the day's file below ``usage/``, as a newer version writes it."""
    path = workspace / "usage" / "2027-01-01.jsonl"
    path.parent.mkdir()
    path.write_bytes(b'{"v":2}\n')
    return path


def in_the_way(workspace: Path) -> Path:
    """Return a file that has the name of the folder ``usage/``, which so cannot be made."""
    path = workspace / "usage"
    path.write_text("in the way")
    return path


async def test_a_turn_counts_at_once_and_after_a_restart(tmp_path: Path) -> None:
    async with daemon(tmp_path) as one:
        one.spending.record("cli:ada", "cli:ada", ONE)
        assert one.spending.today() == Totals(1, Usage(10, 2, 0.5))
        assert one.spending.within_hour("cli:ada") == [NOON]
        await one.spending.refresh()
        assert one.spending.today() == Totals(1, Usage(10, 2, 0.5))

    async with daemon(tmp_path) as again:
        await again.spending.refresh()
        assert again.spending.today() == Totals(1, Usage(10, 2, 0.5))
        assert again.spending.within_hour("cli:ada") == [NOON]

    assert rows_in(tmp_path / "2027-01-01.jsonl") == [
        {"v": 1},
        {
            "at": "2027-01-01T12:00:00+00:00",
            "key": "cli:ada",
            "person": "cli:ada",
            "prompt": 10,
            "completion": 2,
            "cost_usd": 0.5,
        },
    ]


async def test_two_daemons_see_each_others_turns_once(tmp_path: Path) -> None:
    async with daemon(tmp_path) as one, daemon(tmp_path) as other:
        for _ in range(50):
            one.spending.record("a:1", "a:1", ONE)
            other.spending.record("a:1", "a:1", ONE)
            await asyncio.gather(one.spending.refresh(), other.spending.refresh())
        await one.spending.aclose()
        await other.spending.aclose()
        await one.spending.refresh()
        await other.spending.refresh()

        assert one.spending.today().turns == other.spending.today().turns == 100
        assert len(one.spending.within_hour("a:1")) == 100


async def test_many_turns_at_once_are_written_in_few_visits(tmp_path: Path) -> None:
    async with daemon(tmp_path) as one:
        for _ in range(1000):
            one.spending.record("a:1", "a:1", ONE)
        assert one.visits == 1
        await one.spending.aclose()

        assert one.visits <= 3
        assert one.spending.today().turns == 1000
        assert len(rows_in(tmp_path / "2027-01-01.jsonl")) == 1001


async def test_one_that_is_not_durable_touches_no_disk(tmp_path: Path) -> None:
    async with daemon(tmp_path / "usage", durable=False) as one:
        one.spending.record("a:1", "a:1", ONE)
        await one.spending.refresh()

        assert one.spending.today() == Totals(1, Usage(10, 2, 0.5))
        assert one.visits == 0
    assert not (tmp_path / "usage").exists()


async def one_turn_then(folder: Path, data: bytes) -> None:
    """Count a turn, and put these bytes behind it in the file."""
    async with daemon(folder) as one:
        one.spending.record("a:1", "a:1", ONE)
    with (folder / "2027-01-01.jsonl").open("ab") as file:
        file.write(data)


async def test_a_torn_line_costs_itself_alone(tmp_path: Path) -> None:
    await one_turn_then(tmp_path, b'{"at": "2027-01-01T12:0')

    async with daemon(tmp_path) as again:
        await again.spending.refresh()
        again.spending.record("a:1", "a:1", ONE)
        await again.spending.refresh()
        assert again.spending.today().turns == 2

    async with daemon(tmp_path) as third:
        await third.spending.refresh()
        assert third.spending.today().turns == 2


async def test_lines_that_are_no_turns_are_passed_over(tmp_path: Path) -> None:
    await one_turn_then(tmp_path, b'[]\n"x"\n{"at": 1}\n\n\xff\n{"at":"2027-01-01T12:00:00+00:00"}\nnull\n')

    async with daemon(tmp_path) as again:
        await again.spending.refresh()
        assert again.spending.today().turns == 1


async def test_a_day_and_an_hour_end(tmp_path: Path) -> None:
    async with daemon(tmp_path, datetime(2027, 1, 1, 23, 30, tzinfo=UTC)) as one:
        one.spending.record("a:1", "a:1", ONE)
        await one.spending.refresh()
        one.clock.forward(minutes=45)
        assert one.spending.today() == Totals()
        assert len(one.spending.within_hour("a:1")) == 1

        # The last hour began in the file of yesterday.
        async with daemon(tmp_path, one.clock.now) as again:
            await again.spending.refresh()
            assert again.spending.today() == Totals()
            assert len(again.spending.within_hour("a:1")) == 1

        one.clock.forward(minutes=15)
        assert one.spending.within_hour("a:1") == []


async def test_files_older_than_they_are_kept_go_with_the_first_line_of_a_day(tmp_path: Path) -> None:
    young, old = NOON.date() - timedelta(days=KEPT_DAYS), NOON.date() - timedelta(days=KEPT_DAYS + 1)
    for name in (f"{young}.jsonl", f"{old}.jsonl", "notes.jsonl"):
        (tmp_path / name).write_bytes(b'{"v":1}\n')

    async with daemon(tmp_path) as one:
        one.spending.record("a:1", "a:1", ONE)

    assert sorted(path.name for path in tmp_path.iterdir()) == sorted(
        ["2027-01-01.jsonl", f"{young}.jsonl", "notes.jsonl"]
    )


async def test_a_file_of_a_newer_version_is_refused_and_left_as_it_is(tmp_path: Path) -> None:
    path = newer(tmp_path)

    async with daemon(path.parent) as one:
        with pytest.raises(NewerFormat):
            await one.spending.refresh()
    assert path.read_bytes() == b'{"v":2}\n'


async def test_a_disk_that_refuses_costs_no_count(tmp_path: Path) -> None:
    """What could not be written is counted, and written when the disk takes lines again."""
    folder = in_the_way(tmp_path)

    async with daemon(folder) as one:
        one.spending.record("a:1", "a:1", ONE)
        await one.spending.refresh()
        assert one.spending.today().turns == 1
        folder.unlink()

        await one.spending.refresh()

        assert one.spending.today().turns == 1
    assert len(rows_in(folder / "2027-01-01.jsonl")) == 2


def test_a_short_write_is_gone_on_with(tmp_path: Path) -> None:
    """A line that went in by half is written again on a line of its own."""
    import resource
    import signal

    files = DayFiles(tmp_path)
    rows = [SpendingRow(NOON, "a:1", f"a:{n}", ONE) for n in range(20)]
    files.exchange(rows[:1], NOON)
    size = (tmp_path / "2027-01-01.jsonl").stat().st_size
    old = resource.getrlimit(resource.RLIMIT_FSIZE)
    ignored = signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
    resource.setrlimit(resource.RLIMIT_FSIZE, (size + 400, old[1]))
    try:
        visit = files.exchange(rows[1:], NOON)
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, old)
        signal.signal(signal.SIGXFSZ, ignored)

    assert visit.error is not None
    assert 0 < visit.written < 19
    rest = files.exchange(rows[1 + visit.written :], NOON)
    assert rest.error is None
    everything = DayFiles(tmp_path).exchange([], NOON).found
    assert [row.person for row in everything] == [row.person for row in rows]


def test_its_files_are_private(tmp_path: Path) -> None:
    old = os.umask(0)
    try:
        DayFiles(tmp_path / "usage").exchange([SpendingRow(NOON, "a:1", "a:1", ONE)], NOON)
    finally:
        os.umask(old)

    assert (tmp_path / "usage").stat().st_mode & 0o777 == 0o700
    assert (tmp_path / "usage" / "2027-01-01.jsonl").stat().st_mode & 0o777 == 0o600


async def test_a_call_that_is_no_turn_counts_in_all_but_turns(tmp_path: Path) -> None:
    """At once, when it is written, and for another process; for nobody it is one of the hour."""
    async with daemon(tmp_path) as one, daemon(tmp_path) as other:
        one.spending.record("a:1", "a:1", ONE)
        one.spending.pay("a:1", Usage(100, 20, 2.0))
        assert one.spending.today() == Totals(1, Usage(110, 22, 2.5))
        assert (len(one.spending.within_hour("a:1")), one.spending.within_hour("")) == (1, [])

        await one.spending.aclose()
        await other.spending.refresh()

        for spending in (one.spending, other.spending):
            assert spending.today() == Totals(1, Usage(110, 22, 2.5))
            assert (len(spending.within_hour("a:1")), spending.within_hour("")) == (1, [])


async def test_a_call_that_is_no_turn_is_a_line_that_earlier_versions_can_read(tmp_path: Path) -> None:
    """It has all that a turn's line has, and one field more; the person is one that no turn has."""
    async with daemon(tmp_path) as one:
        one.spending.record("a:1", "a:7", ONE)
        one.spending.pay("a:1", ONE)

    heading, turn, call = rows_in(tmp_path / "2027-01-01.jsonl")
    assert heading == {"v": 1}
    assert "turn" not in turn
    assert call == {**turn, "person": "", "turn": False}


async def test_the_limit_of_a_day_is_reached_by_turns_and_calls_of_all_daemons(tmp_path: Path) -> None:
    """Until midnight UTC; the log says it once a day."""
    evening = datetime(2027, 1, 1, 23, tzinfo=UTC)
    midnight = datetime(2027, 1, 2, tzinfo=UTC)
    async with (
        daemon(tmp_path, evening, per_day_usd=1.0) as one,
        daemon(tmp_path, evening, per_day_usd=1.0) as other,
    ):
        other.spending.record("a:1", "a:1", ONE)
        await one.spending.afford()
        assert one.spending.closed_until() is None
        other.spending.pay("a:1", ONE)
        await other.spending.aclose()

        with structlog.testing.capture_logs() as logs:
            for _ in range(3):
                with pytest.raises(NotNow) as caught:
                    await one.spending.afford()
        assert (caught.value.reason, caught.value.until) == ("cost", midnight)
        assert one.spending.closed_until() == midnight
        assert [(line["event"], line["limit"]) for line in logs] == [
            ("usage.limit_reached", "cost_per_day_usd")
        ]

        one.clock.now = midnight
        await one.spending.afford()
        assert one.spending.closed_until() is None


async def test_what_is_counted_as_a_visit_ends_is_written_at_the_close(tmp_path: Path) -> None:
    """The visit has ended and its loop has not said so yet: a pass of the loop may end many at once."""

    class AtOnce:
        def beside(self, job: Callable[[], T]) -> asyncio.Future[T]:
            visit: asyncio.Future[T] = asyncio.get_running_loop().create_future()
            visit.set_result(job())
            return visit

    spending = Spending(tmp_path, disk=AtOnce(), clock=lambda: NOON, durable=True)
    spending.record("a:1", "a:1", ONE)
    spending.pay("a:1", ONE)
    await spending.aclose()

    assert len(rows_in(tmp_path / "2027-01-01.jsonl")) == 3
    assert spending.today() == Totals(1, Usage(20, 4, 1.0))


async def test_what_is_counted_while_a_visit_only_reads_is_written_at_the_close(tmp_path: Path) -> None:
    """The visit that is under way at the close began before there was anything to write."""
    async with daemon(tmp_path) as one:
        reading = asyncio.ensure_future(one.spending.refresh())
        await asyncio.sleep(0)
        assert one.visits == 1
        one.spending.record("a:1", "a:1", ONE)
        await one.spending.aclose()

        assert len(rows_in(tmp_path / "2027-01-01.jsonl")) == 2
        await reading


@pytest.mark.parametrize("refusing", [newer, in_the_way])
async def test_the_close_gives_up_where_nothing_can_be_written(
    tmp_path: Path, refusing: Callable[[Path], Path]
) -> None:
    """A newer version began to write meanwhile, or the disk refuses: all else is closed all the same."""
    path = refusing(tmp_path)
    before = path.read_bytes()

    async with daemon(tmp_path / "usage") as one:
        one.spending.record("a:1", "a:1", ONE)
        await one.spending.aclose()

        assert one.spending.today().turns == 1
    assert path.read_bytes() == before


async def test_without_a_limit_no_call_looks_at_the_disk(tmp_path: Path) -> None:
    async with daemon(tmp_path) as one:
        one.spending.pay("a:1", Usage(1, 1, 1000.0))
        await one.spending.refresh()
        visits = one.visits
        await one.spending.afford()

        assert (one.spending.closed_until(), one.visits) == (None, visits)
