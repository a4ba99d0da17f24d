"""What changes on a platform under a running gateway: topics, webhooks, limits, mentions added by an edit."""

from __future__ import annotations

import asyncio
from pathlib import Path

import httpx
import pytest

from tests.support.discord_server import DiscordServer
from tests.support.harness import Daemon
from tests.support.model_server import ModelServer, Reply
from tests.support.place import with_model
from tests.support.telegram_server import TelegramServer
from tests.system.platform_place import ADA, with_discord, with_telegram

FORUM, GROUP = -1001234567890, -1001234567891
PHOTO = [("photo", "a.jpg", b"\xff\xd8\xff\xe0jpeg", "image/jpeg")]


@pytest.mark.timeout(300)
async def test_answers_come_whatever_telegram_does_meanwhile(tmp_path: Path) -> None:
    async with TelegramServer() as server, ModelServer() as model:
        server.add_chat(FORUM, "supergroup", forum=True, threads={5})
        config = with_telegram(server, groups="mention") | with_model(model)
        async with Daemon(tmp_path, config=config) as daemon:
            # The topic is deleted while the model thinks: the answer goes to the chat's main thread.
            thinks = asyncio.Event()
            model.script.append(Reply(text="stub: in time", held=thinks))
            server.write(FORUM, "@gate_test_bot hello", thread=5)
            await model.arrived(1)
            server.world.chats[FORUM].threads.discard(5)
            thinks.set()
            sent = await server.said(FORUM, lambda sent: sent.text == "stub: in time")
            assert sent.thread is None

            # The limit of the typing sign is that of the typing sign alone.
            server.fail("sendChatAction", how="429", times=None, retry_after=3_000, chat_id=ADA)
            server.write(ADA, "hello")
            await server.said(ADA, lambda sent: sent.text == "stub: hello")

            # A webhook that somebody sets is removed, once, and the operator is told.
            async with httpx.AsyncClient() as client:
                await client.post(
                    f"{server.base_url}{server.token}/setWebhook", json={"url": "https://example.org/"}
                )
            server.write(ADA, "still there?")
            await server.said(ADA, lambda sent: sent.text == "stub: still there?")
            assert daemon.log.count(b'"webhook.removed"') == 1

            # A command behind the bot's name is a command.
            asked = len(model.seen)
            server.write(GROUP, "@gate_test_bot /status")
            status = await server.said(GROUP)
            assert "stub: " not in status.text
            assert len(model.seen) == asked

            # A message that an edit addresses to the bot is answered then, once; a further edit asks nothing.
            late = server.message_of[server.write(GROUP, "look at this", files=PHOTO)]
            await server.until(lambda: b"not mentioned" in daemon.log)
            server.write(GROUP, "@gate_test_bot look at this", files=PHOTO, edited=late)
            answer = await server.said(GROUP, lambda sent: "look at this" in sent.text)
            server.write(GROUP, "@gate_test_bot look at that", files=PHOTO, edited=late)
            server.write(GROUP, "@gate_test_bot next")
            await server.said(GROUP, lambda sent: "next" in sent.text)
            messages = str(model.seen[-1].messages)
            assert answer.reply_to == late
            assert len(server.sent_to(GROUP)) == 3
            assert "look at that" in messages
            assert "image_url" in messages


@pytest.mark.timeout(300)
async def test_a_mention_that_an_edit_adds_is_answered_on_discord(tmp_path: Path) -> None:
    async with DiscordServer() as server:
        channel = server.channel(server.guild("home"), "general")
        async with Daemon(tmp_path, config=with_discord(server, groups="mention")):
            await server.connected(within_s=120)
            first = server.write(channel, "what is up?", user="ada")
            second = server.write(channel, "hello", user="ada", mentions_bot=True)
            await server.sent_count(1, within_s=120)
            server.edit(first, f"{server.bot.mention} what is up?")
            server.edit(second, f"{server.bot.mention} hello again")
            await server.sent_count(2, within_s=120)
            server.write(channel, "the last", user="ada", mentions_bot=True)
            sent = await server.sent_count(3, within_s=120)

    assert [one.text for one in sent] == ["echo: hello", "echo: what is up?", "echo: the last"]
    assert sent[1].reference == first
