"""Jobs that are made in chats: who may change them, how many there may be, in whose session they run."""

from __future__ import annotations

from dataclasses import replace
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any
from zoneinfo import ZoneInfo

import pytest

from channels.cron import jobs
from channels.cron.chat_jobs import MOST_OF_A_CHAT, NotAllowed, check_wish, job_id_of, own_job
from channels.cron.jobs import Asker, BadJob, Owner, letter, new_row, read_job
from channels.cron.jobs_file import CronFile, Damaged
from channels.cron.schedule import At, BadSchedule, Every, asked
from channels.message import read_inbound
from tests.channels.cron.cron_place import NOON, put
from tests.support.guarantee import guarantee

CHAT = "telegram:-100"
ADA = Owner(CHAT, "1", "Ada", "telegram:9:1")
ASKS = Asker(CHAT, "1", group=True)
HOUR = Every(3_600_000, NOON)


@pytest.fixture
def file(tmp_path: Path) -> CronFile:
    return CronFile(tmp_path, clock=lambda: NOON)


def row(job_id: str, owner: Owner | None = ADA, schedule: Any = HOUR, **more: Any) -> dict[str, Any]:
    to = owner.chat if owner is not None else CHAT
    return new_row(schedule, f"do {job_id}", at=NOON, to=to, owner=owner, job_id=job_id, **more)


# -- who may -------------------------------------------------------------------------------------------


@guarantee(
    "security", "A job is changed only by its owner, its direct chat, approved people and the command line."
)
@pytest.mark.parametrize(
    ("asker", "may"),
    [
        (ASKS, True),
        (replace(ASKS, id="2"), False),
        (replace(ASKS, id=""), False),
        (replace(ASKS, id="2", trusted=True), True),
        (replace(ASKS, id="2", group=False), True),
        (replace(ASKS, job="other"), False),
        (replace(ASKS, job="other", trusted=True), False),
        (replace(ASKS, id="", job="a"), True),
    ],
)
def test_a_job_is_changed_by_whom_it_belongs_to(file: CronFile, asker: Asker, may: bool) -> None:
    """Its owner, people whom the operator let in, its direct chat, itself; nobody else in a group."""
    file.add_in_chat(row("a"))

    if may:
        file.remove_in_chat("a", asker)
    else:
        with pytest.raises(NotAllowed, match="Ada"):
            file.remove_in_chat("a", asker)

    assert (list(file.read().jobs) == []) is may


def test_of_another_chat_no_job_is_seen_nor_changed(file: CronFile) -> None:
    file.add_in_chat(row("a"))

    for asker in (Asker("telegram:5", "1"), Asker("telegram:5", "1", trusted=True)):
        with pytest.raises(BadJob, match="this chat has no job a"):
            file.remove_in_chat("a", asker)
    assert list(file.read().jobs) == ["a"]


def test_what_the_command_line_made_is_left_to_trusted_people(file: CronFile) -> None:
    """In a direct chat as well: it was not made there."""
    file.add(row("a", None))

    with pytest.raises(NotAllowed):
        file.remove_in_chat("a", Asker(CHAT, "1"))
    file.remove_in_chat("a", Asker(CHAT, "1", trusted=True))

    assert list(file.read().jobs) == []


def test_what_somebody_wrote_as_an_owner_is_believed_where_it_is_sound(file: CronFile) -> None:
    """Forgotten or spoilt, as by another program, a job has no owner: trusted people alone change it."""
    rows = [row(name) for name in "abc"]
    rows[0]["payload"]["owner"] = ["1"]
    rows[1]["payload"]["owner"] = {"id": "1"}
    del rows[2]["payload"]["owner"]
    put(file, {"version": 1, "jobs": rows})

    found = file.read()

    assert found.bad == ()
    assert {job.owner for job in found.jobs.values()} == {None}
    for name in "abc":
        with pytest.raises(NotAllowed):
            file.remove_in_chat(name, ASKS)


def test_a_job_of_an_agent_that_nobody_can_be_does_not_run(file: CronFile) -> None:
    """Spoilt, it is named and asks nobody: another agent would see what is not for it."""
    rows = [row("a", agent="coder"), row("b"), row("c"), row("d")]
    rows[2]["payload"]["agent"], rows[3]["payload"]["agent"] = 5, "../x"
    put(file, {"version": 1, "jobs": rows})

    found = file.read()

    assert [letter(job, NOON, at=NOON).job_agent for job in found.jobs.values()] == ["coder", ""]
    assert [bad.id for bad in found.bad] == ["c", "d"]
    assert "payload.agent is '../x'" in found.bad[1].problem
    file.move_chat(CHAT, "telegram:5")
    assert file.read().jobs["a"].agent == "coder"


# -- how many ------------------------------------------------------------------------------------------


def test_a_chat_has_so_many_jobs_at_most(file: CronFile) -> None:
    """Those that are switched off, or belong to others, do not count."""
    for number in range(MOST_OF_A_CHAT):
        file.add_in_chat(row(f"j{number}"))
    with pytest.raises(BadJob, match=f"this chat has {MOST_OF_A_CHAT} jobs"):
        file.add_in_chat(row("more"))

    file.add_in_chat(row("elsewhere", replace(ADA, chat="telegram:5")))
    file.add(row("operator", None))
    file.enable("j0", False)
    file.add_in_chat(row("more"))

    assert len(file.read().jobs) == MOST_OF_A_CHAT + 3


def test_the_same_wish_of_the_same_message_is_one_job(file: CronFile) -> None:
    same = job_id_of(CHAT, "m1", "call mum", "", "", "2099-01-01T09:00")
    others = {
        job_id_of(CHAT, "m2", "call mum", "", "", "2099-01-01T09:00"),
        job_id_of(CHAT, "m1", "call dad", "", "", "2099-01-01T09:00"),
        job_id_of("telegram:5", "m1", "call mum", "", "", "2099-01-01T09:00"),
    }

    file.add_in_chat(row(same))
    before = file.path.read_bytes()
    file.add_in_chat(row(same, replace(ADA, name="Ada L.")))

    assert same not in others
    assert len(others) == 3
    assert file.path.read_bytes() == before
    with pytest.raises(BadJob, match="another job has this id"):
        file.add_in_chat(row(same, replace(ADA, message_id="m9")))


def test_a_chat_makes_no_job_that_runs_too_often_or_asks_too_much() -> None:
    check_wish(Every(60_000, NOON), "x" * 4_000)
    with pytest.raises(BadSchedule, match="below one minute"):
        check_wish(Every(59_999, NOON), "x")
    with pytest.raises(BadJob, match="too long"):
        check_wish(HOUR, "x" * 4_001)


def test_a_damaged_file_is_written_by_nobody_in_a_chat(file: CronFile) -> None:
    data = put(file, b'{"version": 1, "jobs": [')

    with pytest.raises(Damaged):
        file.add_in_chat(row("a"))
    with pytest.raises(Damaged):
        file.remove_in_chat("a", ASKS)

    assert file.path.read_bytes() == data


# -- where it runs -------------------------------------------------------------------------------------


def test_a_letter_goes_into_the_session_that_the_job_names() -> None:
    """The id is the same in both: it is made of job and slot."""
    here = read_job(row("a", in_chat=True), UTC)
    own = read_job(row("a"), UTC)

    in_chat, apart = letter(here, NOON, at=NOON), letter(own, NOON, at=NOON)

    assert in_chat.id == apart.id == "cron:a@2026-06-01T12:00:00Z"
    assert (in_chat.key, in_chat.channel, in_chat.chat_id, in_chat.answer_to) == (
        CHAT,
        "telegram",
        "-100",
        None,
    )
    assert (apart.key, apart.answer_to) == ("cron:a", CHAT)
    for sent in (in_chat, apart):
        assert (sent.source, sent.cron_job_id, sent.sender.id) == ("cron", "a", "")
        assert read_inbound(sent.to_bytes())[0] == sent
        assert own_job(sent.id) == "a"
    assert [own_job(each) for each in ("telegram:1:2", "web:a@b", "cron:a")] == ["", "", ""]


def test_no_job_runs_in_the_session_of_a_chat_that_it_does_not_answer() -> None:
    """A binding to another session, as somebody may write it, is the job's own session."""
    bound = row("a", in_chat=True)
    bound["payload"] |= {"session": "telegram:5", "sessionKey": "telegram:5"}

    assert read_job(bound, UTC).key == "cron:a"
    with pytest.raises(BadJob, match="needs a chat"):
        new_row(HOUR, "m", at=NOON, in_chat=True)


def test_a_reminder_is_gone_after_its_run(file: CronFile) -> None:
    """One that was made by the command line stays, switched off."""
    at = NOON + timedelta(hours=1)
    file.add_in_chat(row("mine", schedule=At(at)))
    file.add(row("theirs", None, schedule=At(at)))

    for name in ("mine", "theirs"):
        file.ran(name, at, "ok")

    (left,) = file.read().jobs.values()
    assert (left.id, left.enabled) == ("theirs", False)


def test_the_jobs_of_a_chat_that_moved_go_with_it(file: CronFile) -> None:
    """A group that became a supergroup has another id: its jobs answer there, and its people change them."""
    file.add_in_chat(row("a", in_chat=True))
    file.add(row("operator", None))
    file.add_in_chat(row("other", replace(ADA, chat="telegram:5"), in_chat=True))

    file.move_chat(CHAT, "telegram:-200")

    jobs = file.read().jobs
    assert [job.answer_to for job in jobs.values()] == ["telegram:-200", "telegram:-200", "telegram:5"]
    assert [job.key for job in jobs.values()] == ["telegram:-200", "cron:operator", "telegram:5"]
    assert jobs["a"].row["payload"]["sessionKey"] == "telegram:-200"
    file.remove_in_chat("a", Asker("telegram:-200", "1", group=True))


# -- heartbeats ----------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "text",
    [
        "",
        "\n \n",
        "# Tasks\n## Daily",
        "<!-- look\n- at this -->\n#",
        "- [ ]\n* \n1.\n---",
        "<!-- never closed\n- x",
    ],
)
def test_a_file_without_a_task_asks_nothing(text: str) -> None:
    assert jobs.beat("look", text) is None


@pytest.mark.parametrize("text", ["water", "# T\n- [ ] water", "<!-- x --> water", "#water", "1. water"])
def test_a_file_with_a_task_is_asked(text: str) -> None:
    assert jobs.beat("look", text) == f"look\n\n{text}"


def test_a_heartbeat_is_a_job_like_any_other() -> None:
    made = new_row(HOUR, "", at=NOON, to=CHAT, heartbeat=True)
    job = read_job(made, UTC)

    assert job.heartbeat
    assert made["name"] == "heartbeat"
    assert job.message.startswith("This is a heartbeat")
    assert letter(job, NOON, at=NOON, text="tasks").text == "tasks"


# -- when ----------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("at", "tz", "utc"),
    [
        ("2027-01-01T09:00", "Europe/Berlin", "2027-01-01T08:00"),
        # 02:00 to 03:00 does not come: it is the moment after the leap, as in an expression.
        ("2027-03-28T02:30", "Europe/Berlin", "2027-03-28T01:00"),
        ("2027-03-28T01:59", "Europe/Berlin", "2027-03-28T00:59"),
        ("2027-03-28T03:00", "Europe/Berlin", "2027-03-28T01:00"),
        # 02:30 comes twice: the first time.
        ("2026-10-25T02:30", "Europe/Berlin", "2026-10-25T00:30"),
        ("2026-10-25T03:00", "Europe/Berlin", "2026-10-25T02:00"),
        # A leap of half an hour, and one of a whole day.
        ("2026-10-04T02:15", "Australia/Lord_Howe", "2026-10-03T15:30"),
        ("2011-12-30T12:00", "Pacific/Apia", "2011-12-30T10:00"),
    ],
)
def test_a_date_is_on_the_clocks_of_its_zone(at: str, tz: str, utc: str) -> None:
    found = asked(at=at, tz=tz, zone=UTC, now=datetime(2000, 1, 1, tzinfo=UTC))

    assert found == At(datetime.fromisoformat(utc).replace(tzinfo=UTC))
    assert asked(at=at, zone=ZoneInfo(tz), now=datetime(2000, 1, 1, tzinfo=UTC)) == found
