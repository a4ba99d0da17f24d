"""A running gateway keeps up a person's profile, whichever chat it is said in, and goes by its time zone."""

from __future__ import annotations

import json
from pathlib import Path

import httpx

from tests.support.harness import Daemon, ask, command
from tests.support.model_server import ModelServer
from tests.support.place import with_model

PEOPLE = {"ada": ["web:a", "cli:direct"]}
CALL = {"section": "Name", "text": "Ada, engineer", "timezone": "Asia/Tokyo"}


async def test_what_is_said_in_one_chat_of_a_person_is_known_in_the_others(tmp_path: Path) -> None:
    """The profile, the date of a request, and the times of jobs that answer there; no other chat's."""
    async with ModelServer() as model:
        config = with_model(model, people=PEOPLE)
        async with Daemon(tmp_path, config=config) as daemon:
            assert await ask(daemon, "web:a", "1", f"I am Ada [[tool:profile {json.dumps(CALL)}]]")
            assert await ask(daemon, "cli:direct", "2", "who am I?")
            assert await ask(daemon, "web:b", "3", "and I?")
            async with httpx.AsyncClient(base_url=daemon.url) as http:
                zones = {}
                for to, tz in (
                    ("cli:direct", None),
                    ("cli:direct", "Europe/Oslo"),
                    ("web:b", None),
                    ("", None),
                ):
                    job = {"cron": "0 9 * * *", "message": "x", "to": to, "tz": tz}
                    row = (await http.post("/v1/cron", json=job)).json()
                    zones[to, tz] = row["schedule"]["tz"]
            words = ("cron", "add", "--at", "2099-01-01T09:00", "--message", "x", "--to", "web:a", "--json")
            code, printed = await command(tmp_path, *words, config=config)
        asked = {seen.messages[-1]["content"].rpartition("\n")[2]: seen.messages for seen in model.turns}

    assert (
        tmp_path / "memory/people/ada/USER.md"
    ).read_text() == "timezone: Asia/Tokyo\n\n## Name\nAda, engineer\n"
    here, there = asked["who am I?"], asked["and I?"]
    assert "## Profile of the person\ntimezone: Asia/Tokyo\n\n### Name\nAda, engineer" in here[0]["content"]
    assert "Asia/Tokyo (UTC+0900)" in here[-1]["content"]
    assert "Profile" not in there[0]["content"]
    assert "UTC (UTC+0000)" in there[-1]["content"]
    assert zones == {
        ("cli:direct", None): "Asia/Tokyo",
        ("cli:direct", "Europe/Oslo"): "Europe/Oslo",
        ("web:b", None): "UTC",
        ("", None): "UTC",
    }
    assert code == 0
    assert json.loads(printed)["next_run_at"] == "2099-01-01T00:00:00Z"
