"""The local Discord, tried with the real discord.py: messages, channels and limits over REST."""

from __future__ import annotations

import asyncio
import io
from datetime import UTC, datetime, timedelta
from typing import Any

import aiohttp
import discord
import pytest

from tests.channels.discord.discord_client import logged_in, ready
from tests.support.discord_server import REAL_LIMITS, DiscordServer
from tests.support.discord_world import READ_MESSAGE_HISTORY, SEND_MESSAGES, VIEW_CHANNEL, Channel


async def test_rest_lists_what_a_sweep_needs(server: DiscordServer, channel: Channel) -> None:
    thread = server.thread(channel)
    server.thread(channel, archived=True)
    last = server.write(channel, "newest", live=False)
    admin = server.member(channel.guild, "grace", admin=True)

    async with logged_in(server) as client:
        guild = await client.fetch_guild(int(channel.guild.id))
        channels = await client.http.get_all_guild_channels(guild.id)
        threads = await client.http.get_active_threads(guild.id)
        member = await guild.fetch_member(int(admin.id))

        assert [(c["id"], c["last_message_id"]) for c in channels] == [(channel.id, last)]
        assert [t["id"] for t in threads["threads"]] == [thread.id]
        assert member.guild_permissions.administrator
        with pytest.raises(discord.NotFound, match="10003"):
            await client.fetch_channel(123)


async def test_a_live_message_arrives_with_its_mention_reply_and_attachment(
    server: DiscordServer, channel: Channel
) -> None:
    async with ready(server) as client:
        first = server.write(channel, "look", user="grace", attachments=[("a b.txt", "text/plain", b"data")])
        server.write(channel, "what is this?", mentions_bot=True, reply_to=first)
        look, question = await client.next("message"), await client.next("message")

        assert (look.author.name, look.author.bot, look.channel.id) == ("grace", False, int(channel.id))
        assert await look.attachments[0].read() == b"data"
        assert (look.attachments[0].filename, look.attachments[0].content_type) == ("a_b.txt", "text/plain")
        assert question.content == f"<@{server.bot.id}> what is this?"
        assert client.user in question.mentions
        assert question.reference.resolved.content == "look"
        assert abs(question.created_at - datetime.now(UTC)) < timedelta(minutes=1)


async def test_bots_odd_shapes_and_previews_arrive_as_they_are(
    server: DiscordServer, channel: Channel
) -> None:
    async with ready(server) as client:
        server.write(channel, "beep", bot=True)
        server.write(channel, "", user="ada", more={"type": 7})
        link = server.write(channel, "https://example.org/", user="ada")
        server.unfurl(link)
        server.gateway.dispatch("SOMETHING_NEW", 0, {"shape": "unknown"})
        beep, joined = await client.next("message"), await client.next("message")
        preview = await client.next("raw_message_edit")

        assert (beep.author.bot, beep.author.name) == (True, "another_bot")
        assert joined.type is discord.MessageType.new_member
        assert (preview.message.edited_at, len(preview.message.embeds)) == (None, 1)


async def test_places_open_close_and_change(server: DiscordServer, channel: Channel) -> None:
    async with ready(server) as client:
        thread = server.thread(channel)
        server.archive(thread)
        await client.next("thread_update")
        assert (await client.http.get_active_threads(int(channel.guild.id)))["threads"] == []
        server.write(thread, "awake")
        await client.next("thread_join")
        assert len((await client.http.get_active_threads(int(channel.guild.id)))["threads"]) == 1

        more = server.channel(channel.guild, "more")
        await client.next("guild_channel_create")
        server.close(more)
        await client.next("guild_channel_delete")
        with pytest.raises(discord.NotFound, match="10003"):
            await client.http.logs_from(int(more.id), 1)

        another = server.guild("away")
        await client.next("guild_join")
        server.leave(another)
        await client.next("guild_remove")
        assert [guild.name for guild in client.guilds] == ["home"]


async def test_history_is_newest_first_and_paged(server: DiscordServer, channel: Channel) -> None:
    ids = [server.write(channel, f"{n}", live=False) for n in range(250)]

    async with logged_in(server) as client:
        place = await client.fetch_channel(int(channel.id))
        after = discord.Object(int(ids[9]))
        every = [m.content async for m in place.history(after=after, limit=None, oldest_first=True)]
        latest = [m.content async for m in place.history(limit=3)]
        page = await client.http.logs_from(int(channel.id), 2, after=int(ids[0]))
        around = await client.http.logs_from(int(channel.id), 5, around=int(ids[100]))

        assert every == [f"{n}" for n in range(10, 250)]
        assert latest == ["249", "248", "247"]
        assert [m["content"] for m in page] == ["2", "1"]
        assert [m["content"] for m in around] == ["102", "101", "100", "99", "98"]
        with pytest.raises(discord.HTTPException, match="50035"):
            await client.http.logs_from(int(channel.id), 101)


async def test_a_message_of_the_past_stands_where_its_date_belongs(
    server: DiscordServer, channel: Channel
) -> None:
    server.write(channel, "now", live=False)
    then = datetime(2025, 1, 1, 12, tzinfo=UTC)
    server.write(channel, "long ago", live=False, at=then)

    async with logged_in(server) as client:
        place = await client.fetch_channel(int(channel.id))
        found = [m async for m in place.history(oldest_first=True)]

        assert [m.content for m in found] == ["long ago", "now"]
        assert found[0].created_at == then


async def test_without_the_permission_history_is_silently_empty(
    server: DiscordServer, channel: Channel
) -> None:
    server.write(channel, "secret", live=False)
    server.deny(channel, READ_MESSAGE_HISTORY)

    async with logged_in(server) as client:
        assert await client.http.logs_from(int(channel.id), 10) == []
        server.deny(channel, VIEW_CHANNEL)
        with pytest.raises(discord.Forbidden, match="50001"):
            await client.http.logs_from(int(channel.id), 10)


async def test_the_same_nonce_makes_one_message(server: DiscordServer, channel: Channel) -> None:
    async with ready(server) as client:
        first = await client.place(channel).send("once", nonce="n-1")
        again = await client.place(channel).send("once", nonce="n-1")
        other = await client.place(channel).send("once", nonce="n-2")

        assert first.id == again.id != other.id
        assert [(s.text, s.nonce) for s in server.sent] == [("once", "n-1"), ("once", "n-2")]
        with pytest.raises(discord.HTTPException, match="50035"):
            await client.place(channel).send("x", nonce="n" * 26)


async def test_what_the_platform_does_not_take(server: DiscordServer, channel: Channel) -> None:
    async with ready(server) as client:
        place = client.place(channel)
        await place.send("x" * 2000)
        with pytest.raises(discord.HTTPException, match=r"50035[\s\S]*2000"):
            await place.send("x" * 2001)
        with pytest.raises(discord.HTTPException, match="50006"):
            await place.send(" ")
        with pytest.raises(discord.HTTPException, match="Unknown message"):
            await place.send("x", reference=discord.MessageReference(message_id=1, channel_id=place.id))
        server.deny(channel, SEND_MESSAGES)
        with pytest.raises(discord.Forbidden, match="50013"):
            await place.send("x")

        assert len(server.sent) == 1


async def test_replies_edits_deletes_and_typing_are_noted(server: DiscordServer, channel: Channel) -> None:
    asked = server.write(channel, "?", live=False)

    async with ready(server) as client:
        place = client.place(channel)
        question = discord.MessageReference(message_id=int(asked), channel_id=place.id)
        gone = discord.MessageReference(message_id=1, channel_id=place.id, fail_if_not_exists=False)
        async with place.typing():
            reply = await place.send("draft", reference=question)
        await place.send("alone", reference=gone, allowed_mentions=discord.AllowedMentions.none())
        await reply.edit(content="final")
        edited = await client.next("raw_message_edit")
        await reply.delete()
        deleted = await client.next("raw_message_delete")

        assert [s.reference for s in server.sent] == [asked, None]
        assert server.sent[1].allowed_mentions == {"parse": []}
        assert [(e.message_id, e.text) for e in server.edits] == [(str(reply.id), "final")]
        assert edited.message.content == "final"
        assert server.deleted == [str(deleted.message_id)] == [str(reply.id)]
        assert [t[0] for t in server.typings] == [channel.id]
        with pytest.raises(discord.Forbidden, match="50005"):
            await client.http.edit_message(
                place.id, int(asked), params=discord.http.handle_message_parameters("x")
            )


async def test_a_person_edits_and_the_client_is_told(server: DiscordServer, channel: Channel) -> None:
    async with ready(server) as client:
        message = server.write(channel, "helo")
        server.edit(message, "hello")
        event = await client.next("raw_message_edit")

        assert (event.message.content, event.message.edited_at is not None) == ("hello", True)


async def test_files_arrive_whole_and_can_be_fetched(server: DiscordServer, channel: Channel) -> None:
    data = bytes(range(256)) * 1000
    server.max_upload_bytes = len(data) + 1

    async with ready(server) as client:
        sent = await client.place(channel).send(
            "two", files=[discord.File(io.BytesIO(data), "a.bin"), discord.File(io.BytesIO(b"b"), "b.txt")]
        )

        assert [(name, body) for name, _, body in server.sent[0].files] == [("a.bin", data), ("b.txt", b"b")]
        assert await sent.attachments[0].read() == data
        with pytest.raises(discord.HTTPException, match="40005"):
            await client.place(channel).send(file=discord.File(io.BytesIO(data + b"xx"), "big.bin"))


async def test_a_thread_is_announced_and_written_in(server: DiscordServer, channel: Channel) -> None:
    async with ready(server) as client:
        thread = server.thread(channel, "aside")
        created = await client.next("thread_create")
        server.write(thread, "here")
        message = await client.next("message")
        await message.channel.send("there")

        assert (created.id, message.channel.id) == (int(thread.id), int(thread.id))
        assert message.channel.parent_id == int(channel.id)
        assert server.sent[0].channel_id == thread.id


async def test_direct_channels_open_by_person_and_are_listed_nowhere(server: DiscordServer) -> None:
    ada = server.user("ada")
    async with ready(server) as client:
        opened = await client.http.start_private_message(int(ada.id))
        server.write(server.dm("ada"), "psst", live=False)
        server.write(server.dm("ada"), "hello")
        message = await client.next("message")
        await message.channel.send("hi")
        opened_again = await client.http.start_private_message(int(ada.id))

        assert opened["id"] == opened_again["id"] == server.dm(ada).id == server.sent[0].channel_id
        assert opened_again["last_message_id"] == server.sent[0].id
        assert [m["content"] for m in await client.http.logs_from(message.channel.id, 9)] == [
            "hi",
            "hello",
            "psst",
        ]
        assert list(client.private_channels) == []
        with pytest.raises(discord.HTTPException, match="50033"):
            await client.http.start_private_message(5)


async def test_a_429_says_when_to_come_back(server: DiscordServer, channel: Channel) -> None:
    async with ready(server) as client:
        fault = server.fail("POST", "/channels/*/messages", status=429, retry_after=0.2)
        await client.place(channel).send("patience")
        long = server.fail("POST", "/channels/*/messages", status=429, retry_after=60.0)
        with pytest.raises(discord.RateLimited) as error:
            await client.place(channel).send("too long")
        server.fail("POST", "/channels/*/messages", status=429, html=True, via=False)
        with pytest.raises(discord.HTTPException, match="429"):
            await client.place(channel).send("banned")

        calls = await server.called("POST", "/channels/*/messages", 4)
        assert calls[1].at - calls[0].at >= 0.2
        assert (fault.used, long.used, error.value.retry_after) == (1, 1, 60.0)
        assert [s.text for s in server.sent] == ["patience"]


async def test_buckets_hold_per_channel_and_over_all() -> None:
    limits = {"POST /channels/{channel_id}/messages": (2, 0.3), None: (5, 30.0)}
    async with DiscordServer(limits=limits) as server, aiohttp.ClientSession() as http:
        guild = server.guild()
        a, b = server.channel(guild, "a"), server.channel(guild, "b")

        async def post(channel: Channel) -> tuple[int, Any, Any]:
            url = f"{server.api_base_url}/channels/{channel.id}/messages"
            headers = {"Authorization": f"Bot {server.token}"}
            async with http.post(url, json={"content": "x"}, headers=headers) as answer:
                assert answer.headers["Content-Type"] == "application/json"
                return answer.status, answer.headers, await answer.json()

        first, second, third, other = [await post(place) for place in (a, a, a, b)]
        await post(b)
        everywhere = await post(b)

        assert [first[0], second[0], third[0], other[0]] == [200, 200, 429, 200]
        assert [first[1]["X-RateLimit-Remaining"], second[1]["X-RateLimit-Remaining"]] == ["1", "0"]
        assert first[1]["X-RateLimit-Bucket"] == other[1]["X-RateLimit-Bucket"]
        assert 0 < third[2]["retry_after"] <= 0.3
        assert third[1]["Via"]
        assert not third[2]["global"]
        assert (everywhere[0], everywhere[2]["global"]) == (429, True)
    assert REAL_LIMITS["POST /channels/{channel_id}/messages"] == (5, 5.0)


async def test_faults_before_and_after_processing(server: DiscordServer, channel: Channel) -> None:
    async with ready(server) as client:
        place = client.place(channel)
        server.fail("POST", "/channels/*/messages", drop="before")
        with pytest.raises((aiohttp.ClientError, OSError)):
            await place.send("no", nonce="a")
        server.fail("POST", "/channels/*/messages", drop="after")
        with pytest.raises((aiohttp.ClientError, OSError)):
            await place.send("yes", nonce="b")
        hang = server.fail("POST", f"/channels/{channel.id}/messages", hang="after")
        hung = asyncio.create_task(place.send("hung", nonce="c"))
        await server.until(lambda: len(server.sent) == 2)
        _, waits = await asyncio.wait([hung], timeout=0.2)
        assert waits
        hung.cancel()
        await asyncio.wait([hung])
        server.fail("POST", "/channels/*/messages", status=503, html=True)
        with pytest.raises(discord.DiscordServerError, match="Error 503"):
            await place.send("page")
        server.fail("POST", "/channels/*/messages", status=403, code=50007, text="Cannot send messages")
        with pytest.raises(discord.Forbidden, match="50007"):
            await place.send("refused")
        await place.send("yes", nonce="b")

        assert hang.used == 1
        assert [s.text for s in server.sent] == ["yes", "hung"]
