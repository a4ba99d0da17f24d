"""Whatever doctor finds wrong, it names what to do about it."""

from __future__ import annotations

import asyncio
import json
import os
from pathlib import Path

import orjson
import pytest

from gateway.app.daemons import DaemonRegistry
from gateway.app.erasure import Erasure
from gateway.app.wiring_session import SessionServices
from gateway.config.settings import Settings
from gateway.doctor.checks import examine
from gateway.doctor.finding import Check, bounded
from gateway.doctor.workspace import MEDIA_MANY_BYTES
from gateway.errors import GatewayError
from gateway.queue.mailbox import INBOUND, Post, outbound
from session.kept.checking import BY_HAND
from session.kept.erasing import Owed
from tests.contracts.posts import post
from tests.gateway.http_place import open_place
from tests.support.harness import command
from tests.support.model_server import ModelServer, Reply
from tests.support.place import with_model, write
from tests.support.until import until

REFUSED = b'{"error": {"message": "unknown field: stream_options", "param": "stream_options"}}'


async def test_each_finding_of_a_workspace_in_disorder_names_its_cure(tmp_path: Path) -> None:
    """What a person has to decide is not said to be repaired by a verb."""
    for name, text in {
        "state/dreams.json": "{",
        "state/gateway.db": "no database",
        "cron/jobs.json": '{"jobs": [1, {"id": "a", "schedule": {"kind": "at"}}]}',
        "skills/bad/SKILL.md": "---\nname: [\n---\n",
        "sessions/cli_x.jsonl": "no JSON\n",
    }.items():
        write((tmp_path / name), text)
    async with ModelServer() as model:
        model.chooses = lambda seen: (
            Reply(status=400, refusal=REFUSED) if "stream_options" in seen.body else None
        )
        config = with_model(
            model,
            **{
                "model.stream": "always",
                "channels.telegram.enabled": "true",
                "channels.telegram.token": "1:not-a-token",
                "channels.telegram.base_url": "http://127.0.0.1:1/bot",
            },
        )
        code, printed = await command(tmp_path, "doctor", "--json", "--within", "5", config=config)

    found = json.loads(printed)
    wrong = [check for check in found if check["level"] != "ok"]
    assert code == 1
    assert [check for check in wrong if not check["cure"]] == []
    assert {"broker", "model", "transcripts", "cron", "permissions", "channels.telegram"} <= {
        check["name"] for check in wrong
    }
    assert any("requests go without stream_options" in check["text"] for check in wrong)
    cures = {check["text"].partition(":")[0]: check["cure"] for check in wrong}
    assert cures["state/dreams.json"] == BY_HAND
    assert cures["sessions/cli_x.jsonl"] == "chat-gateway sessions verify --repair"


@pytest.mark.parametrize("error", [GatewayError("it is not there"), OSError("it is not there")])
async def test_an_error_without_a_hint_has_the_cure_of_what_was_asked(error: Exception) -> None:
    async def fails() -> None:
        raise error

    asking = asyncio.ensure_future(fails())
    found = await bounded("broker", asking, within_s=5, asked="the queue", cure="look at the queue")

    assert found is not None
    assert (found.level, found.text, found.cure) == ("fail", "it is not there", "look at the queue")


async def test_doctor_asks_the_daemon_what_waits_for_nobody_and_what_is_parked(tmp_path: Path) -> None:
    async with open_place(tmp_path) as place:
        mailbox = place.application.mailbox
        await mailbox.put(post("slack:1", 1, box=outbound("slack")))
        await mailbox.put(Post(INBOUND, "web:a", "web:odd", orjson.dumps({"v": 1, "text": 5})))
        await until(mailbox.parked)
        with DaemonRegistry(tmp_path).entry(url=place.server.url, role="all"):
            _, shown = await command(tmp_path, "doctor")

    assert "warn  broker: 1 reply waits for slack, the oldest for " in shown
    assert ": 1 message is parked\n" in shown


async def test_doctor_warns_of_many_media(tmp_path: Path) -> None:
    (tmp_path / "media" / "ab").mkdir(parents=True)
    file = tmp_path / "media" / "ab" / "film.mp4"
    file.touch()
    settings = Settings.model_validate({"workspace": tmp_path})
    levels = {}
    for size in (2**20, MEDIA_MANY_BYTES + 1):
        # A file with a hole takes no place on the disk.
        os.truncate(file, size)
        (levels[size],) = [check async for check in examine(settings) if check.name == "media"]

    assert [check.level for check in levels.values()] == ["ok", "warn"]
    assert levels[2**20].text == "1 MB in media/"
    assert "retention_days" in levels[MEDIA_MANY_BYTES + 1].cure


async def erasures(settings: Settings) -> list[Check]:
    return [check async for check in examine(settings) if check.name == "erasures"]


async def test_doctor_names_an_erasure_that_is_not_whole(tmp_path: Path) -> None:
    """Of a chat and of a person, each with the command that ends it; nothing when it has ended."""
    settings = Settings.model_validate({"workspace": tmp_path, "people": {"ada": ["web:ada"]}})
    before = await erasures(settings)
    services = SessionServices(settings, status=lambda *_: [])
    erasure = Erasure(settings, services, mailbox=None)
    owed = Owed(settings.state)
    owed.keep(await erasure.subject(key="web:bob"))
    owed.keep(await erasure.subject(person="ada"))
    begun = await erasures(settings)
    await erasure.finish()
    await services.aclose()

    assert [check.level for check in before] == ["ok"]
    assert {(check.level, check.cure.partition(";")[0]) for check in begun} == {
        ("warn", "chat-gateway memory erase web:bob --yes"),
        ("warn", "chat-gateway memory erase --person ada --yes"),
    }
    assert await erasures(settings) == before
