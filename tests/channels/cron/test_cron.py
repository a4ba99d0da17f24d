"""The clock: each slot once, whatever dies, hangs, is edited or is set back."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from datetime import UTC, timedelta
from pathlib import Path

import pytest

from channels.cron.jobs import Owner, Ran, due, new_row
from channels.cron.jobs_file import CronFile
from channels.cron.schedule import At, cron
from channels.message import Inbound
from tests.channels.cron.cron_place import (
    DAY,
    HOUR,
    MINUTE,
    NOON,
    PATIENCE_S,
    File,
    Place,
    every,
    hourly,
    jobs,
    ms,
)
from tests.support.guarantee import guarantee

# -- a slot --------------------------------------------------------------------------------------------


async def test_a_job_is_put_at_its_slot_and_not_before(place: Place) -> None:
    row = new_row(At(NOON + HOUR), "what is new?", at=NOON, to="telegram:-100:topic:5")
    place.file.add(row)

    async with place.running():
        await place.time.to(NOON + HOUR - timedelta(milliseconds=1))
        assert place.put == []
        await place.time.to(NOON + HOUR)
        await place.count(1)

    (inbound,) = place.put
    assert inbound.id == f"cron:{row['id']}@2026-06-01T13:00:00Z"
    assert (inbound.key, inbound.channel, inbound.chat_id) == (f"cron:{row['id']}", "cron", row["id"])
    assert (inbound.text, inbound.kind, inbound.answer_to) == (
        "what is new?",
        "message",
        "telegram:-100:topic:5",
    )
    assert (inbound.source, inbound.cron_job_id) == ("cron", row["id"])
    assert inbound.sent_at == "2026-06-01T13:00:00.000000+00:00"


async def test_a_run_is_noted_once_its_letter_is_durable(place: Place) -> None:
    place.write(hourly(nextRunAtMs=ms(NOON + HOUR)))
    durable = asyncio.Event()
    begun = asyncio.Event()

    async def hold(_: Inbound) -> None:
        begun.set()
        await durable.wait()

    place.before_put = hold
    async with place.running():
        await place.time.to(NOON + HOUR)
        await begun.wait()
        assert "lastRunAtMs" not in place.on_disk()["a"]["state"]
        durable.set()
        await place.noted(lambda jobs: jobs["a"]["state"].get("lastStatus") == "ok")

    state = place.on_disk()["a"]["state"]
    assert state["nextRunAtMs"] == ms(NOON + 2 * HOUR)
    assert [entry["status"] for entry in state["runHistory"]] == ["ok"]


@asynccontextmanager
async def running_unnoted(place: Place) -> AsyncIterator[None]:
    """Run the scheduler: an hourly job came once, and the disk refuses to note it."""
    place.write(hourly(nextRunAtMs=ms(NOON + HOUR)))
    place.file.refuses = True

    async with place.running():
        await place.time.to(NOON + HOUR)
        await place.count(1)
        yield


async def test_what_died_before_it_was_noted_is_put_again_under_the_same_id(place: Place) -> None:
    async with running_unnoted(place):
        pass
    place.file = File(place.workspace, place.time)
    async with place.running():
        await place.count(2)

    assert place.slots == ["a@01T13:00:00Z"] * 2


async def test_what_is_noted_at_the_end_is_not_overtaken_by_what_was_being_noted(place: Place) -> None:
    place.write(every(5))

    async with place.running():
        await place.hold_up_the_note(first=timedelta(seconds=5), then=timedelta(seconds=10))
        place.task.cancel()
        _, pending = await asyncio.wait([place.task], timeout=0.3)
        place.file.free.set()
        assert pending

    state = place.on_disk()["a"]["state"]
    assert len(state["runHistory"]) == 2
    assert (state["lastSlotMs"], state["nextRunAtMs"]) == (ms(NOON) + 10_000, ms(NOON) + 15_000)


async def test_what_waits_to_be_noted_at_the_end_is_noted(place: Place) -> None:
    """The clock is stopped while somebody else has the file: what ran meanwhile stands there all the same."""
    place.write(hourly())
    async with place.running():
        await place.noted(lambda jobs: "nextRunAtMs" in jobs["a"]["state"])
        await place.taken_over()
        async with place.access:
            await place.time.to(NOON + timedelta(hours=1))
            await place.count(1)
            # The note has been begun, and waits.
            await asyncio.sleep(0.05)
            place.task.cancel()
            await asyncio.sleep(0)

    assert place.on_disk()["a"]["state"]["lastStatus"] == "ok"


async def test_slots_that_pass_while_a_run_is_noted_are_made_up(place: Place) -> None:
    """The note knows of the first run alone; the process has run on, and is behind its clock."""
    job = every(5)
    job["schedule"]["missed"] = "all"
    place.write(job)

    async with place.running():
        await place.hold_up_the_note(first=timedelta(seconds=5), then=timedelta(seconds=10))
        await place.time.idle()
        place.time.now = NOON + timedelta(seconds=24)
        place.file.free.set()
        await place.noted(lambda jobs: len(jobs["a"]["state"].get("runHistory", ())) > 0)
        await place.taken_over()
        await place.time.to(NOON + timedelta(seconds=25))
        await place.count(5)

    assert [slot.rpartition(":")[2] for slot in place.slots] == ["05Z", "10Z", "15Z", "20Z", "25Z"]


async def test_a_disk_that_was_full_is_noted_later(place: Place) -> None:
    async with running_unnoted(place):
        await place.file.noted.wait()
        await place.time.to(NOON + 2 * HOUR)
        await place.count(2)
        place.file.refuses = False
        await place.time.to(NOON + 2 * HOUR + timedelta(seconds=10))
        await place.noted(lambda jobs: len(jobs["a"]["state"].get("runHistory", ())) == 2)

    assert place.slots == ["a@01T13:00:00Z", "a@01T14:00:00Z"]


async def test_a_letter_that_hangs_holds_up_no_other_job(place: Place) -> None:
    place.write(every(5, "a"), every(5, "b"))

    async def hold(inbound: Inbound) -> None:
        if inbound.cron_job_id == "a":
            await asyncio.Event().wait()

    place.before_put = hold
    async with place.running():
        for number in range(1, 4):
            await place.time.to(NOON + timedelta(seconds=5 * number))
            await place.count(number)

    assert place.slots == ["b@01T12:00:05Z", "b@01T12:00:10Z", "b@01T12:00:15Z"]


async def test_slots_that_passed_while_the_queue_was_away_are_made_up_by_policy(place: Place) -> None:
    place.write(hourly("once"), hourly("all", "all"))
    back = asyncio.Event()

    async def hold(_: Inbound) -> None:
        await back.wait()

    place.before_put = hold
    async with place.running():
        await place.time.to(NOON + HOUR)
        await place.time.leap(NOON + 4 * HOUR + MINUTE)
        back.set()
        await place.count(6)
        await place.time.to(NOON + 5 * HOUR)
        slots = await place.count(8)

    hours = {name: [slot[-9:-7] for slot in slots if slot.startswith(name)] for name in ("once", "all")}
    assert hours == {"once": ["13", "16", "17"], "all": ["13", "14", "15", "16", "17"]}


async def test_a_letter_that_is_refused_is_noted_as_an_error_and_the_clock_goes_on(place: Place) -> None:
    place.write(hourly())

    async def refuse(_: Inbound) -> None:
        place.before_put = None
        raise ValueError("not this one")

    place.before_put = refuse
    async with place.running():
        await place.time.to(NOON + HOUR)
        await place.noted(lambda jobs: jobs["a"]["state"].get("lastStatus") == "error")
        await place.time.to(NOON + 2 * HOUR)
        await place.count(1)

    assert place.on_disk()["a"]["state"]["runHistory"][0]["error"] == "ValueError: not this one"


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
