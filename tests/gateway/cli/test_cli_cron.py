"""The verbs of the clock as a person and a program use them, its routes, and what doctor says of it."""

from __future__ import annotations

import asyncio
import json
import re
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any
from urllib.parse import quote

import pytest

from channels import storage
from channels.cron.jobs_file import CronFile
from channels.message import read_inbound
from gateway.doctor.workspace import cron_checks as check
from gateway.queue.mailbox import INBOUND
from tests.contracts.posts import collect
from tests.gateway import cli_place
from tests.gateway.embedded_place import opened
from tests.gateway.http_place import open_place

# At the end of December the first of January is too near.
LATER = f"{datetime.now(UTC).year + 2}-01-01T09:00"
BAD = {
    "id": "bad",
    "name": "b",
    "schedule": {"kind": "cron", "expr": "* * * * * *"},
    "payload": {"message": "m"},
}
TO = ("--to", "web:ada")


class Ran(cli_place.Ran):
    """A verb of the clock, run where the configuration has this zone."""

    def __init__(self, workspace: Path, *words: str, zone: str = "UTC") -> None:
        with pytest.MonkeyPatch.context() as patch:
            patch.setenv("CHAT_GATEWAY_TIMEZONE", zone)
            super().__init__(workspace, "cron", *words)

    @property
    def json(self) -> Any:
        return json.loads(self.out)


def added(workspace: Path, *words: str, zone: str = "UTC") -> dict[str, Any]:
    found: dict[str, Any] = Ran(workspace, "add", *words, "--message", "m", "--json", zone=zone).json
    return found


def rows_of(workspace: Path) -> list[Any]:
    found: list[Any] = json.loads((workspace / "cron" / "jobs.json").read_bytes())["jobs"]
    return found


def spoil(workspace: Path, *rows: Any) -> None:
    (workspace / "cron").mkdir(exist_ok=True, mode=0o700)
    path = workspace / "cron" / "jobs.json"
    path.write_text(json.dumps({"version": 1, "jobs": list(rows)}))
    path.chmod(0o600)


# -- verbs ---------------------------------------------------------------------------------------------


def test_a_new_user_adds_looks_switches_and_removes(tmp_path: Path) -> None:
    empty = Ran(tmp_path, "list")
    made = Ran(tmp_path, "add", "--every", "2h", "--message", "what is new?", "--to", "telegram:123")
    name = made.out.strip()
    listed = Ran(tmp_path, "list")
    (row,) = Ran(tmp_path, "list", "--json").json
    off = Ran(tmp_path, "disable", name)
    (row_off,) = Ran(tmp_path, "list", "--json").json
    on = Ran(tmp_path, "enable", name)
    removed = Ran(tmp_path, "remove", name)

    assert [ran.code for ran in (empty, made, listed, off, on, removed)] == [0] * 6
    assert empty.out == ""
    assert re.search(rf"^{name} +what is new\? +every 2h .*telegram:123$", listed.out, re.MULTILINE)
    assert (row["id"], row["schedule"]["everyMs"], row["payload"]["to"]) == (name, 7_200_000, "123")
    due = datetime.fromisoformat(row["next_run_at"]) - datetime.now(UTC)
    assert timedelta(hours=1, minutes=58) < due <= timedelta(hours=2)
    assert row_off["next_run_at"] is None
    assert rows_of(tmp_path) == []


def test_times_are_those_of_the_configured_zone_or_of_the_one_that_is_named(tmp_path: Path) -> None:
    once = added(tmp_path, "--at", LATER, zone="Asia/Tokyo")
    named = added(tmp_path, "--at", LATER, "--tz", "Asia/Tokyo", zone="Europe/Berlin")
    daily = added(tmp_path, "--cron", "0 9 * * *", zone="Asia/Tokyo")
    words = ("--cron", "0 9 * * *", "--tz", "Europe/Berlin", "--missed", "all", "--name", "mine")
    other = added(tmp_path, *words, zone="Asia/Tokyo")

    assert once["next_run_at"] == named["next_run_at"] == f"{LATER[:4]}-01-01T00:00:00Z"
    assert daily["schedule"]["tz"] == "Asia/Tokyo"
    assert daily["next_run_at"].endswith("T00:00:00Z")
    schedule = other["schedule"]
    assert (schedule["tz"], schedule["missed"], other["name"]) == ("Europe/Berlin", "all", "mine")


def test_a_list_says_whose_clocks_its_times_are(tmp_path: Path) -> None:
    made = Ran(tmp_path, "add", "--at", LATER, "--tz", "Asia/Tokyo", "--message", "m", zone="Asia/Tokyo")
    here = Ran(tmp_path, "list", zone="Asia/Tokyo")
    there = Ran(tmp_path, "list", zone="UTC")

    day = LATER[:10]
    assert f"at {day} 09:00 JST, next run {day} 09:00:00 JST" in made.err
    assert f"at {day} 09:00 JST" in here.out
    assert f"{day} 09:00:00 JST" in here.out
    assert f"at {day} 00:00 UTC" in there.out
    assert f"{day} 00:00:00 UTC" in there.out


def test_a_job_is_bound_to_the_session_of_its_chat(tmp_path: Path) -> None:
    """The list says which session, and where the answers go."""
    bound = added(tmp_path, "--every", "2h", *TO, "--session", "chat")
    added(tmp_path, "--every", "3h", *TO)
    listed = Ran(tmp_path, "list").out.splitlines()

    assert (bound["payload"]["session"], bound["payload"]["sessionKey"]) == ("chat", "web:ada")
    assert [line.split()[-2:] for line in listed[1:]] == [["chat", "web:ada"], ["job", "web:ada"]]


def test_a_heartbeat_needs_no_message_and_asks_what_its_file_holds(tmp_path: Path) -> None:
    made = Ran(tmp_path, "add", "--heartbeat", "30m", *TO, "--json").json
    idle = Ran(tmp_path, "run", made["id"])
    (tmp_path / "HEARTBEAT.md").write_text("- water the plants\n")
    ran = Ran(tmp_path, "run", made["id"])

    assert (made["name"], made["schedule"]["everyMs"]) == ("heartbeat", 1_800_000)
    assert (idle.code, ran.code) == (1, 0)
    assert "HEARTBEAT.md contains no task" in idle.err


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (("--at", "2020-01-01T09:00", "--message", "m"), ""),
        (("--at", "soon", "--message", "m"), ""),
        (("--every", "0s", "--message", "m"), ""),
        (("--every", "2h", "--tz", "UTC", "--message", "m"), "an interval has no time zone"),
        (("--cron", "* * * * * *", "--message", "m"), ""),
        (("--cron", "0 9 * * *", "--tz", "Mars/Olympus", "--message", "m"), ""),
        (("--every", "2h", "--message", " "), ""),
        (("--every", "2h", "--message", "m", "--to", "ada"), ""),
        (("--every", "2h", "--at", LATER, "--message", "m"), ""),
        (("--every", "2h"), "payload.message is empty"),
        (("--message", "m"), ""),
        (("--every", "2h", "--message", "x", "--session", "chat"), "in the session of a chat needs a chat"),
        (("--heartbeat", "30m", "--tz", "UTC"), "an interval has no time zone"),
    ],
)
def test_what_nobody_can_mean_is_a_usage_error_with_a_cure(
    tmp_path: Path, words: tuple[str, ...], said: str
) -> None:
    ran = Ran(tmp_path, "add", *words)

    assert (ran.code, ran.out) == (2, "")
    assert re.match(r"error: .+\ntry: .+\n$", ran.err)
    assert said in ran.err
    assert not (tmp_path / "cron").exists()


@pytest.mark.parametrize("verb", ["remove", "enable", "disable", "run"])
def test_a_job_that_is_not_there(tmp_path: Path, verb: str) -> None:
    ran = Ran(tmp_path, verb, "nope")

    assert (ran.code, ran.err) == (1, "error: there is no job nope\ntry: chat-gateway cron list\n")


def test_what_cannot_run_is_listed_with_the_reason(tmp_path: Path) -> None:
    added(tmp_path, "--every", "2h")
    spoil(tmp_path, *rows_of(tmp_path), BAD, 7)

    ran = Ran(tmp_path, "list")
    good, bad, seven = Ran(tmp_path, "list", "--json").json

    assert ran.code == 0
    assert "6 fields" in ran.out
    assert "problem" not in good
    assert (bad["id"], bad["payload"], bad["next_run_at"]) == ("bad", {"message": "m"}, None)
    assert "6 fields" in bad["problem"]
    assert "not a JSON object" in seven["problem"]


def test_changes_that_nobody_understands_are_told_and_left_out(tmp_path: Path) -> None:
    """What another program left in ``action.jsonl`` is read by the clock alone; damage would stay unseen."""
    path = tmp_path / "cron" / "action.jsonl"
    path.parent.mkdir(parents=True)
    sound = b'{"action": "del", "params": {"job_id": "1"}}\n'
    path.write_bytes(sound + b"no json\n" + b'{"action": "none"}\n')

    codes = [cli_place.Ran(tmp_path, "sessions", "verify", *how).code for how in ((), ("--repair",), ())]

    assert codes == [1, 0, 0]
    assert path.read_bytes() == sound
    (kept,) = path.parent.glob("action.jsonl.corrupt-*")
    assert b"no json" in kept.read_bytes()


async def test_run_puts_the_same_letter_as_the_clock_does(tmp_path: Path) -> None:
    """Without a daemon it waits for one. Source, job and the chat that gets the answer stand in it."""
    made = await asyncio.to_thread(added, tmp_path, "--every", "2h", "--to", "telegram:1")
    name = made["id"]
    ran = (await asyncio.to_thread(Ran, tmp_path, "run", name, "--json")).json
    async with opened(tmp_path / "state") as mailbox, mailbox.take(INBOUND) as letters:
        ((inbound, ignored),) = [read_inbound(letter.body) for letter in await collect(letters, 1)]

    assert re.fullmatch(rf"cron:{name}@run:[0-9A-HJKMNP-TV-Z]{{26}}", ran["id"])
    assert rows_of(tmp_path)[0]["state"]["lastStatus"] == "ok"
    assert ignored == []
    assert (inbound.id, inbound.text, inbound.source, inbound.cron_job_id) == (ran["id"], "m", "cron", name)
    assert (inbound.answer_to, inbound.key, ran["key"]) == ("telegram:1", f"cron:{name}", f"cron:{name}")


# -- over HTTP -----------------------------------------------------------------------------------------


async def test_jobs_over_http(tmp_path: Path) -> None:
    wanted = {"cron": "0 9 * * *", "tz": "Europe/Berlin", "message": "m", "to": "telegram:1"}
    async with open_place(tmp_path) as place:
        made = await place.http.post("/v1/cron", json={**wanted, "missed": "skip"})
        name = made.json()["id"]
        listed = (await place.http.get("/v1/cron")).json()["jobs"]
        removed = await place.http.delete(f"/v1/cron/{name}")
        again = await place.http.delete(f"/v1/cron/{name}")
        beat = await place.http.post(
            "/v1/cron", json={"heartbeat": "30m", "to": "web:ada", "session": "chat"}
        )

    codes = [answer.status_code for answer in (made, removed, again, beat)]
    assert codes == [201, 200, 404, 201]
    assert listed == [made.json()]
    assert listed[0]["next_run_at"]
    assert set(again.json()) == {"error", "hint"}
    assert (beat.json()["payload"]["heartbeat"], beat.json()["payload"]["session"]) == (True, "chat")
    assert [row["id"] for row in rows_of(tmp_path)] == [beat.json()["id"]]


@pytest.mark.parametrize(
    "body",
    [
        {"message": "m"},
        {"every": "2h"},
        {"every": "2h", "at": LATER, "message": "m"},
        {"every": "2h", "message": "m", "to": "ada"},
        {"every": "2h", "message": "\ud800"},
        {"every": "2h", "message": "m", "name": "\ud800"},
        {"every": "2h", "message": "m", "color": "red"},
        {"every": 5, "message": "m"},
    ],
)
async def test_a_job_that_cannot_be_is_refused(tmp_path: Path, body: dict[str, Any]) -> None:
    async with open_place(tmp_path) as place:
        answer = await place.http.post("/v1/cron", content=json.dumps(body))

    assert answer.status_code == 400
    assert set(answer.json()) == {"error", "hint"}


async def test_a_job_is_run_over_http_in_its_own_session(tmp_path: Path) -> None:
    odd = "a/b c?ü"
    schedule = {"kind": "every", "everyMs": 7_200_000}
    spoil(tmp_path, {"id": odd, "name": "n", "schedule": schedule, "payload": {"message": "go"}}, BAD)
    key = f"cron:{odd}"

    async with open_place(tmp_path) as place:
        async with place.stream(key) as stream:
            ran = await place.http.post(f"/v1/cron/{quote(odd, safe='')}/run")
            event, _ = await stream.next("started")
        unknown = await place.http.post("/v1/cron/nope/run")
        bad = await place.http.post("/v1/cron/bad/run")

    assert (ran.status_code, unknown.status_code, bad.status_code) == (202, 404, 409)
    assert ran.json()["key"] == event["key"] == key
    assert event["in_reply_to"] == ran.json()["id"]


# -- doctor --------------------------------------------------------------------------------------------


def test_doctor_names_bad_jobs_damage_copies_and_open_folders(tmp_path: Path) -> None:
    none = list(check(tmp_path))
    spoil(tmp_path, BAD)
    (tmp_path / "cron" / "jobs.json.corrupt-X").touch()
    (tmp_path / "cron").chmod(0o755)
    findings = list(check(tmp_path))
    (tmp_path / "cron" / "jobs.json").write_text("{")
    broken = list(check(tmp_path))

    assert [(each.level, each.text) for each in none] == [("ok", "no jobs; the gateway is not running")]
    warned = [each.text for each in findings if each.level == "warn" and each.cure]
    words = ("6 fields", "corrupt-X", "others can read")
    assert [any(word in text for text in warned) for word in words] == [True] * 3
    assert ("fail", True) in [(each.level, "not JSON" in each.text) for each in broken]


def test_doctor_names_jobs_that_are_overdue(tmp_path: Path) -> None:
    long_ago_ms = int(datetime(2026, 1, 1, tzinfo=UTC).timestamp() * 1000)
    schedule = {"kind": "every", "everyMs": 5000}
    spoil(tmp_path, BAD | {"id": "a", "schedule": schedule, "state": {"nextRunAtMs": long_ago_ms}})
    assert [each.level for each in check(tmp_path)] == ["ok"]

    with storage.locked(tmp_path / "state" / "cron.lease"):
        (late,) = check(tmp_path)

    assert list(CronFile(tmp_path).read().jobs) == ["a"]
    assert (late.level, late.text) == ("warn", "1 job overdue: a")
