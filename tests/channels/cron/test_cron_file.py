"""The file of the jobs: whatever became of it, under many writers, and in the hands of real nanobots."""

from __future__ import annotations

import errno
import json
import multiprocessing
import resource
import signal
import stat
from collections.abc import Callable
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import pytest

import durable
from channels.cron.jobs import BadJob, Owner, Ran, due, letter, new_row, runs
from channels.cron.jobs_file import CronFile, Damaged
from channels.cron.schedule import At, Every, cron
from channels.errors import ChannelError
from tests.channels.cron.cron_place import MINUTE, NOON, Place, Theirs, every, job, ms, on_disk, put
from tests.channels.patience import until_unlocked
from tests.support import peers
from tests.support.peers import NANOBOT_014, NANOBOT_022, Peer

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


# -- damage --------------------------------------------------------------------------------------------


BAD_JOBS: list[tuple[Any, str]] = [
    (job(""), "id"),
    (job("x" * 161), "id is too long"),
    (job("a", enabled="yes"), "enabled"),
    (job("a", schedule=None), "schedule"),
    (job("a", schedule={"kind": "sometimes"}), "sometimes"),
    (job("a", schedule={"kind": "cron", "expr": "* * * * * *"}), "6 fields"),
    (job("a", schedule={"kind": "every", "everyMs": 5, "missed": "once"}), "5 ms"),
    (job("a", schedule={"kind": "every", "everyMs": 5000, "missed": "never"}), "never"),
    (job("a", payload="hello"), "payload"),
    (job("a", payload={"message": " "}), "empty"),
    (job("a", payload={"message": "x" * 2**20 + "x"}), "1 MiB"),
    (job("a", payload={"message": "m", "deliver": True, "channel": "Tele gram", "to": "1"}), "Tele gram"),
    (job("a", payload={"message": "m", "deliver": True, "channel": "web", "to": ["1"]}), "must be strings"),
    (None, "not a JSON object"),
]


@pytest.mark.parametrize(("row", "said"), BAD_JOBS, ids=lambda value: value if isinstance(value, str) else "")
def test_a_bad_job_is_named_with_a_cure_and_the_others_run(file: CronFile, row: Any, said: str) -> None:
    put(file, {"version": 1, "jobs": [job("before"), row, job("after")]})

    contents = file.read()

    assert list(contents.jobs) == ["before", "after"]
    (bad,) = contents.bad
    assert said in bad.problem
    assert bad.problem.startswith("job 2: ")
    assert bad.cure
    assert contents.rows(NOON)[-1]["problem"]
    assert json.loads(json.dumps(contents.rows(NOON)))


@pytest.mark.parametrize("name", ["nextRunAtMs", "lastRunAtMs", "lastSlotMs"])
@pytest.mark.parametrize("value", [1_796_000_000_000_000, 253_402_300_800_000, "soon", True])
async def test_an_instant_that_is_no_date_stops_no_other_job(
    tmp_path: Path, name: str, value: object
) -> None:
    """Microseconds, as another program may take them for, or no number; the job itself begins now."""
    place = Place(tmp_path)
    place.write(every(60, "odd", state={name: value}), every(60, "sound"))

    assert [row["next_run_at"] for row in place.file.read().rows(NOON)] == ["2026-06-01T12:01:00Z"] * 2
    async with place.running():
        await place.time.to(NOON + MINUTE)
        slots = await place.count(2)
        await place.noted(lambda jobs: jobs["odd"]["state"].get("lastSlotMs") == ms(NOON + MINUTE))

    assert sorted(slots) == ["odd@01T12:01:00Z", "sound@01T12:01:00Z"]


def test_half_of_a_surrogate_pair_is_no_text(file: CronFile) -> None:
    put(file, b'{"jobs": [' + json.dumps(job("a", payload={"message": "\ud800"})).encode() + b"]}")

    assert len(file.read().bad) == 1
    file.add(new_row(Every(60_000, NOON), "m", at=NOON))
    assert on_disk(file)["jobs"][0]["payload"]["message"] == "\ud800"


def test_a_name_that_is_no_text_makes_no_job() -> None:
    """A shell or a model may give one; the letter of such a job could not be put, at any slot."""
    with pytest.raises(BadJob, match="name is not a string"):
        new_row(Every(60_000, NOON), "m", at=NOON, name="half \ud83d")


def test_a_job_in_the_file_whose_name_is_no_text_runs(file: CronFile) -> None:
    put(file, b'{"jobs": [' + json.dumps(job("a", name="half \ud83d")).encode() + b"]}")
    (found,) = file.read().jobs.values()

    assert json.loads(letter(found, NOON, at=NOON).to_bytes())["meta"]["job"]["name"] == "half \ufffd"


TEXT = json.dumps({"version": 1, "jobs": [job("one"), job("two"), job("three")]}, indent=2)


DAMAGED: dict[str, tuple[bytes, list[str], int]] = {
    "torn in the last job": (TEXT[: TEXT.rindex("three")].encode(), ["one", "two"], 1),
    "torn after the last job": (TEXT[: TEXT.rindex("}", 0, -2) + 1].encode(), ["one", "two", "three"], 0),
    "comma after the last": (TEXT.replace("}\n  ]", "},\n  ]").encode(), ["one", "two", "three"], 0),
    "comma missing inside": (TEXT.replace('"two",', '"two"', 1).encode(), ["one", "three"], 1),
    "comment": (b"// mine\n" + TEXT.encode(), ["one", "two", "three"], 0),
    "two documents": ((TEXT + TEXT).encode(), ["one", "two", "three"], 4),
    "bad bytes": (TEXT.encode().replace(b"message of two", b"\xff\xfe"), ["one", "two", "three"], 0),
    "empty": (b"", [], 0),
    "zeros": (b"\0" * 512, [], 0),
    "a list": (json.dumps([job("one")]).encode(), ["one"], 0),
    "a word": (b'"jobs"', [], 0),
    "jobs is an object": (b'{"jobs": {"a": 1}}', [], 0),
    "nested": (b"[" * 200_000, [], 0),
    "braces": (b'{"jobs": [' + b'{"a":' * 20_000, [], 1),
}


@pytest.mark.parametrize("name", DAMAGED)
def test_a_damaged_file_is_read_as_far_as_it_goes_and_kept(file: CronFile, name: str) -> None:
    """A scheduler never writes it; a person's change keeps the original beside it first."""
    data, good, lost = DAMAGED[name]
    put(file, data)

    contents = file.read()
    assert (list(contents.jobs), len(contents.bad)) == (good, lost)
    assert contents.fault is not None
    assert contents.fault.cure

    with pytest.raises(Damaged):
        file.note([Ran("one", NOON, "ok", NOON)], {"two": 5})
    assert file.path.read_bytes() == data

    added = file.add(new_row(Every(60_000, NOON), "m", at=NOON))
    assert list(file.read().jobs) == [*good, added.id]
    assert file.read().fault is None
    if data:
        assert file.kept is not None
        assert file.kept.name.startswith("jobs.json.corrupt-")
        assert file.kept.read_bytes() == data


def test_a_byte_order_mark_is_no_damage(file: CronFile) -> None:
    put(file, b"\xef\xbb\xbf" + TEXT.encode())

    file.ran("one", NOON, "ok")

    assert len(on_disk(file)["jobs"]) == 3
    assert file.kept is None


def test_a_newer_format_runs_and_is_not_written(file: CronFile) -> None:
    data = put(file, {"version": 2, "jobs": [job("a")]})

    assert list(file.read().jobs) == ["a"]
    for change in (lambda: file.remove("a"), lambda: file.ran("a", NOON, "ok")):
        with pytest.raises(Damaged):
            change()
    assert file.path.read_bytes() == data


def test_a_file_that_cannot_be_opened_says_so(file: CronFile) -> None:
    file.path.mkdir(parents=True)

    with pytest.raises(ChannelError) as caught:
        file.read()

    assert caught.value.hint


# -- many writers --------------------------------------------------------------------------------------


def _add_some(workspace: Path, count: int) -> None:
    file = CronFile(workspace)
    for _ in range(count):
        until_unlocked(lambda: file.add(new_row(Every(60_000, NOON), "m", at=NOON)))


def test_writers_side_by_side_lose_nothing(file: CronFile) -> None:
    workspace = file.path.parents[1]
    context = multiprocessing.get_context("spawn")
    writers = [context.Process(target=_add_some, args=(workspace, 15)) for _ in range(3)]
    for writer in writers:
        writer.start()
    for writer in writers:
        writer.join()

    assert [writer.exitcode for writer in writers] == [0, 0, 0]
    assert len(file.read().jobs) == 45
    assert [path.name for path in file.path.parent.iterdir()] == ["jobs.json"]


def test_a_full_disk_leaves_the_old_file(file: CronFile) -> None:
    data = put(file, {"version": 1, "jobs": [job("a")]})
    before = resource.getrlimit(resource.RLIMIT_FSIZE)
    ignored = signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
    resource.setrlimit(resource.RLIMIT_FSIZE, (100, before[1]))
    try:
        with pytest.raises(ChannelError) as caught:
            file.ran("a", NOON, "ok")
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, before)
        signal.signal(signal.SIGXFSZ, ignored)

    assert "cannot be written" in str(caught.value)
    assert file.path.read_bytes() == data
    assert [path.name for path in file.path.parent.iterdir()] == ["jobs.json"]


BOTH = pytest.mark.parametrize("nanobot", [NANOBOT_014, NANOBOT_022], ids=lambda peer: peer.name)


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
    """With a chat and without, made in a chat, a heartbeat: theirs fires all, and they are read here again.

    What it forgets when it writes leaves a job that runs in its own session, of nobody and of no agent.
    """
    file = CronFile(theirs.workspace)
    now = datetime.now(UTC)
    owner, to = Owner("telegram:1", "1", "Ada", "telegram:9:1"), "telegram:1"
    often = Every(1_000, now)
    to_chat = file.add(new_row(often, WEIRD, at=now, to="telegram:-100:topic:5"))
    alone = file.add(new_row(often, "alone", at=now))
    made = file.add_in_chat(
        new_row(often, "in chat", at=now, to=to, in_chat=True, owner=owner, agent="coder")
    )
    beat = file.add(new_row(often, "", at=now, to=to, heartbeat=True))
    file.add(new_row(cron("0 9 * * *", UTC), "later", at=now, policy="all"))
    run = (to_chat, alone, made, beat)
    for one in run:
        file.ran(one.id, now, "ok")

    there = theirs.do("cron_run", count=len(run), within_s=20)

    assert there["warnings"] == []
    fired = {one["id"]: one for one in there["fired"]}
    assert {id_: one["message"] for id_, one in fired.items()} == {one.id: one.message for one in run}
    chat = fired[to_chat.id]
    asked = (chat["channel"] or chat["origin_channel"], chat["to"] or chat["origin_chat_id"])
    assert asked == ("telegram", "-100:topic:5")
    here = file.read()
    assert (len(here.jobs), here.bad) == (5, ())
    answers = [here.jobs[one.id].answer_to for one in run]
    assert answers == ["telegram:-100:topic:5", None, to, to]
    assert here.jobs[made.id].key in (to, f"cron:{made.id}")
    assert here.jobs[beat.id].key in (to, f"cron:{beat.id}")
    assert here.jobs[made.id].owner in (owner, None)
    assert here.jobs[made.id].agent in ("coder", "")
    assert here.jobs[alone.id].row["state"]["lastStatus"] == "ok"
    assert [row["state"]["last_status"] for row in there["jobs"]] == ["ok"] * 4 + [None]


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
