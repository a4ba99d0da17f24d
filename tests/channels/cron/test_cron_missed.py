"""Slots that were missed, and clocks that leap."""

from __future__ import annotations

import asyncio
from datetime import UTC
from pathlib import Path

import pytest

from channels.cron.job import Ran, due, new_row
from channels.cron.jobs_file import CronFile
from channels.cron.owner import Owner
from channels.cron.schedule import At, cron
from channels.message import Inbound
from tests.channels.cron.cron_place import (
    DAY,
    HOUR,
    MINUTE,
    NOON,
    PATIENCE_S,
    Place,
    hourly,
    jobs,
    ms,
)
from tests.support.guarantee import guarantee

# -- missed --------------------------------------------------------------------------------------------


async def test_what_nobody_looked_at_is_made_up_at_the_start(place: Place) -> None:
    stood = ms(NOON - 2 * HOUR)
    place.write(
        hourly("once", nextRunAtMs=stood),
        hourly("all", "all", nextRunAtMs=stood),
        hourly("skip", "skip", nextRunAtMs=stood),
    )
    place.time.now = NOON + 10 * MINUTE

    async with place.running():
        await place.count(4)
        await place.noted(lambda jobs: all(job["state"].get("lastStatus") for job in jobs.values()))

    assert sorted(place.slots) == [
        "all@01T10:00:00Z",
        "all@01T11:00:00Z",
        "all@01T12:00:00Z",
        "once@01T12:00:00Z",
    ]
    jobs = place.on_disk()
    assert {job["state"]["nextRunAtMs"] for job in jobs.values()} == {ms(NOON + HOUR)}
    assert (jobs["skip"]["state"]["lastStatus"], jobs["once"]["state"]["lastStatus"]) == ("skipped", "ok")


async def test_what_was_to_run_once_and_is_over_a_day_late_is_said_and_kept(place: Place) -> None:
    place.write(
        hourly("late")
        | {"schedule": {"kind": "at", "atMs": ms(NOON - DAY - MINUTE)}, "deleteAfterRun": True},
        hourly("now") | {"schedule": {"kind": "at", "atMs": ms(NOON - HOUR)}, "deleteAfterRun": True},
    )

    async with place.running():
        await place.count(1)
        await place.noted(lambda jobs: "now" not in jobs and jobs["late"].get("enabled") is False)

    assert place.slots == ["now@01T11:00:00Z"]
    state = place.on_disk()["late"]["state"]
    assert state["lastStatus"] == "skipped"
    assert "missed" in state["lastError"]


@guarantee("loss", "A reminder that was set in a chat is delivered, however late.")
async def test_a_reminder_that_was_made_in_a_chat_is_asked_however_late(place: Place) -> None:
    """Once, and it is gone then: whoever made it was promised."""
    owner = Owner("telegram:1", "1", "Ada", "telegram:9:1")
    at = NOON - 30 * DAY
    place.write(
        new_row(At(at), "call mum", at=at - DAY, to="telegram:1", owner=owner, job_id="late"),
        hourly("now") | {"schedule": {"kind": "at", "atMs": ms(NOON - HOUR)}, "deleteAfterRun": True},
    )

    async with place.running():
        await place.count(2)
        await place.noted(lambda jobs: not jobs)

    assert sorted(place.slots) == ["late@2026-05-02T12:00:00Z", "now@01T11:00:00Z"]


@pytest.mark.parametrize("ran", [False, True], ids=["first slot", "later slot"])
def test_a_run_by_hand_takes_no_missed_slot_away(tmp_path: Path, ran: bool) -> None:
    """Nobody looked when it was due; that somebody tries it then is no run of its slot."""
    file = CronFile(tmp_path, clock=lambda: NOON + 10 * MINUTE)
    made = NOON - 3 * HOUR
    file.add(new_row(cron("0 12 * * *", UTC), "m", at=made, job_id="daily"))
    file.add(new_row(At(NOON), "m", at=made, job_id="once"))
    if ran:
        # As nanobot leaves it, which knows of no slots.
        file.note([Ran("daily", None, "ok", made + MINUTE)], {"daily": ms(NOON)})

    for job_id in ("daily", "once"):
        file.ran(job_id, None, "ok")
        file.ran(job_id, None, "ok")

    found = file.read().jobs
    assert {job_id: due(job, NOON + 10 * MINUTE) for job_id, job in found.items()} == {
        "daily": NOON,
        "once": NOON,
    }


def test_a_run_by_hand_brings_no_slot_back_that_nanobot_ran(tmp_path: Path) -> None:
    """It notes when it ran and no slot; by that the slot counts as kept."""
    file = CronFile(tmp_path, clock=lambda: NOON + 10 * MINUTE)
    row = new_row(At(NOON), "m", at=NOON - HOUR, job_id="once")
    file.add(row | {"state": row["state"] | {"lastRunAtMs": ms(NOON + MINUTE)}})

    file.ran("once", None, "ok")

    assert due(file.read().jobs["once"], NOON + 10 * MINUTE) is None


async def test_a_clock_that_is_set_back_runs_no_slot_again(place: Place) -> None:
    place.write(hourly())

    async with place.running():
        await place.time.to(NOON + HOUR)
        await place.count(1)
        await place.time.to(NOON - 2 * HOUR)
        await place.edit(jobs(*[row | {"name": "edited"} for row in place.on_disk().values()]))
        await place.time.to(NOON + HOUR)
        await place.time.to(NOON + 2 * HOUR)
        await place.count(2)

    assert place.slots == ["a@01T13:00:00Z", "a@01T14:00:00Z"]


async def test_a_clock_that_was_wrong_by_months_stops_no_job(place: Place) -> None:
    place.write(hourly())
    place.time.now = NOON + 90 * DAY

    async with place.running():
        await place.time.to(NOON + 90 * DAY + HOUR)
        await place.count(1)
        await place.noted(lambda jobs: jobs["a"]["state"].get("lastStatus") == "ok")
        await place.taken_over()
        await place.time.to(NOON)
        await place.time.to(NOON + HOUR)
        await place.count(2)

    assert place.slots[1] == "a@01T13:00:00Z"


async def test_a_clock_that_is_mended_while_a_run_is_noted_stops_no_job(place: Place) -> None:
    """What the note knew of the next slots was reckoned by the wrong clock."""
    half_past = {"kind": "cron", "expr": "30 * * * *", "tz": "UTC"}
    place.write(hourly("a"), hourly("b") | {"schedule": half_past})
    place.time.now = NOON + 90 * DAY + 45 * MINUTE

    async with place.running():
        await place.noted(lambda jobs: all(job["state"].get("nextRunAtMs") for job in jobs.values()))
        await place.taken_over()
        place.time.free.clear()
        await place.time.to(NOON + 90 * DAY + HOUR)
        await place.count(1)
        await asyncio.wait_for(place.time.kept.wait(), PATIENCE_S)
        await place.time.to(NOON)
        place.time.free.set()
        await place.taken_over()
        await place.time.to(NOON + HOUR)
        await place.count(3)

    assert place.slots[1:] == ["b@01T12:30:00Z", "a@01T13:00:00Z"]


async def test_a_clock_that_is_mended_while_a_letter_is_put_stops_no_job(place: Place) -> None:
    place.write(hourly())
    place.time.now = NOON + 90 * DAY
    durable, begun = asyncio.Event(), asyncio.Event()

    async def hold(_: Inbound) -> None:
        begun.set()
        await durable.wait()

    place.before_put = hold
    async with place.running():
        await place.noted(lambda jobs: bool(jobs["a"]["state"].get("nextRunAtMs")))
        await place.taken_over()
        await place.time.to(NOON + 90 * DAY + HOUR)
        await begun.wait()
        await place.time.to(NOON)
        durable.set()
        await place.count(1)
        await place.taken_over()
        await place.time.to(NOON + HOUR)
        await place.count(2)

    assert place.slots[1] == "a@01T13:00:00Z"
