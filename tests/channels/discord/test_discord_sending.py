"""Chunks sent to Discord, and what became of them."""

from __future__ import annotations

import asyncio
import logging
from pathlib import Path
from typing import Any

import pytest
import structlog

from channels.base import Chunk
from channels.errors import (
    ChannelDown,
    ChannelError,
    CredentialsRefused,
    MessageGone,
    SendLater,
    SendNever,
    SendUnknown,
)
from tests.channels.discord.discord_place import SENDS, Record, adapter, chunk, running, sender
from tests.support.discord_server import DiscordServer
from tests.support.discord_world import Channel as Place

# -- sending -------------------------------------------------------------------------------------


async def test_a_reply_quotes_and_pings_nobody_else(
    server: DiscordServer, general: Place, state: Path
) -> None:
    """The question is quoted; mentions in the answer stay without effect; a deleted question is no error."""
    question = server.write(general, "why?")
    async with sender(server, state) as channel:
        await channel.send(chunk(general.id, "because @everyone <@1>", "a", reply_to=question))
        server.delete(question)
        await channel.send(chunk(general.id, "anyway", "b", reply_to=question))

    first, second = server.sent
    assert (first.reference, first.nonce) == (question, "a")
    assert first.allowed_mentions == {"parse": [], "replied_user": True}
    assert (second.reference, second.text) == (None, "anyway")


async def test_who_may_not_quote_answers_without(server: DiscordServer, general: Place, state: Path) -> None:
    """Without Read Message History Discord refuses replies; the text is sent all the same."""
    question = server.write(general, "why?")
    server.deny(general)
    async with sender(server, state) as channel:
        await channel.send(chunk(general.id, "because", reply_to=question))

    assert [each.text for each in server.sent] == ["because"]


async def test_a_server_that_cannot_be_reached_was_sent_nothing(
    server: DiscordServer, general: Place, state: Path
) -> None:
    """Refused connections are ``ChannelDown``, before the login and after it."""
    async with sender(server, state) as channel:
        await server.stop()
        with pytest.raises(ChannelDown):
            await channel.send(chunk(general.id, "one"))
        await server.start()
        await channel.send(chunk(general.id, "one"))
        await server.stop()
        with pytest.raises((ChannelDown, SendUnknown)):
            await channel.send(chunk(general.id, "two"))
        with pytest.raises(ChannelDown):
            await channel.send(chunk(general.id, "two"))
        await server.start()

    assert [each.text for each in server.sent] == ["one"]


@pytest.mark.slow
@pytest.mark.parametrize(
    ("fault", "promised"),
    [
        ({"status": 403, "code": 50007}, SendNever),
        ({"status": 403, "html": True}, SendNever),
        ({"status": 404, "code": 10003}, SendNever),
        ({"status": 400, "code": 50035}, SendNever),
        ({"status": 413, "html": True}, SendNever),
        ({"status": 401}, CredentialsRefused),
        ({"status": 429, "retry_after": 60.0}, SendLater),
        ({"status": 429, "retry_after": 7.0, "html": True}, SendLater),
        ({"status": 429, "retry_after": 7.0, "via": False}, SendLater),
        ({"status": 429, "retry_after": 6.0}, SendLater),
        ({"status": 503}, SendUnknown),
        ({"status": 502, "html": True, "times": None}, SendUnknown),
        ({"hang": "before"}, SendUnknown),
        ({"hang": "after"}, SendUnknown),
        ({"drop": "before"}, SendUnknown),
        ({"drop": "after"}, SendUnknown),
    ],
    ids=str,
)
async def test_errors_say_what_became_of_a_piece(
    server: DiscordServer, general: Place, state: Path, fault: dict[str, Any], promised: type[Exception]
) -> None:
    """Each fault has its error; the next chunk is not harmed, and nothing is shown twice."""
    async with sender(server, state, request_timeout_s=2.0) as channel:
        await channel.send(chunk(general.id, "before", "a"))
        stands = server.fail("POST", SENDS, **fault)
        with pytest.raises(promised) as caught:
            await channel.send(chunk(general.id, "told", "b"))
        stands.times = 0
        await channel.send(chunk(general.id, "after", "c"))

    assert type(caught.value) is promised or promised is SendNever
    if isinstance(caught.value, SendLater):
        assert 1 < caught.value.after_s <= 60
    texts = [each.text for each in server.sent]
    assert texts in (["before", "after"], ["before", "told", "after"])
    assert server.token not in str(caught.value)


async def test_a_short_wait_is_waited_within_the_call(
    server: DiscordServer, general: Place, state: Path
) -> None:
    """A limit that ends soon costs time, no error."""
    server.fail("POST", SENDS, status=429, retry_after=0.1, times=2)
    async with sender(server, state) as channel:
        await channel.send(chunk(general.id, "in time"))

    assert [each.text for each in server.sent] == ["in time"]


@pytest.mark.slow
async def test_a_wait_that_is_cut_short_holds_up_no_other_chat(
    server: DiscordServer, general: Place, state: Path
) -> None:
    """A limit over everything that outlasts its call leaves the next one free to try."""
    server.fail("POST", f"/channels/{general.id}/messages", status=429, retry_after=5.0, everywhere=True)
    async with sender(server, state, request_timeout_s=2.0) as channel:
        with pytest.raises(SendLater):
            await channel.send(chunk(general.id, "limited"))
        await channel.send(chunk(server.dm("ada").id, "free"))

    assert [each.text for each in server.sent] == ["free"]


async def test_a_chat_that_hangs_holds_up_no_other(
    server: DiscordServer, general: Place, state: Path
) -> None:
    """While one chat's send has no answer another chat is served."""
    stuck = server.fail("POST", f"/channels/{general.id}/messages", hang="before")
    async with sender(server, state, request_timeout_s=60.0) as channel:
        hanging = asyncio.create_task(channel.send(chunk(general.id, "stuck")))
        await server.until(lambda: stuck.used)
        await channel.send(chunk(server.dm("ada").id, "free"))
        assert not hanging.done()
        hanging.cancel()
        await asyncio.wait([hanging])


async def test_edits_and_their_errors(server: DiscordServer, general: Place, state: Path) -> None:
    """An edit replaces the text; of what is deleted or not ours it says so."""
    foreign = server.write(general, "mine")
    async with sender(server, state) as channel:
        sent = await channel.send(chunk(general.id, "draft"))
        await channel.edit(general.id, sent, channel.split("final")[0])
        assert server.messages[sent].content == "final"
        server.delete(sent)
        for gone in (sent, foreign):
            with pytest.raises(MessageGone):
                await channel.edit(general.id, gone, channel.split("later")[0])


async def test_a_file_is_sent_with_a_nonce(
    server: DiscordServer, general: Place, state: Path, tmp_path: Path
) -> None:
    """A file's bytes arrive; sent again it is the same message; one that is gone is refused for good."""
    path = tmp_path / "plan.txt"
    path.write_bytes(b"step 1\n" * 1_000)
    async with sender(server, state) as channel:
        ids = {await channel.send(Chunk(general.id, path, "f")) for _ in range(2)}
        with pytest.raises(SendNever):
            await channel.send(Chunk(general.id, tmp_path / "none.txt", "g"))

    assert len(ids) == len(server.sent) == 1
    assert [(name, data) for name, _, data in server.sent[0].files] == [("plan.txt", path.read_bytes())]


async def test_a_file_may_take_longer_than_a_text(
    server: DiscordServer, general: Place, state: Path, tmp_path: Path
) -> None:
    """An upload over a slow line is not cut off by what is enough for a text."""
    path = tmp_path / "plan.txt"
    path.write_bytes(b"step 1\n")
    async with sender(server, state, request_timeout_s=1.0) as channel:
        await channel.send(chunk(general.id, "before", "a"))
        server.fail("POST", SENDS, late_s=1.5, times=2)
        with pytest.raises(SendUnknown):
            await channel.send(chunk(general.id, "cut off", "b"))
        sent = await channel.send(Chunk(general.id, path, "c"))

    assert server.sent[-1].id == sent


async def test_who_administers_a_server_is_asked_once(
    server: DiscordServer, general: Place, state: Path
) -> None:
    """Owner and administrators do, others do not; nobody administers a direct channel."""
    assert general.guild is not None
    boss = server.member(general.guild, "boss", admin=True)
    ada = server.member(general.guild, "ada")
    async with sender(server, state) as channel:
        people = [general.guild.owner, boss, ada, server.user("elsewhere")]
        answers = [await channel.is_admin(general.id, each.id) for each in people]
        calls = len(server.calls)
        again = [await channel.is_admin(general.id, each.id) for each in people]

        assert answers == again == [True, True, False, False]
        assert len(server.calls) == calls
        assert not await channel.is_admin(server.dm("ada").id, ada.id)


async def test_while_discord_does_not_say_nobody_knows_who_administers(
    server: DiscordServer, general: Place, state: Path
) -> None:
    """A failure is no answer, and is not remembered as one."""
    assert general.guild is not None
    boss = server.member(general.guild, "boss", admin=True)
    fault = server.fail("GET", "/guilds/*", status=503, html=True, times=None)
    async with sender(server, state, request_timeout_s=0.5) as channel:
        with pytest.raises(ChannelError):
            await channel.is_admin(general.id, boss.id)
        fault.times = 0
        assert await channel.is_admin(general.id, boss.id)


async def test_typing_is_shown(server: DiscordServer, general: Place, state: Path) -> None:
    """The chat sees that an answer is being written."""
    async with sender(server, state) as channel:
        await channel.typing(general.id)

    assert [chat for chat, _ in server.typings] == [general.id]


async def test_no_token_is_ever_logged(
    server: DiscordServer, general: Place, state: Path, caplog: pytest.LogCaptureFixture
) -> None:
    """Neither the bot's token nor an interaction's stands in a log, whatever goes wrong."""
    caplog.set_level(logging.DEBUG)
    with structlog.testing.capture_logs() as logs:
        async with running(server, state) as run:
            server.fail("GET", "/webhooks/*/*/messages/@original", status=429, retry_after=0.05)
            server.fail("PATCH", "/webhooks/*/*/messages/@original", status=503)
            command = server.interact("new", channel=general)
            arrival = await run.record.text("/new")
            with pytest.raises(SendUnknown):
                await run.channel.send(chunk(general.id, "hello", meta=arrival.meta))
            server.gateway.drop()
            server.write(general, "hello")
            await run.record.text("hello")
        server.gateway.close_next = 4004
        channel, _ = adapter(server, state)
        with pytest.raises(CredentialsRefused) as caught:
            await channel.run(Record().emit)
        await channel.aclose()

    client = [each for each in caplog.records if each.name == "discord.http"]
    assert client
    assert server.token not in caplog.text + str(logs) + repr(caught.value)
    assert not [each for each in client if command.token in each.getMessage()]
