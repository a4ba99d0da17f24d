"""What a run, a switch and a plan make of a job's row: pure, for ``cron/jobs.json``."""

from __future__ import annotations

from dataclasses import replace
from datetime import datetime

from channels.cron.jobs import MAX_HISTORY, Ran, Row, whole
from channels.cron.schedule import At, Schedule, is_date, ms_of, next_after, slot_name


def after_failure(row: Row, slot: datetime | None, error: str) -> Row:
    """Return the job with its run marked as failed: the letter was put, and its turn came to nothing."""
    state = dict(row["state"]) if isinstance(row.get("state"), dict) else {}
    history = [*state["runHistory"]] if isinstance(state.get("runHistory"), list) else []
    since = ms_of(slot) if slot is not None else None
    fits = [
        place
        for place, entry in enumerate(history)
        if isinstance(entry, dict) and (since is None or whole(entry.get("runAtMs")) >= since)
    ]
    if fits:
        place = fits[0] if since is not None else fits[-1]
        history[place] = {**history[place], "status": "error", "error": error}
        state["runHistory"] = history
    elif slot is not None:
        # The turn was quicker than the note of its run.
        early = state.get("failedSlots")
        state["failedSlots"] = {**(early if isinstance(early, dict) else {}), slot_name(slot): error}
    if not fits or place == len(history) - 1:
        state |= {"lastStatus": "error", "lastError": error}
    return {**row, "state": state}


def after_run(row: Row, schedule: Schedule, ran: Ran) -> Row | None:
    """Return the job as it stands after a run; None where it was to be deleted after it.

    The slot counts for the schedule as it stands now: one that was changed meanwhile goes on unhindered.
    """
    state = dict(row["state"]) if isinstance(row.get("state"), dict) else {}
    history = state.get("runHistory")
    early = state.pop("failedSlots", None)
    if ran.slot is not None and isinstance(early, dict) and slot_name(ran.slot) in early:
        ran = replace(ran, status="error", error=str(early[slot_name(ran.slot)]))
    entry = {
        "runAtMs": ms_of(ran.at),
        "status": ran.status,
        "durationMs": ran.duration_ms,
        "error": ran.error,
    }
    if ran.slot is None and not whole(state.get("lastSlotMs")):
        # Without a slot the last run stands for it; one by hand must not, or a slot that waits is lost.
        state["lastSlotMs"] = whole(state.get("lastRunAtMs")) or whole(row.get("createdAtMs")) or None
    state |= {"lastRunAtMs": ms_of(ran.at), "lastStatus": ran.status, "lastError": ran.error}
    state["runHistory"] = [*(history if isinstance(history, list) else []), entry][-MAX_HISTORY:]
    job = {**row, "state": state}
    if ran.slot is None:
        return job
    former = whole(state.get("lastSlotMs"))
    # What is no date is not kept for being the greater number.
    state["lastSlotMs"] = max(ms_of(ran.slot), former if is_date(former) else 0)
    if isinstance(schedule, At):
        if schedule.at == ran.slot:
            if row.get("deleteAfterRun") is True and ran.status == "ok":
                return None
            job["enabled"], state["nextRunAtMs"] = False, None
    elif row.get("enabled", True):
        following = next_after(schedule, ran.slot)
        state["nextRunAtMs"] = ms_of(following) if following is not None else None
    return job


def switched(row: Row, schedule: Schedule, enabled: bool, at: datetime) -> Row:
    """Return the job switched on or off; slots that passed while it was off are not made up."""
    state = dict(row["state"]) if isinstance(row.get("state"), dict) else {}
    following = next_after(schedule, at) if enabled else None
    state["nextRunAtMs"] = ms_of(following) if following is not None else None
    if enabled and row.get("enabled") is False and isinstance(schedule, At) and following is None:
        # Its one time passed while it was off, and counts as run; else it would be due at once.
        state["lastSlotMs"] = max(ms_of(schedule.at), whole(state.get("lastSlotMs")))
    return {**row, "enabled": enabled, "state": state, "updatedAtMs": ms_of(at)}


def planned(row: Row, next_ms: int | None) -> Row:
    """Return the job with its next slot noted; the same object where it was noted already."""
    state = row.get("state") if isinstance(row.get("state"), dict) else {}
    assert isinstance(state, dict)
    if state.get("nextRunAtMs") == next_ms and "state" in row:
        return row
    return {**row, "state": {**state, "nextRunAtMs": next_ms}}
