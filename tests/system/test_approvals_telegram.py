"""Approvals through a running gateway with Telegram, on both kinds of queue."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from tests.support.broker import Broker
from tests.support.harness import Daemon
from tests.support.model_server import ModelServer, Reply
from tests.support.place import lines_of, on
from tests.support.telegram_server import TelegramServer
from tests.system.approvals_place import asks, results, writing, written
from tests.system.platform_place import ADA, with_telegram

EVE = 666
GROUP = -5


@pytest.fixture(params=["embedded", "rabbitmq"])
def queue(request: pytest.FixtureRequest) -> dict[str, Any]:
    """The configuration of each kind of queue."""
    if request.param == "embedded":
        return {}
    broker: Broker = request.getfixturevalue("broker")
    return on(broker, request.getfixturevalue("broker_name"))


async def test_a_pressed_button_lets_the_call_run_once(tmp_path: Path, queue: dict[str, Any]) -> None:
    """The chat sees the whole call; what was decided then stands in its place, without buttons."""
    async with TelegramServer() as server, ModelServer() as model:
        model.script.extend([writing("milk"), Reply("noted")])
        async with Daemon(tmp_path, config=asks(model) | with_telegram(server) | queue):
            server.write(ADA, "note: milk")
            prompt = (await server.sent_count(1))[0]
            assert '"content": "milk"' in prompt.text
            assert '"path": "notes.txt"' in prompt.text
            assert str(tmp_path / "files") in prompt.text
            assert f"Person {ADA} ({ADA})" in prompt.text
            assert written(tmp_path) == []
            buttons = server.buttons(ADA, prompt.message_id)
            assert list(buttons) == ["Allow", "Deny"]

            server.press(ADA, prompt.message_id, buttons["Allow"])
            await server.said(ADA, lambda one: one.text == "noted")

            assert written(tmp_path) == ["milk"]
            assert server.sent[0].text == f"Allowed by Person {ADA} ({ADA}): write"
            assert server.buttons(ADA, prompt.message_id) == {}
            # A second press comes too late, and is told so.
            server.press(ADA, prompt.message_id, buttons["Deny"])
            refused = await server.said(ADA, lambda one: "decided already" in one.text)

    assert refused.reply_to == prompt.message_id
    assert [each.text for each in server.sent[1:]] == ["noted", refused.text]
    assert len(model.turns) == 2
    assert lines_of(tmp_path, f"telegram_{ADA}")[1]["asks"]
