"""The verbs of the clock as a person and a program use them, its routes, and what doctor says of it."""

from __future__ import annotations

import asyncio
import json
import re
import sys
from collections.abc import AsyncIterator
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any
from urllib.parse import quote

import pytest

from channels import state_file
from channels.cron.jobs_file import CronFile
from channels.message import read_inbound
from gateway.__main__ import main
from gateway.doctor.cron import check
from gateway.queue.embedded.mailbox import EmbeddedMailbox
from gateway.queue.mailbox import INBOUND
from tests.gateway.http_place import Place, open_place
from tests.support import forked
from tests.support.harness import ROOT, Daemon, environment

# At the end of December the first of January is too near.
LATER = f"{datetime.now(UTC).year + 2}-01-01T09:00"
BAD = {
    "id": "bad",
    "name": "b",
    "schedule": {"kind": "cron", "expr": "* * * * * *"},
    "payload": {"message": "m"},
}


class Ran:
    def __init__(self, workspace: Path, *words: str, zone: str = "UTC") -> None:
        done = forked.run(
            [sys.executable, "-m", "gateway", "--workspace", str(workspace), "cron", *words],
            cwd=ROOT,
            env=environment({"http.port": 0, "timezone": zone}),
            text=True,
            timeout=60,
        )
        self.code, self.out, self.err = done.returncode, done.stdout, done.stderr

    @property
    def json(self) -> Any:
        return json.loads(self.out)


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
    added = Ran(tmp_path, "add", "--every", "2h", "--message", "what is new?", "--to", "telegram:123")
    name = added.out.strip()
    listed = Ran(tmp_path, "list")
    (row,) = Ran(tmp_path, "list", "--json").json
    off = Ran(tmp_path, "disable", name)
    (row_off,) = Ran(tmp_path, "list", "--json").json
    on = Ran(tmp_path, "enable", name)
    removed = Ran(tmp_path, "remove", name)

    codes = [ran.code for ran in (empty, added, listed, off, on, removed)]
    assert codes == [0] * 6
    assert empty.out == ""
    assert re.search(rf"^{name} +what is new\? +every 2h .*telegram:123$", listed.out, re.MULTILINE)
    assert (row["id"], row["schedule"]["everyMs"], row["payload"]["to"]) == (name, 7_200_000, "123")
    due = datetime.fromisoformat(row["next_run_at"]) - datetime.now(UTC)
    assert timedelta(hours=1, minutes=58) < due <= timedelta(hours=2)
    assert row_off["next_run_at"] is None
    assert rows_of(tmp_path) == []


def test_times_are_those_of_the_configured_zone(tmp_path: Path) -> None:
    once = Ran(tmp_path, "add", "--at", LATER, "--message", "m", "--json", zone="Asia/Tokyo").json
    daily = Ran(tmp_path, "add", "--cron", "0 9 * * *", "--message", "m", "--json", zone="Asia/Tokyo").json
    other = Ran(
        tmp_path,
        "add",
        "--cron",
        "0 9 * * *",
        "--tz",
        "Europe/Berlin",
        "--message",
        "m",
        "--missed",
        "all",
        "--name",
        "mine",
        "--json",
    ).json

    assert once["next_run_at"] == f"{LATER[:4]}-01-01T00:00:00Z"
    assert daily["schedule"]["tz"] == "Asia/Tokyo"
    assert daily["next_run_at"].endswith("T00:00:00Z")
    assert (other["schedule"]["tz"], other["schedule"]["missed"], other["name"]) == (
        "Europe/Berlin",
        "all",
        "mine",
    )


@pytest.mark.parametrize(
    "words",
    [
        ("--at", "2020-01-01T09:00", "--message", "m"),
        ("--at", "soon", "--message", "m"),
        ("--every", "0s", "--message", "m"),
        ("--every", "2h", "--tz", "UTC", "--message", "m"),
        ("--cron", "* * * * * *", "--message", "m"),
        ("--cron", "0 9 * * *", "--tz", "Mars/Olympus", "--message", "m"),
        ("--every", "2h", "--message", " "),
        ("--every", "2h", "--message", "m", "--to", "ada"),
        ("--every", "2h", "--at", LATER, "--message", "m"),
        ("--every", "2h"),
        ("--message", "m"),
    ],
)
def test_what_nobody_can_mean_is_a_usage_error_with_a_cure(
    tmp_path: Path, words: tuple[str, ...], capsys: pytest.CaptureFixture[str]
) -> None:
    try:
        code = main(["--workspace", str(tmp_path), "cron", "add", *words])
    except SystemExit as ended:
        code = int(str(ended.code))

    said = capsys.readouterr()
    assert (code, said.out) == (2, "")
    assert re.match(r"error: .+\ntry: .+\n$", said.err)
    assert not (tmp_path / "cron").exists()


def test_a_job_that_is_not_there(tmp_path: Path) -> None:
    for verb in ("remove", "enable", "disable", "run"):
        ran = Ran(tmp_path, verb, "nope")
        assert (ran.code, ran.err) == (1, "error: there is no job nope\ntry: chat-gateway cron list\n")


def test_what_cannot_run_is_listed_with_the_reason(tmp_path: Path) -> None:
    Ran(tmp_path, "add", "--every", "2h", "--message", "m")
    spoil(tmp_path, *rows_of(tmp_path), BAD, 7)

    ran = Ran(tmp_path, "list")
    good, bad, seven = Ran(tmp_path, "list", "--json").json

    assert ran.code == 0
    assert "6 fields" in ran.out
    assert "problem" not in good
    assert (bad["id"], bad["payload"], bad["next_run_at"]) == ("bad", {"message": "m"}, None)
    assert "6 fields" in bad["problem"]
    assert "not a JSON object" in seven["problem"]


def test_a_torn_file_is_listed_and_its_original_kept_at_the_first_change(tmp_path: Path) -> None:
    for text in ("one", "two"):
        Ran(tmp_path, "add", "--every", "2h", "--message", text)
    path = tmp_path / "cron" / "jobs.json"
    torn = path.read_bytes()[: path.read_bytes().rindex(b"deliver")]
    path.write_bytes(torn)

    listed = Ran(tmp_path, "list", "--json").json
    added = Ran(tmp_path, "add", "--every", "2h", "--message", "three")

    assert [row["payload"]["message"] for row in listed if "problem" not in row] == ["one"]
    assert any("not JSON" in row.get("problem", "") for row in listed)
    assert any("line " in row.get("problem", "") for row in listed)
    (kept,) = path.parent.glob("jobs.json.corrupt-*")
    assert kept.read_bytes() == torn
    assert str(kept) in added.err
    assert [row["payload"]["message"] for row in rows_of(tmp_path)] == ["one", "three"]


def test_changes_that_nobody_understands_are_told_and_left_out(tmp_path: Path) -> None:
    """What another program left in ``action.jsonl`` is read by the clock alone; damage would stay unseen."""
    path = tmp_path / "cron" / "action.jsonl"
    path.parent.mkdir(parents=True)
    sound = b'{"action": "del", "params": {"job_id": "1"}}\n'
    path.write_bytes(sound + b"no json\n" + b'{"action": "none"}\n')
    base = ["--workspace", str(tmp_path), "sessions", "verify"]

    codes = [main(base), main([*base, "--repair"]), main(base)]

    assert codes == [1, 0, 0]
    assert path.read_bytes() == sound
    (kept,) = path.parent.glob("action.jsonl.corrupt-*")
    assert b"no json" in kept.read_bytes()


async def test_run_without_a_daemon_puts_a_letter_that_waits(tmp_path: Path) -> None:
    name = Ran(tmp_path, "add", "--every", "2h", "--message", "now!", "--to", "telegram:1").out.strip()

    ran = Ran(tmp_path, "run", name, "--json").json

    assert re.fullmatch(rf"cron:{name}@run:[0-9A-HJKMNP-TV-Z]{{26}}", ran["id"])
    assert ran["key"] == f"cron:{name}"
    ran_row = rows_of(tmp_path)[0]["state"]
    assert ran_row["lastStatus"] == "ok"
    daemon = Daemon(tmp_path)
    try:
        await daemon.start()
        await daemon.said(f"cron:{name}@run:")
    finally:
        await daemon.kill()


# -- over HTTP -----------------------------------------------------------------------------------------


@pytest.fixture
async def place(tmp_path: Path) -> AsyncIterator[Place]:
    async with open_place(tmp_path) as place:
        yield place


async def test_jobs_over_http(place: Place, tmp_path: Path) -> None:
    wanted = {
        "cron": "0 9 * * *",
        "tz": "Europe/Berlin",
        "message": "m",
        "to": "telegram:1",
        "missed": "skip",
    }
    made = await place.http.post("/v1/cron", json=wanted)
    name = made.json()["id"]
    listed = (await place.http.get("/v1/cron")).json()["jobs"]
    removed = await place.http.delete(f"/v1/cron/{name}")
    again = await place.http.delete(f"/v1/cron/{name}")

    assert (made.status_code, removed.status_code, again.status_code) == (201, 200, 404)
    assert listed == [made.json()]
    assert listed[0]["next_run_at"]
    assert set(again.json()) == {"error", "hint"}
    assert rows_of(tmp_path) == []


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
async def test_a_job_that_cannot_be_is_refused(place: Place, body: dict[str, Any]) -> None:
    answer = await place.http.post("/v1/cron", content=json.dumps(body))

    assert answer.status_code == 400
    assert set(answer.json()) == {"error", "hint"}


async def test_a_job_is_run_over_http_in_its_own_session(place: Place, tmp_path: Path) -> None:
    odd = "a/b c?ü"
    row = {
        "id": odd,
        "name": "n",
        "schedule": {"kind": "every", "everyMs": 7_200_000},
        "payload": {"message": "go"},
    }
    spoil(tmp_path, row, BAD)
    key = f"cron:{odd}"

    async with place.stream(key) as stream:
        ran = await place.http.post(f"/v1/cron/{quote(odd, safe='')}/run")
        event, _ = await stream.next("started")
    unknown = await place.http.post("/v1/cron/nope/run")
    bad = await place.http.post("/v1/cron/bad/run")

    assert (ran.status_code, unknown.status_code, bad.status_code) == (202, 404, 409)
    assert ran.json()["key"] == event["key"] == key
    assert event["in_reply_to"] == ran.json()["id"]


async def test_the_daemon_runs_what_the_command_line_asks_for(tmp_path: Path) -> None:
    daemon = Daemon(tmp_path)
    try:
        await daemon.start()
        name = Ran(tmp_path, "add", "--every", "2h", "--message", "hello").out.strip()
        ran = Ran(tmp_path, "run", name)
        await daemon.said(f"cron:{name}@run:")
    finally:
        await daemon.kill()

    assert ran.code == 0
    assert f"cron:{name}@run:" in ran.err


async def test_run_puts_the_same_letter_as_the_clock_does(tmp_path: Path) -> None:
    """Source, job and the chat that gets the answer stand in it."""
    name = Ran(tmp_path, "add", "--every", "2h", "--message", "now!", "--to", "telegram:1").out.strip()
    Ran(tmp_path, "run", name)
    mailbox = EmbeddedMailbox(tmp_path / "state")

    async def first() -> bytes:
        await mailbox.ready()
        async with mailbox.take(INBOUND) as letters:
            async for letter in letters:
                return letter.body
        raise AssertionError

    serving = asyncio.create_task(mailbox.serve())
    try:
        inbound, ignored = read_inbound(await asyncio.wait_for(first(), 20))
    finally:
        serving.cancel()
        await asyncio.gather(serving, return_exceptions=True)

    assert ignored == []
    assert (inbound.text, inbound.source, inbound.cron_job_id) == ("now!", "cron", name)
    assert (inbound.answer_to, inbound.key) == ("telegram:1", f"cron:{name}")


# -- doctor --------------------------------------------------------------------------------------------


def test_doctor_without_jobs(tmp_path: Path) -> None:
    ((level, text, _),) = check(tmp_path)

    assert (level, text) == ("ok", "no jobs; none runs until the gateway is started")


def test_doctor_names_bad_jobs_damage_copies_and_open_folders(tmp_path: Path) -> None:
    spoil(tmp_path, BAD)
    (tmp_path / "cron" / "jobs.json.corrupt-X").touch()
    (tmp_path / "cron").chmod(0o755)
    findings = list(check(tmp_path))
    (tmp_path / "cron" / "jobs.json").write_text("{")
    broken = list(check(tmp_path))

    warned = [text for level, text, cure in findings if level == "warn" and cure]
    assert [
        any(word in text for text in warned) for word in ("6 fields", "corrupt-X", "others can read")
    ] == [True] * 3
    assert ("fail", True) in [(level, "not JSON" in text) for level, text, _ in broken]


def test_doctor_names_jobs_that_are_overdue(tmp_path: Path) -> None:
    file = CronFile(tmp_path)
    long_ago = datetime(2026, 1, 1, tzinfo=UTC)
    spoil(
        tmp_path,
        BAD
        | {
            "id": "a",
            "schedule": {"kind": "every", "everyMs": 5000},
            "state": {"nextRunAtMs": int(long_ago.timestamp() * 1000)},
        },
    )
    assert [level for level, _, _ in check(tmp_path)] == ["ok"]

    with state_file.locked(tmp_path / "state" / "cron.lease"):
        ((level, text, _),) = check(tmp_path)

    assert list(file.read().jobs) == ["a"]
    assert (level, text) == ("warn", "1 job overdue: a")
