"""What models cost is counted at once, kept over restarts, and summed up over all daemons."""

from __future__ import annotations

import asyncio
import gc
import os
import resource
import signal
import subprocess
import sys
import tracemalloc
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any, TypeVar

import orjson
import pytest

from session.disk.threads import DiskThreads
from session.errors import NewerFormat
from session.models.model import Totals, Usage
from session.models.spending import Spending
from session.models.usage_files import KEPT_DAYS, DayFiles
from session.models.usage_lines import Hold, SpendingRow
from session.models.usage_report import report
from tests.session.spending_victim import AtOnce
from tests.support.clock import Clock
from tests.support.guarantee import guarantee
from tests.support.kept import verified
from tests.support.prepared import ROOT

T = TypeVar("T")
NOON = datetime(2027, 1, 1, 12, tzinfo=UTC)
ONE = Usage(10, 2, 0.5)


class Daemon:
    """A Spending with its own threads and a clock that the test moves."""

    def __init__(self, folder: Path, now: datetime, *, durable: bool = True) -> None:
        self.clock = Clock(now)
        self.hop = DiskThreads()
        self.visits = 0
        self.spending = Spending(
            folder,
            disk=self,
            clock=self.clock,
            durable=durable,
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


async def test_a_torn_line_and_lines_that_are_no_turns_cost_themselves_alone(tmp_path: Path) -> None:
    """Put behind a turn in the file, where the next daemon goes on."""
    odd = b'[]\n"x"\n{"at": 1}\n\n\xff\n{"at":"2027-01-01T12:00:00+00:00"}\nnull\n{"at": "2027-01-01T12:0'
    async with daemon(tmp_path) as one:
        one.spending.record("a:1", "a:1", ONE)
    with (tmp_path / "2027-01-01.jsonl").open("ab") as file:
        file.write(odd)

    async with daemon(tmp_path) as again:
        await again.spending.refresh()
        again.spending.record("a:1", "a:1", ONE)
        await again.spending.refresh()
        assert again.spending.today().turns == 2

    async with daemon(tmp_path) as third:
        await third.spending.refresh()
        assert third.spending.today().turns == 2


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


async def test_what_is_counted_as_a_visit_ends_is_written_at_the_close(tmp_path: Path) -> None:
    """The visit has ended and its loop has not said so yet: a pass of the loop may end many at once."""
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


# Half of what it is to write goes in; where there is no end, the kill comes before the last byte.
_DIES_IN_ITS_WRITE = """
import os, signal, sys
from datetime import UTC, datetime
from pathlib import Path
from session.models.model import Usage
from session.models.usage_files import DayFiles
from session.models.usage_lines import SpendingRow

files, noon, write = DayFiles(Path(sys.argv[1])), datetime(2027, 1, 1, 12, tzinfo=UTC), os.write
row = SpendingRow(noon, "a:1", "a:1", Usage(10, 2, 0.5))
files.exchange([row], noon)

def half(fd, data):
    write(fd, data[: len(data) // 2 if sys.argv[2] == "half" else -1])
    os.kill(os.getpid(), signal.SIGKILL)

os.write = half
files.exchange([row], noon)
"""


@pytest.mark.parametrize("most", ["half", "all but its end"])
async def test_what_a_writer_left_that_was_killed_in_its_write_is_no_damage(
    most: str, tmp_path: Path
) -> None:
    """The next one marks it and goes on behind it; each further one counts the same."""
    folder = tmp_path / "state" / "usage"
    died = subprocess.run(
        [sys.executable, "-c", _DIES_IN_ITS_WRITE, str(folder), most], cwd=ROOT, timeout=60, check=False
    )
    left = (folder / "2027-01-01.jsonl").read_bytes()

    assert died.returncode == -signal.SIGKILL
    assert not left.endswith(b"\n")
    assert await verified(tmp_path) == []
    async with daemon(folder) as again:
        again.spending.record("a:1", "a:1", ONE)
        await again.spending.refresh()
    assert (folder / "2027-01-01.jsonl").read_bytes().startswith(left + b"\x18\n")
    assert await verified(tmp_path) == []
    async with daemon(folder) as third:
        await third.spending.refresh()
        assert third.spending.today().turns == 2


TURNS = 10_000


@guarantee("operation", "The memory for usage limits does not grow with the number of turns.")
@pytest.mark.parametrize("turns_per_hour", [0, 100])
def test_whoever_writes_day_and_night_leaves_no_memory_behind(tmp_path: Path, turns_per_hour: int) -> None:
    """Where nobody asks when turns ended nothing is kept of them, else an hour of them, asked or not."""
    clock = Clock()
    spending = Spending(tmp_path, disk=AtOnce(), clock=clock, durable=False, turns_per_hour=turns_per_hour)
    tracemalloc.start()
    try:
        for _ in range(TURNS):
            clock.forward(seconds=30)
            spending.record("a:1", "a:1", Usage(10, 2, 0.5))
        gc.collect()
        held, _ = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()

    assert len(spending.within_hour("a:1")) == (120 if turns_per_hour else 0)
    # A time takes some 56 bytes: those of an hour 7 kB, those of two days 320 kB.
    assert held < 30_000


NOW = datetime(2026, 3, 10, 12, tzinfo=UTC)


def test_sums_by_day_chat_person_and_model(tmp_path: Path) -> None:
    """Turns and other calls apart; holds, headings and torn lines are none; the dearest first."""
    earlier = NOW - timedelta(days=2)
    rows = {
        NOW: [
            SpendingRow(NOW, "web:a", "people/ada", Usage(10, 2, 0.25), model="big"),
            SpendingRow(NOW, "web:b", "web:b", Usage(100, 1, 0.5), model="big"),
            SpendingRow(NOW, "web:a", "", Usage(7, 1, 0.01), turn=False, model="small"),
            Hold(NOW, NOW, SpendingRow(NOW, "web:a", "x", Usage()).payer),
        ],
        earlier: [SpendingRow(earlier, "web:a", "people/ada", Usage(1, 1, 0.0))],
    }
    for at, lines in rows.items():
        data = b'{"v": 1}\n' + b"".join(line.to_bytes() for line in lines) + b'{"at": "2026-'
        (tmp_path / f"{at:%Y-%m-%d}.jsonl").write_bytes(data)

    found = report(tmp_path, today=NOW.date(), days=3)
    of_one = report(tmp_path, today=NOW.date(), days=1, key="web:b")

    assert (found["from"], found["to"]) == ("2026-03-08", "2026-03-10")
    assert [(day["day"][-2:], day["turns"], day["calls"]) for day in found["days"]] == [
        ("08", 1, 0),
        ("09", 0, 0),
        ("10", 2, 1),
    ]
    assert [(chat["key"], chat["cost_usd"]) for chat in found["chats"]] == [("web:b", 0.5), ("web:a", 0.26)]
    assert [(who["person"], who["turns"]) for who in found["people"]] == [("web:b", 1), ("people/ada", 2)]
    assert [(each["model"], each["prompt_tokens"]) for each in found["models"]] == [
        ("big", 110),
        ("small", 7),
        (None, 1),
    ]
    assert found["total"] == {"turns": 3, "calls": 1, **Usage(118, 5, 0.76).shown()}
    assert (of_one["total"]["turns"], len(of_one["days"])) == (1, 1)


def test_what_has_no_price_is_unknown_and_no_part_of_a_sum(tmp_path: Path) -> None:
    """Lines of an older version have no word of caches, and 0 where no price was known."""
    older = b'{"at": "%s", "key": "web:a", "person": "", "prompt": %d, "completion": 1, "cost_usd": %s}\n'
    at = NOW.isoformat().encode()
    rows = [
        SpendingRow(NOW, "web:b", "", Usage(100, 10, 0.25, 80, 5), model="big"),
        SpendingRow(NOW, "web:c", "", Usage(50, 5, unpriced=55), model="odd"),
        SpendingRow(NOW, "web:d", "", Usage(7, 1), model="ollama/own"),
    ]
    lines = [older % (at, 10, b"0.0"), older % (at, 20, b"0.5"), *(row.to_bytes() for row in rows)]
    (tmp_path / f"{NOW:%Y-%m-%d}.jsonl").write_bytes(b'{"v": 1}\n' + b"".join(lines))

    found = report(tmp_path, today=NOW.date(), days=1)

    models = {row["model"]: row for row in found["models"]}
    costs = {name: (row["cost_usd"], row["unpriced_tokens"]) for name, row in models.items()}
    assert costs == {"big": (0.25, 0), "odd": (None, 55), "ollama/own": (0.0, 0), None: (0.5, 11)}
    assert (models["big"]["cached_tokens"], models["big"]["cache_written_tokens"]) == (80, 5)
    assert (found["total"]["cost_usd"], found["total"]["unpriced_tokens"]) == (0.75, 66)
    assert report(tmp_path / "none", today=NOW.date(), days=1)["total"]["turns"] == 0
