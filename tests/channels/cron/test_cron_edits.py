"""Jobs that are edited, run by several or started by hand."""

from __future__ import annotations

import signal
import subprocess
import sys
from contextlib import AsyncExitStack
from datetime import UTC, datetime, timedelta
from itertools import pairwise
from pathlib import Path
from typing import Any

import pytest

from channels.cron.jobs import BadJob, new_row
from channels.cron.schedule import Every
from channels.cron.scheduler import run_now
from tests.channels.cron.cron_place import (
    HOUR,
    MINUTE,
    NOON,
    Place,
    every,
    hourly,
    jobs,
    ms,
)
from tests.support.until import until

ROOT = Path(__file__).parents[3]


# -- edits ---------------------------------------------------------------------------------------------


async def test_edits_are_picked_up_within_a_second(place: Place) -> None:
    """Added, changed, switched off and removed by hand."""
    second = timedelta(seconds=1)
    place.write(every(5, "off"), every(5, "gone"), hourly("changed"))

    async with place.running():
        await place.noted(lambda jobs: all(job["state"].get("nextRunAtMs") for job in jobs.values()))
        await place.time.to(NOON + 3 * second)
        await place.edit(jobs(every(5, "off", enabled=False), every(5, "changed"), every(5, "new")))
        await place.time.to(NOON + 10 * second)
        await place.count(4)
        await place.time.to(NOON + 14 * second)

    assert sorted(place.slots) == [
        "changed@01T12:00:05Z",
        "changed@01T12:00:10Z",
        "new@01T12:00:05Z",
        "new@01T12:00:10Z",
    ]


async def test_an_edit_of_the_time_of_day_runs_nothing_that_is_past(place: Place) -> None:
    place.write(hourly(nextRunAtMs=ms(NOON + HOUR)))

    async with place.running():
        await place.time.to(NOON + 30 * MINUTE)
        edited = {"schedule": {"kind": "cron", "expr": "15 * * * *", "tz": "UTC"}}
        await place.edit(jobs(hourly(nextRunAtMs=ms(NOON + HOUR)) | edited))
        await place.time.to(NOON + HOUR + 15 * MINUTE)
        await place.count(1)

    assert place.slots == ["a@01T13:15:00Z"]


async def test_the_next_slot_stands_in_the_file_before_it_comes(place: Place) -> None:
    """So that the next scheduler knows where this one stood, and nanobot when it is due."""
    place.write(hourly("a"), hourly("off", nextRunAtMs=5) | {"enabled": False})

    async with place.running():
        await place.noted(lambda jobs: jobs["a"]["state"].get("nextRunAtMs") == ms(NOON + HOUR))

    assert place.on_disk()["off"]["state"]["nextRunAtMs"] is None


async def test_the_last_good_jobs_run_on_while_the_file_is_broken(place: Place) -> None:
    """The broken file is not touched; once it is mended, what ran meanwhile is noted."""
    place.write(hourly("a", nextRunAtMs=ms(NOON + HOUR)), hourly("b", nextRunAtMs=ms(NOON + HOUR)))
    good = place.file.path.read_text()

    async with place.running():
        await place.time.to(NOON + MINUTE)
        await place.edit(good[: len(good) // 2])
        await place.time.to(NOON + HOUR)
        assert sorted(await place.count(2)) == ["a@01T13:00:00Z", "b@01T13:00:00Z"]
        await place.time.to(NOON + HOUR + MINUTE)
        assert place.file.path.read_text() == good[: len(good) // 2]

        await place.edit(good)
        await place.time.to(NOON + HOUR + 2 * MINUTE)
        await place.noted(lambda jobs: all(job["state"].get("lastStatus") == "ok" for job in jobs.values()))

    assert len(place.put) == 2
    assert list(place.workspace.glob("cron/*corrupt*")) == []


@pytest.mark.parametrize(
    "schedule",
    [
        {"kind": "cron", "expr": "* * * * * *"},
        {"kind": "at", "atMs": -62_135_596_800_000},
        {"kind": "at", "atMs": 253_402_300_799_999},
    ],
    ids=["six fields", "first day", "last day"],
)
async def test_a_bad_job_stops_no_other(place: Place, schedule: dict[str, Any]) -> None:
    place.write(hourly("a"), hourly("bad") | {"schedule": schedule})

    async with place.running():
        await place.time.to(NOON + HOUR)
        await place.count(1)
        await place.noted(lambda jobs: jobs["a"]["state"].get("lastStatus") == "ok")

    assert "bad" in place.on_disk()


# -- several -------------------------------------------------------------------------------------------


async def test_one_of_two_runs_the_clock_and_the_other_takes_over(place: Place) -> None:
    place.write(hourly())
    other = Place(place.workspace)
    other.time.now = NOON + HOUR

    async with AsyncExitStack() as first, AsyncExitStack() as second:
        await first.enter_async_context(place.running())
        await second.enter_async_context(other.running(wait=False))
        await place.time.to(NOON + HOUR)
        await place.noted(lambda jobs: jobs["a"]["state"].get("lastStatus") == "ok")
        assert not other.time.waited
        assert other.pulse.up

        await first.aclose()
        await other.time.idle()
        await other.time.to(NOON + 2 * HOUR)
        await other.count(1)

    assert (place.slots, other.slots) == (["a@01T13:00:00Z"], ["a@01T14:00:00Z"])


async def test_schedulers_that_do_not_know_of_each_other_put_the_same_ids(place: Place) -> None:
    """So that each slot runs once even where locks do not hold, as on some network file systems."""
    other = Place(place.workspace / "other")
    other.workspace.mkdir()
    other.time.now = NOON + timedelta(seconds=3.3)
    for one in (place, other):
        one.write(every(7), hourly("b"))
        async with one.running():
            await one.time.to(NOON + timedelta(seconds=14))
            await one.count(2)

    assert place.slots == other.slots == ["a@01T12:00:07Z", "a@01T12:00:14Z"]


VICTIM = """
import asyncio, os, sys
from datetime import UTC, datetime
from pathlib import Path
from typing import Any
from channels.base import Pulse
from channels.cron.jobs_file import CronFile
from channels.cron.scheduler import CronScheduler

async def put(inbound):
    os.write(log, f"{inbound.id}\\n".encode())
    os.fdatasync(log)

workspace = Path(sys.argv[1])
log = os.open(workspace / "put.log", os.O_WRONLY | os.O_APPEND | os.O_CREAT)
clock = lambda: datetime.now(UTC)
scheduler = CronScheduler(CronFile(workspace), workspace / "state", pulse=Pulse(), clock=clock, put=put)
asyncio.run(scheduler.run())
"""


async def test_kill_9_loses_no_slot(place: Place) -> None:
    """Whatever the instant: every slot is put, and what is put twice has the same id."""
    now = datetime.now(UTC)
    births = [now + n * timedelta(milliseconds=50) for n in range(20)]
    # Each on its own grid: a next slot beside the grid would begin anew at whatever instant it is first read.
    names = [place.file.add(new_row(Every(1_000, born), "m", at=born, policy="all")).id for born in births]
    log = place.workspace / "put.log"
    log.touch()

    def slots(name: str) -> list[datetime]:
        lines = [line for line in log.read_text().splitlines() if line.startswith(f"cron:{name}@")]
        return sorted({datetime.fromisoformat(line.partition("@")[2]) for line in lines})

    for kill in range(4):
        before = len(log.read_bytes().splitlines())
        command = [sys.executable, "-c", VICTIM, str(place.workspace)]
        with subprocess.Popen(command, cwd=ROOT) as victim:
            enough = before + 15 + 7 * kill
            try:
                await until(lambda: len(log.read_bytes().splitlines()) >= enough, within_s=60)  # noqa: B023
                if kill == 3:
                    await until(lambda: min(len(slots(name)) for name in names) >= 5, within_s=60)
            finally:
                victim.send_signal(signal.SIGKILL)

    for name in names:
        assert {later - earlier for earlier, later in pairwise(slots(name))} == {timedelta(seconds=1)}


# -- by hand -------------------------------------------------------------------------------------------


async def test_a_run_by_hand_is_a_letter_of_its_own(place: Place) -> None:
    place.write(hourly(nextRunAtMs=ms(NOON + HOUR)) | {"enabled": False})

    said = [await run_now(place.file, "a", place.take) for _ in range(2)]

    assert [inbound.id for inbound in place.put] == [one["id"] for one in said]
    assert len({inbound.id for inbound in place.put}) == 2
    assert all(inbound.id.startswith("cron:a@run:") for inbound in place.put)
    state = place.on_disk()["a"]["state"]
    assert (state["lastStatus"], state["nextRunAtMs"]) == ("ok", ms(NOON + HOUR))


async def test_what_nanobot_does_for_itself_is_not_run_by_hand(place: Place) -> None:
    place.write(hourly() | {"payload": {"kind": "system_event"}})

    with pytest.raises(BadJob):
        await run_now(place.file, "a", place.take)

    assert place.put == []
