"""Whatever doctor finds wrong, it names what to do about it."""

from __future__ import annotations

import asyncio
import json
from pathlib import Path

import pytest

from gateway.doctor.finding import bounded
from gateway.errors import GatewayError
from session.kept.checking import BY_HAND
from tests.support.harness import command
from tests.support.model_server import ModelServer, Reply
from tests.support.place import with_model

REFUSED = b'{"error": {"message": "unknown field: stream_options", "param": "stream_options"}}'


async def test_each_finding_of_a_workspace_in_disorder_names_its_cure(tmp_path: Path) -> None:
    """What a person has to decide is not said to be repaired by a verb."""
    for name, text in {
        "state/keys/cli_x.log": "no JSON\n",
        "state/dreams.json": "{",
        "state/gateway.db": "no database",
        "cron/jobs.json": '{"jobs": [1, {"id": "a", "schedule": {"kind": "at"}}]}',
        "skills/bad/SKILL.md": "---\nname: [\n---\n",
        "sessions/cli_x.jsonl": "no JSON\n",
    }.items():
        (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / name).write_text(text)
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
