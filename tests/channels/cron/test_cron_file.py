"""The file of the jobs: whatever became of it, under many writers, and in the hands of real nanobots."""

from __future__ import annotations

import asyncio
import stat
from collections.abc import Callable
from datetime import datetime, timedelta
from pathlib import Path
from typing import Any

import pytest

from channels import state_file
from channels.cron.job import BadJob, Ran, due, new_row
from channels.cron.jobs_file import CronFile, NoJob
from channels.cron.schedule import Every
from channels.errors import ChannelError
from tests.channels.cron.cron_file_place import NOON, Theirs, job, on_disk, put
from tests.support import peers
from tests.support.peers import Peer

HOUR = timedelta(hours=1)


# The instant NOON.
MS = 1_780_315_200_000


pytestmark = pytest.mark.timeout(peers.FIRST_USE_S)


@pytest.fixture
def file(tmp_path: Path) -> CronFile:
    return CronFile(tmp_path, clock=lambda: NOON)


# -- changes -------------------------------------------------------------------------------------------


def test_no_file_is_no_jobs_and_is_not_made_by_looking(file: CronFile) -> None:
    assert dict(file.read().jobs) == {}
    assert not file.path.exists()


def test_a_job_that_was_added_is_there_and_private(file: CronFile) -> None:
    row = new_row(Every(60_000, NOON), "what is new?", at=NOON, to="telegram:-100:topic:5", name="news")

    added = file.add(row)

    found = CronFile(file.path.parents[1]).read().jobs[added.id]
    assert (found.name, found.message, found.answer_to) == ("news", "what is new?", "telegram:-100:topic:5")
    assert stat.S_IMODE(file.path.stat().st_mode) == 0o600
    assert stat.S_IMODE(file.path.parent.stat().st_mode) == 0o700


def test_removed_switched_off_and_on(file: CronFile) -> None:
    put(file, {"version": 1, "jobs": [job("a"), job("b")]})

    off = file.enable("a", False)
    on = file.enable("a")
    file.remove("b")

    assert (off.enabled, off.state_ms("nextRunAtMs")) == (False, None)
    assert (on.enabled, on.state_ms("nextRunAtMs")) == (True, MS + 60_000)
    assert list(file.read().jobs) == ["a"]
    for change in (file.remove, file.enable, file.job):
        with pytest.raises(NoJob):
            change("b")


def test_the_one_time_of_a_job_that_was_off_then_is_not_made_up(file: CronFile) -> None:
    put(file, {"version": 1, "jobs": [job("a", schedule={"kind": "at", "atMs": MS - 60_000})]})

    assert due(file.job("a"), NOON) == NOON - timedelta(minutes=1)
    assert due(file.enable("a"), NOON) == NOON - timedelta(minutes=1)
    file.enable("a", False)
    assert due(file.enable("a"), NOON) is None


def test_a_run_is_noted_in_nanobots_fields(file: CronFile) -> None:
    put(file, {"version": 1, "jobs": [job("a", schedule={"kind": "every", "everyMs": 60_000})]})

    file.ran("a", NOON, "error", "no", 12)

    state = on_disk(file)["jobs"][0]["state"]
    assert state == {
        "lastRunAtMs": MS,
        "lastStatus": "error",
        "lastError": "no",
        "runHistory": [{"runAtMs": MS, "status": "error", "durationMs": 12, "error": "no"}],
        "lastSlotMs": MS,
        "nextRunAtMs": MS + 60_000,
    }


def test_the_history_is_bounded(file: CronFile) -> None:
    put(file, {"version": 1, "jobs": [job("a")]})

    file.note([Ran("a", NOON + n * timedelta(minutes=1), "ok", NOON, None, n) for n in range(30)])

    history = on_disk(file)["jobs"][0]["state"]["runHistory"]
    assert [entry["durationMs"] for entry in history] == list(range(10, 30))


def test_a_job_that_runs_once_is_switched_off_or_deleted_afterwards(file: CronFile) -> None:
    once = {"kind": "at", "atMs": MS}
    rows = [job("keep", schedule=once), job("delete", schedule=once, deleteAfterRun=True)]
    rows.append(job("late", schedule=once, deleteAfterRun=True))
    rows.append(job("moved", schedule={"kind": "at", "atMs": MS + 1000}))
    put(file, {"version": 1, "jobs": rows})

    file.note([Ran(name, NOON, "ok", NOON) for name in ("keep", "delete", "moved")])
    file.ran("late", NOON, "skipped", "too late")

    kept, late, moved = on_disk(file)["jobs"]
    assert (kept["id"], kept["enabled"], kept["state"]["nextRunAtMs"]) == ("keep", False, None)
    assert (late["id"], late["enabled"], late["state"]["lastError"]) == ("late", False, "too late")
    assert moved.get("enabled", True) is True


def test_a_run_by_hand_leaves_the_schedule_alone(file: CronFile) -> None:
    once = {"kind": "at", "atMs": MS + 60_000}
    put(file, {"version": 1, "jobs": [job("a", schedule=once, deleteAfterRun=True)]})

    file.ran("a", None, "ok")

    assert due(file.read().jobs["a"], NOON) == NOON + timedelta(minutes=1)


def test_what_others_wrote_is_kept(file: CronFile) -> None:
    """Fields that we do not know, jobs that cannot run, and a number that no double holds."""
    big = 2**70
    mine = job("a", color="red", big=big, payload={"message": "m", "x": [1]}, state={"y": None})
    bad: list[Any] = [{"id": "b"}, None, 7, "text", [], {"id": 5, "name": "five"}]
    put(file, {"version": 1, "jobs": [bad[0], mine, *bad[1:]], "theirs": {"z": 1}})

    file.ran("a", NOON, "ok")
    file.add(new_row(Every(60_000, NOON), "m", at=NOON))

    content = on_disk(file)
    assert content["theirs"] == {"z": 1}
    assert [row for row in content["jobs"] if row in bad] == bad
    row = content["jobs"][1]
    assert (row["color"], row["big"], row["payload"], row["state"]["y"]) == (
        "red",
        big,
        mine["payload"],
        None,
    )
    assert len(content["jobs"]) == len(bad) + 2


def test_nothing_is_written_where_nothing_changes(file: CronFile) -> None:
    put(file, {"version": 1, "jobs": [job("a")]})
    before = file.seen()

    file.note([Ran("gone", NOON, "ok", NOON)], {"gone": 5})

    assert file.seen() == before


def test_of_two_with_one_id_the_first_runs_and_the_second_is_named(file: CronFile) -> None:
    once = {"kind": "at", "atMs": MS}
    twins = [job("a", schedule=once, deleteAfterRun=True), job("a", schedule=once, deleteAfterRun=True)]
    put(file, {"version": 1, "jobs": twins})

    contents = file.read()
    file.ran("a", NOON, "ok")

    assert [bad.id for bad in contents.bad] == ["a"]
    assert "another job has this id" in contents.bad[0].problem
    assert on_disk(file)["jobs"] == [twins[1]]


# -- when a job is due ---------------------------------------------------------------------------------


def hourly(file: CronFile, **state: Any) -> Callable[[datetime], datetime | None]:
    schedule = {"kind": "cron", "expr": "0 * * * *", "tz": "UTC"}
    put(file, {"version": 1, "jobs": [job("a", schedule=schedule, state=state)]})
    found = file.read().jobs["a"]
    return lambda now: due(found, now)


def test_what_is_due_goes_on_where_the_last_scheduler_stood(file: CronFile) -> None:
    assert hourly(file, nextRunAtMs=MS, lastSlotMs=MS - 3_600_000)(NOON + 5 * HOUR) == NOON


def test_a_job_of_which_nothing_is_known_begins_now(file: CronFile) -> None:
    assert hourly(file)(NOON + TICK) == NOON + HOUR
    assert hourly(file, nextRunAtMs="soon", lastRunAtMs=True)(NOON + TICK) == NOON + HOUR


def test_a_schedule_that_was_edited_begins_now(file: CronFile) -> None:
    """What the file says of the next run is no slot of the schedule that stands there now."""
    assert hourly(file, nextRunAtMs=MS - 60_000)(NOON + TICK) == NOON + HOUR


def test_a_clock_that_was_set_back_runs_no_slot_again(file: CronFile) -> None:
    ask = hourly(file, nextRunAtMs=MS + 3_600_000, lastSlotMs=MS)

    assert ask(NOON - 2 * HOUR) == NOON + HOUR


def test_a_clock_that_was_wrong_by_years_stops_no_job(file: CronFile) -> None:
    year_ms = 365 * 86_400_000
    ask = hourly(file, nextRunAtMs=MS + year_ms, lastSlotMs=MS + year_ms, lastRunAtMs=MS + year_ms)

    assert ask(NOON) == NOON + HOUR


TICK = timedelta(microseconds=1)


@pytest.fixture
def theirs(nanobot: Peer, tmp_path: Path) -> Theirs:
    return Theirs(nanobot, tmp_path)


def test_the_lock_of_another_process_is_waited_for_and_named(file: CronFile) -> None:
    put(file, {"version": 1, "jobs": [job("a")]})

    async def work() -> None:
        with state_file.locked(file.path.parents[1] / "state" / "cron.lock"):
            waiting = asyncio.create_task(asyncio.to_thread(file.ran, "a", NOON, "ok"))
            _, pending = await asyncio.wait([waiting], timeout=0.2)
            assert pending
        await waiting

    asyncio.run(work())
    assert on_disk(file)["jobs"][0]["state"]["lastStatus"] == "ok"


def test_a_job_that_cannot_run_is_not_added(file: CronFile) -> None:
    for row in (job("a", payload={"message": ""}), job("b", schedule={"kind": "every", "everyMs": 1})):
        with pytest.raises(ChannelError):
            file.add(row)
    for to in ("telegram", "telegram:", "Tele:1", ":1"):
        with pytest.raises(BadJob):
            new_row(Every(60_000, NOON), "m", at=NOON, to=to)

    assert not file.path.exists()


class Meddled(CronFile):
    """A file into which somebody without a lock writes at the last moment."""

    meddle: Callable[[], object] | None = None

    def seen(self) -> tuple[int, int, int] | None:
        if self.meddle is not None:
            meddle, self.meddle = self.meddle, None
            meddle()
        return super().seen()


def test_an_edit_in_the_midst_of_ours_is_not_lost(tmp_path: Path) -> None:
    file = Meddled(tmp_path, clock=lambda: NOON)
    put(file, {"version": 1, "jobs": [job("a")]})
    file.meddle = lambda: put(file, {"version": 1, "jobs": [job("a"), job("by hand")]})

    file.ran("a", NOON, "ok")

    assert list(file.read().jobs) == ["a", "by hand"]
    assert on_disk(file)["jobs"][0]["state"]["lastStatus"] == "ok"


@pytest.mark.parametrize("order", ["run first", "failure first"])
def test_a_run_whose_turn_failed_is_an_error_in_its_history(file: CronFile, order: str) -> None:
    """Whichever is noted first, the put or the failure of its turn; later runs are their own."""
    put(file, {"version": 1, "jobs": [job("a")]})
    slots = [NOON, NOON + timedelta(minutes=1)]
    if order == "failure first":
        file.failed("a", slots[0], "refused")
    for slot in slots:
        file.note([Ran("a", slot, "ok", slot + timedelta(seconds=1))])
    if order == "run first":
        file.failed("a", slots[0], "refused")
    file.failed("gone", NOON, "refused")

    (row,) = on_disk(file)["jobs"]
    state = row["state"]
    assert [(entry["status"], entry["error"]) for entry in state["runHistory"]] == [
        ("error", "refused"),
        ("ok", None),
    ]
    assert (state["lastStatus"], state["lastError"]) == ("ok", None)
    assert "failedSlots" not in state


def test_all_rows_of_a_kind_are_removed_and_nothing_is_written_where_there_is_none(file: CronFile) -> None:
    """A row that is no job among them; what lies beside the file is taken over by such a write as well."""
    put(file, {"version": 1, "jobs": [job("a", mark=1), 7, job("b"), job("a", mark=2), {"mark": 3}]})

    assert file.remove_all(lambda row: isinstance(row, dict) and "mark" in row) == 3

    assert on_disk(file)["jobs"] == [7, job("b")]
    before = file.seen()
    assert file.remove_all(lambda row: row is None) == 0
    assert file.seen() == before
