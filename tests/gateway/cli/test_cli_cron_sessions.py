"""``cron add`` of jobs in the session of their chat, by ``HEARTBEAT.md``, on the clocks of a zone."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import httpx
import pytest

from tests.gateway.cli.test_cli_cron import LATER, Ran
from tests.support.harness import Daemon

TO = ("--to", "web:ada")


def row(workspace: Path, *words: str) -> dict[str, Any]:
    found: dict[str, Any] = Ran(workspace, "add", *words, "--json").json
    return found


def test_a_job_is_bound_to_the_session_of_its_chat(tmp_path: Path) -> None:
    """The list says which session, and where the answers go."""
    bound = row(tmp_path, "--every", "2h", "--message", "x", *TO, "--session", "chat")
    row(tmp_path, "--every", "3h", "--message", "y", *TO)
    listed = Ran(tmp_path, "list").out.splitlines()

    assert bound["payload"]["session"] == "chat"
    assert bound["payload"]["sessionKey"] == "web:ada"
    assert [line.split()[-2:] for line in listed[1:]] == [["chat", "web:ada"], ["job", "web:ada"]]


def test_a_date_is_on_the_clocks_of_its_zone(tmp_path: Path) -> None:
    made = row(tmp_path, "--at", LATER, "--tz", "Europe/Berlin", "--message", "x")

    assert made["next_run_at"] == LATER.replace("T09:00", "T08:00:00Z")


def test_a_heartbeat_needs_no_message_and_asks_what_its_file_holds(tmp_path: Path) -> None:
    made = row(tmp_path, "--heartbeat", "30m", *TO)
    idle = Ran(tmp_path, "run", made["id"])
    (tmp_path / "HEARTBEAT.md").write_text("- water the plants\n")
    ran = Ran(tmp_path, "run", made["id"])

    assert (made["name"], made["schedule"]["everyMs"]) == ("heartbeat", 1_800_000)
    assert (idle.code, ran.code) == (1, 0)
    assert "HEARTBEAT.md contains no task" in idle.err


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (["--every", "2h"], "payload.message is empty"),
        (["--every", "2h", "--message", "x", "--session", "chat"], "in the session of a chat needs a chat"),
        (["--heartbeat", "30m", "--tz", "UTC"], "an interval has no time zone"),
    ],
)
def test_what_makes_no_job_is_refused_with_its_cure(tmp_path: Path, words: list[str], said: str) -> None:
    refused = Ran(tmp_path, "add", *words)

    assert refused.code == 2
    assert said in refused.err
    assert "try: " in refused.err


async def test_the_same_over_http(tmp_path: Path) -> None:
    async with Daemon(tmp_path) as daemon, httpx.AsyncClient(base_url=daemon.url) as http:
        beat = await http.post("/v1/cron", json={"heartbeat": "30m", "to": "web:ada", "session": "chat"})
        bad = await http.post("/v1/cron", json={"every": "2h"})

    assert beat.status_code == 201
    assert (beat.json()["payload"]["heartbeat"], beat.json()["payload"]["session"]) == (True, "chat")
    assert bad.status_code == 400
