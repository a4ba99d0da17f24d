"""Replies that wait on RabbitMQ for a channel nobody serves are told by processes that sent none of them."""

from __future__ import annotations

import asyncio
from pathlib import Path

import pytest

from channels.message import Inbound
from gateway.__main__ import main
from gateway.app.application import Application
from gateway.app.status import status_of
from gateway.app.wiring_broker import RepliedChannels
from gateway.config.settings import Settings
from gateway.queue.mailbox import INBOUND, Post
from tests.support.broker import Broker
from tests.support.until import until


async def test_later_processes_tell_of_them_too(
    tmp_path: Path,
    broker: Broker,
    broker_name: str,
    capsys: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """The broker lists no queues, so that the channels replied to are remembered beside the conversations."""
    settings = Settings.model_validate(
        {"workspace": tmp_path, "broker": {"url": broker.url, "name": broker_name, "queue_type": "classic"}}
    )
    letter = Inbound(v=1, id="slack:m1", key="slack:1", channel="slack", chat_id="1", text="hi")
    async with Application(settings, role="session").open() as application:
        await application.mailbox.put(Post(INBOUND, letter.key, letter.id, letter.to_bytes()))
        await until(lambda: application.replied.names() == ["slack"], 60)

    async with Application(settings, role="session").open() as later:
        (row,) = (await status_of(later))["unserved"]
    monkeypatch.setenv("CHAT_GATEWAY_BROKER__URL", broker.url)
    monkeypatch.setenv("CHAT_GATEWAY_BROKER__NAME", broker_name)
    monkeypatch.setenv("CHAT_GATEWAY_BROKER__QUEUE_TYPE", "classic")
    told = {}
    for verb in ("status", "doctor"):
        await asyncio.to_thread(main, ["--workspace", str(tmp_path), verb])
        told[verb] = capsys.readouterr().out

    assert (row["channel"], row["count"], row["oldest_at"]) == ("slack", 1, None)
    assert all("1 reply waits for slack" in text for text in told.values()), told


async def test_a_name_that_is_no_channel_is_not_recorded(tmp_path: Path) -> None:
    """Letters of other programs may name any channel, such as a path."""
    replied = RepliedChannels(tmp_path)
    for channel in ("../escape", "slack", "", "slack"):
        letter = Inbound.model_construct(
            id="x", key=f"{channel}:1", channel=channel, chat_id="1", answer_to=None
        )
        if (news := replied.news(letter)) is not None:
            await replied.note(news)

    assert replied.names() == ["slack"]
    assert RepliedChannels(tmp_path / "none").names() == []
