"""cron/jobs.json passed to and fro between us and real nanobots."""

from __future__ import annotations

import errno
import json
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import pytest

import durable
from channels.cron.job import due, letter, new_row, runs
from channels.cron.jobs_file import CronFile
from channels.cron.owner import Owner
from channels.cron.schedule import At, Every, cron
from tests.channels.cron.cron_file_place import NOON, Theirs, job, put
from tests.support import peers
from tests.support.peers import NANOBOT_014, NANOBOT_022, Peer

pytestmark = pytest.mark.timeout(peers.FIRST_USE_S)


BOTH = pytest.mark.parametrize("nanobot", [NANOBOT_014, NANOBOT_022], ids=lambda peer: peer.name)


@pytest.fixture
def file(tmp_path: Path) -> CronFile:
    return CronFile(tmp_path, clock=lambda: NOON)


@pytest.fixture
def theirs(nanobot: Peer, tmp_path: Path) -> Theirs:
    return Theirs(nanobot, tmp_path)


WEIRD = 'Привет 世界 👩‍👩‍👧‍👦 "quoted" \\ back\u2028slash\x85 \x01 ende'


CHAT = {"deliver": True, "channel": "telegram", "to": "12345678"}


@BOTH
def test_their_jobs_run_here(theirs: Theirs) -> None:
    """Each kind is due when they meant it, asks what they meant, and answers in the chat that they meant."""
    at_ms = 1_924_992_000_000
    ids = theirs.do(
        "cron_add",
        jobs=[
            {"name": "e", "schedule": {"kind": "every", "every_ms": 5_000}, "message": WEIRD, **CHAT},
            {
                "name": "c",
                "schedule": {"kind": "cron", "expr": "30 9 * * 1-5", "tz": "Europe/Berlin"},
                "message": "m",
                **CHAT,
            },
            {
                "name": "a",
                "schedule": {"kind": "at", "at_ms": at_ms},
                "message": "m",
                "delete_after_run": True,
                **CHAT,
            },
        ],
    )

    contents = CronFile(theirs.workspace).read()

    assert (contents.bad, contents.fault) == ((), None)
    every, by_cron, once = (contents.jobs[job_id] for job_id in ids)
    created = every.row["createdAtMs"]
    assert every.schedule == Every(5_000, datetime.fromtimestamp(created / 1000, UTC))
    assert str(by_cron.schedule) == str(cron("30 9 * * 1-5", by_cron.schedule.zone))  # type: ignore[union-attr]
    assert once.schedule == At(datetime.fromtimestamp(at_ms / 1000, UTC))
    assert once.row["deleteAfterRun"] is True
    sent = letter(every, NOON, at=NOON)
    assert (sent.text, sent.answer_to, sent.key) == (WEIRD, "telegram:12345678", f"cron:{ids[0]}")
    now = datetime.now(UTC)
    stored = by_cron.state_ms("nextRunAtMs")
    assert stored is not None
    assert due(by_cron, now) == datetime.fromtimestamp(stored / 1000, UTC)


@pytest.mark.slow
@BOTH
def test_our_jobs_run_there(theirs: Theirs) -> None:
    """Those with a chat and those without: theirs fires both, and what it notes is read here again."""
    file = CronFile(theirs.workspace)
    now = datetime.now(UTC)
    to_chat = file.add(new_row(Every(1_000, now), WEIRD, at=now, to="telegram:-100:topic:5"))
    alone = file.add(new_row(Every(1_000, now), "alone", at=now))
    file.add(new_row(cron("0 9 * * *", UTC), "later", at=now, policy="all"))
    for one in (to_chat, alone):
        file.ran(one.id, now, "ok")

    there = theirs.do("cron_run", count=2, within_s=20)

    assert there["warnings"] == []
    fired = {one["id"]: one for one in there["fired"]}
    assert fired[to_chat.id]["message"] == WEIRD
    assert fired[alone.id]["message"] == "alone"
    chat = fired[to_chat.id]
    assert (chat["channel"] or chat["origin_channel"], chat["to"] or chat["origin_chat_id"]) == (
        "telegram",
        "-100:topic:5",
    )
    here = file.read()
    assert (len(here.jobs), here.bad) == (3, ())
    assert here.jobs[to_chat.id].answer_to == "telegram:-100:topic:5"
    assert here.jobs[alone.id].answer_to is None
    assert here.jobs[alone.id].row["state"]["lastStatus"] == "ok"
    assert [row["state"]["last_status"] for row in there["jobs"]] == ["ok", "ok", None]


@pytest.mark.slow
@BOTH
def test_jobs_that_were_made_in_a_chat_run_there(theirs: Theirs) -> None:
    """Bound to the chat, with an owner, a heartbeat: theirs loads and fires them, and they are read again.

    What it forgets when it writes leaves a job that runs in its own session, of nobody and of no agent.
    """
    file = CronFile(theirs.workspace)
    now = datetime.now(UTC)
    owner = Owner("telegram:1", "1", "Ada", "telegram:9:1")
    to: dict[str, Any] = {"at": now, "to": "telegram:1"}
    made = file.add_in_chat(new_row(Every(1_000, now), WEIRD, in_chat=True, owner=owner, agent="coder", **to))
    beat = file.add(new_row(Every(1_000, now), "", heartbeat=True, **to))
    for one in (made, beat):
        file.ran(one.id, now, "ok")

    there = theirs.do("cron_run", count=2, within_s=20)

    assert there["warnings"] == []
    assert {one["id"]: one["message"] for one in there["fired"]} == {made.id: WEIRD, beat.id: beat.message}
    here = file.read()
    assert here.bad == ()
    assert {job.answer_to for job in here.jobs.values()} == {"telegram:1"}
    assert {job.key for job in here.jobs.values()} <= {"telegram:1", f"cron:{made.id}", f"cron:{beat.id}"}
    assert here.jobs[made.id].owner in (owner, None)
    assert here.jobs[made.id].agent in ("coder", "")


@pytest.mark.slow
def test_their_history_goes_on_here_and_there(tmp_path: Path) -> None:
    """Runs of both stand in one history."""
    theirs = Theirs(NANOBOT_022, tmp_path)
    file = CronFile(theirs.workspace)
    now = datetime.now(UTC)
    mine = file.add(new_row(Every(1_000, now), "m", at=now, to="telegram:1"))
    file.ran(mine.id, now, "error", "first", 3)

    theirs.do("cron_run", count=1, within_s=20)
    file.ran(mine.id, now, "ok")
    (there,) = theirs.do("cron_list")["jobs"]

    history = there["state"]["run_history"]
    assert (history[0]["error"], history[0]["duration_ms"]) == ("first", 3)
    assert len(history) >= 3
    assert {entry["status"] for entry in history[1:]} == {"ok"}


def test_what_their_agent_left_beside_the_file_is_taken_over(tmp_path: Path) -> None:
    """A 0.2 that does not run the clock writes its changes down for the program that does."""
    theirs = Theirs(NANOBOT_022, tmp_path)
    file = CronFile(theirs.workspace)
    now = datetime.now(UTC)
    rows = [new_row(Every(3_600_000, now), "m", at=now, to="telegram:1") | {"color": n} for n in range(3)]
    off, gone, kept = (file.add(row).id for row in rows)

    theirs.do("cron_later", job_id=off, change="disable")
    theirs.do("cron_later", job_id=gone, change="remove")
    seen = file.read().jobs
    with (file.path.parent / "action.jsonl").open("ab") as left:
        left.write(b'{"action": "add", "par')
    assert file.left()
    file.ran(kept, now, "ok")

    for jobs in (seen, file.read().jobs, CronFile(theirs.workspace).read().jobs):
        assert [(job_id, one.enabled) for job_id, one in jobs.items()] == [(off, False), (kept, True)]
        assert jobs[off].row["color"] == 0
    assert not file.left()
    assert len(list(file.path.parent.glob("action.jsonl.corrupt-*"))) == 1
    assert [row["id"] for row in theirs.do("cron_list")["jobs"]] == [kept, off]


def test_changes_that_cannot_be_read_keep_no_job_from_its_time(file: CronFile) -> None:
    """Left by the program of another user; they are told of, and taken over once they can be read."""
    put(file, {"version": 1, "jobs": [job("a"), job("gone")]})
    left = file.path.with_name("action.jsonl")
    left.mkdir()

    contents = file.read()
    noted = file.ran("a", NOON, "ok")
    added = file.add(new_row(Every(60_000, NOON), "m", at=NOON))

    for one in (contents, noted, file.read()):
        assert list(one.jobs)[:2] == ["a", "gone"]
        (bad,) = one.bad
        assert (bad.id, "cron/action.jsonl cannot be read" in bad.problem) == (None, True)
        assert str(left) in bad.cure
    assert len(file.every_row()) == 3
    left.rmdir()
    left.write_text('{"action": "del", "params": {"job_id": "gone"}}\n')
    assert list(file.ran("a", NOON, "ok").jobs) == ["a", added.id]
    assert not file.left()


def test_a_change_that_was_written_is_not_refused_because_theirs_stay(
    file: CronFile, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The disk fails between the two writes: said to be unwritten, it would be made again."""
    put(file, {"version": 1, "jobs": [job("a"), job("gone")]})
    left = file.path.with_name("action.jsonl")
    left.write_text('{"action": "del", "params": {"job_id": "gone"}}\n')
    unlink = Path.unlink

    def fails(path: Path, *args: Any, **kwargs: Any) -> None:
        if path == left:
            raise OSError(errno.EIO, "Input/output error")
        unlink(path, *args, **kwargs)

    with monkeypatch.context() as disk:
        disk.setattr(Path, "unlink", fails)
        added = file.add(new_row(Every(60_000, NOON), "m", at=NOON))
        noted = file.ran("a", NOON, "ok")
        unchanged = file.note()

    for contents in (noted, unchanged, file.read()):
        assert list(contents.jobs) == ["a", added.id]
        assert len(runs(contents.jobs["a"])) == 1
    assert file.left()
    assert list(file.note().jobs) == ["a", added.id]
    assert not file.left()


def test_a_full_disk_has_changes_taken_over_once(file: CronFile, monkeypatch: pytest.MonkeyPatch) -> None:
    """Taken over again, a job that was removed meanwhile would be back."""
    put(file, {"version": 1, "jobs": [job("a")]})
    left = file.path.with_name("action.jsonl")
    left.write_text(json.dumps({"action": "add", "params": job("b")}) + "\n")
    write = durable.replace

    def full(path: Path, *args: Any, **kwargs: Any) -> Any:
        if path == left:
            raise OSError(errno.ENOSPC, "No space left on device")
        return write(path, *args, **kwargs)

    monkeypatch.setattr(durable, "replace", full)
    assert list(file.note().jobs) == ["a", "b"]
    file.remove("b")

    assert list(file.note().jobs) == ["a"]


def test_what_nanobot_schedules_for_itself_is_kept_and_not_run(file: CronFile) -> None:
    put(file, {"version": 1, "jobs": [job("dream", payload={"kind": "system_event", "message": ""})]})

    contents = file.read()

    assert contents.bad == ()
    assert due(contents.jobs["dream"], NOON) is None
    assert contents.rows(NOON)[0]["next_run_at"] is None
