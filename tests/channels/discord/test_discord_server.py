"""The local Discord, tried with the real discord.py: what it promises the tests of the adapter."""

from __future__ import annotations

import asyncio
import io
import zlib
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager
from datetime import UTC, datetime, timedelta
from typing import Any

import aiohttp
import discord
import orjson
import pytest
import yarl
from discord.gateway import DiscordWebSocket
from discord.http import Route

from tests.support.discord_server import REAL_LIMITS, DiscordServer
from tests.support.discord_world import READ_MESSAGE_HISTORY, SEND_MESSAGES, VIEW_CHANNEL, Channel

WITHIN_S = 30


class Client(discord.Client):
    """discord.py that puts what it receives into ``seen`` and identifies again without its pause."""

    def __init__(self, **options: Any) -> None:
        intents = options.pop("intents", None) or with_content()
        super().__init__(intents=intents, guild_ready_timeout=0.05, max_ratelimit_timeout=30, **options)
        self.seen: asyncio.Queue[tuple[str, Any]] = asyncio.Queue()

    async def before_identify_hook(self, shard_id: int | None, *, initial: bool = False) -> None:
        """Wait for nothing."""

    def dispatch(self, event: str, /, *args: Any, **kwargs: Any) -> None:
        super().dispatch(event, *args, **kwargs)
        self.seen.put_nowait((event, args[0] if args else None))

    async def next(self, event: str) -> Any:
        """The next event of this name."""
        async with asyncio.timeout(WITHIN_S):
            while True:
                name, value = await self.seen.get()
                if name == event:
                    return value

    async def texts(self, n: int) -> list[str]:
        return [(await self.next("message")).content for _ in range(n)]

    def place(self, channel: Channel) -> Any:
        found = self.get_channel(int(channel.id))
        assert found is not None
        return found


def with_content() -> discord.Intents:
    intents = discord.Intents.default()
    intents.message_content = True
    return intents


@pytest.fixture(autouse=True)
def addresses() -> Iterator[None]:
    """Both addresses of discord.py are of the whole process: put them back."""
    base, gateway = Route.BASE, DiscordWebSocket.DEFAULT_GATEWAY
    yield
    Route.BASE, DiscordWebSocket.DEFAULT_GATEWAY = base, gateway


@asynccontextmanager
async def logged_in(server: DiscordServer, **options: Any) -> AsyncIterator[Client]:
    Route.BASE, DiscordWebSocket.DEFAULT_GATEWAY = server.api_base_url, yarl.URL(server.gateway_url)
    client = Client(**options)
    async with client:
        await client.login(server.token)
        yield client


@asynccontextmanager
async def ready(server: DiscordServer, **options: Any) -> AsyncIterator[Client]:
    async with logged_in(server, **options) as client:
        task = asyncio.create_task(client.connect())
        try:
            await client.next("ready")
            yield client
        finally:
            await client.close()
            await asyncio.wait_for(task, WITHIN_S)


@pytest.fixture
def channel(server: DiscordServer) -> Channel:
    return server.channel(server.guild("home"), "general")


async def test_a_wrong_token_is_refused(server: DiscordServer) -> None:
    Route.BASE = server.api_base_url
    async with Client() as client:
        with pytest.raises(discord.LoginFailure):
            await client.login("wrong")


async def test_ready_brings_guilds_channels_threads_and_permissions(
    server: DiscordServer, channel: Channel
) -> None:
    thread = server.thread(channel, "aside")
    server.thread(channel, "old", archived=True)
    closed = server.channel(channel.guild, "closed")
    server.deny(closed, VIEW_CHANNEL)

    async with ready(server) as client:
        guild = client.guilds[0]

        assert client.user.id == int(server.bot.id) == client.application_id
        assert [c.name for c in guild.channels] == ["general", "closed"]
        assert [t.id for t in guild.threads] == [int(thread.id)]
        assert client.place(channel).permissions_for(guild.me).read_message_history
        assert not client.place(closed).permissions_for(guild.me).view_channel
        assert server.gateway.live[0].coding.name in ("zlib-stream", "zstd-stream")
        assert (await client.http.get_bot_gateway())[1:] == (
            server.gateway_url,
            {"total": 1000, "remaining": 999, "reset_after": 86_400_000, "max_concurrency": 1},
        )


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


async def test_after_a_cut_resume_replays_what_was_missed(server: DiscordServer, channel: Channel) -> None:
    async with ready(server) as client:
        server.gateway.drop()
        await server.until(lambda: not server.gateway.live)
        for n in range(3):
            server.write(channel, f"missed {n}")

        assert await client.texts(3) == ["missed 0", "missed 1", "missed 2"]
        await client.next("resumed")
        assert [c.began for c in server.gateway.connections] == ["identify", "resume"]
        assert server.gateway.connections[1].path == "/resume"


async def test_a_lossy_resume_has_holes(server: DiscordServer, channel: Channel) -> None:
    server.gateway.resume_drops = 2
    async with ready(server) as client:
        server.gateway.drop()
        await server.until(lambda: not server.gateway.live)
        for n in range(4):
            server.write(channel, f"{n}")
        await client.next("resumed")
        server.write(channel, "after")

        seen = [m.content for m in client.cached_messages]
        assert seen == ["0", "2"]
        assert await client.texts(1) == ["after"]


async def test_an_invalid_session_begins_a_new_one_and_loses_what_came_between(
    server: DiscordServer, channel: Channel
) -> None:
    async with ready(server) as client:
        server.gateway.invalidate()
        server.write(channel, "lost")
        await client.next("ready")
        server.write(channel, "kept")

        assert await client.texts(1) == ["kept"]
        assert [c.began for c in server.gateway.connections] == ["identify", "identify"]


@pytest.mark.parametrize("how", ["op 7", "op 9 resumable", "close 4000"])
async def test_other_interruptions_end_in_a_resume(server: DiscordServer, channel: Channel, how: str) -> None:
    async with ready(server) as client:
        if how == "op 7":
            server.gateway.reconnect()
        elif how == "close 4000":
            server.gateway.close(4000)
        else:
            server.gateway.invalidate(resumable=True)
        await client.next("resumed")
        server.write(channel, "on")

        assert await client.texts(1) == ["on"]
        assert [c.began for c in server.gateway.connections] == ["identify", "resume"]


async def test_a_forgotten_session_cannot_be_resumed(server: DiscordServer, channel: Channel) -> None:
    async with ready(server) as client:
        server.gateway.forget()
        server.gateway.drop()
        await client.next("ready")

        assert [c.began for c in server.gateway.connections] == ["identify", "resume", "identify"]


async def test_privileged_intents_need_their_switch(server: DiscordServer) -> None:
    server.privileged.clear()
    async with logged_in(server) as client:
        with pytest.raises(discord.PrivilegedIntentsRequired):
            await asyncio.wait_for(client.connect(), WITHIN_S)
    assert server.gateway.connections[0].close_code == 4014


@pytest.mark.parametrize("code", [4004, 4013])
async def test_fatal_close_codes_reach_the_client(server: DiscordServer, code: int) -> None:
    server.gateway.close_next = code
    async with logged_in(server) as client:
        with pytest.raises(discord.ConnectionClosed) as error:
            await asyncio.wait_for(client.connect(), WITHIN_S)
    assert error.value.code == code


async def test_identifies_are_counted_and_the_last_one_costs_the_token(server: DiscordServer) -> None:
    server.gateway.identifies_left = 0
    token = server.token
    async with logged_in(server) as client:
        with pytest.raises(discord.ConnectionClosed) as error:
            await asyncio.wait_for(client.connect(), WITHIN_S)

    assert error.value.code == 4004
    async with Client() as another:
        with pytest.raises(discord.LoginFailure):
            await another.login(token)


async def test_without_the_content_intent_texts_are_blank_unless_for_the_bot(
    server: DiscordServer, channel: Channel
) -> None:
    async with ready(server, intents=discord.Intents.default()) as client:
        server.write(channel, "to all")
        server.write(channel, "to you", mentions_bot=True)
        server.write(server.dm("ada"), "alone")

        assert await client.texts(3) == ["", f"<@{server.bot.id}> to you", "alone"]
        assert (await client.http.logs_from(int(channel.id), 2))[1]["content"] == "to all"
        server.privileged.clear()
        assert (await client.http.logs_from(int(channel.id), 2))[1]["content"] == ""


async def test_a_slash_command_is_deferred_and_answered(server: DiscordServer, channel: Channel) -> None:
    async with ready(server) as client:
        used = server.interact("compact", {"focus": "names"}, user="ada", channel=channel)
        interaction = await client.next("interaction")
        await interaction.response.defer(thinking=True)
        assert used.deferred
        assert used.answers == []
        await interaction.edit_original_response(content="done")
        await interaction.followup.send("and more")

        assert interaction.data["options"] == [{"name": "focus", "type": 3, "value": "names"}]
        assert (interaction.user.name, interaction.channel_id) == ("ada", int(channel.id))
        assert used.answers == ["done", "and more"]
        assert [(s.text, s.via) for s in server.sent] == [
            ("done", "interaction"),
            ("and more", "interaction"),
        ]
        assert [m["content"] for m in await client.http.logs_from(int(channel.id), 5)] == ["and more", "done"]
        assert (await interaction.original_response()).content == "done"


async def test_a_followup_fills_the_placeholder_and_ephemeral_ones_stay_out_of_the_history(
    server: DiscordServer, channel: Channel
) -> None:
    async with ready(server) as client:
        used = server.interact("status", user="ada", channel=channel)
        interaction = await client.next("interaction")
        await interaction.response.defer(ephemeral=True, thinking=True)
        await interaction.followup.send("only you")
        direct = server.interact("help", channel=server.dm("ada"))
        second = await client.next("interaction")
        await second.response.send_message("at once")

        assert used.answers == ["only you"]
        assert await client.http.logs_from(int(channel.id), 5) == []
        assert (direct.acked, direct.deferred, direct.answers) == (True, False, ["at once"])
        assert second.guild_id is None


async def test_an_interaction_acknowledged_too_late_is_unknown(
    server: DiscordServer, channel: Channel
) -> None:
    server.interactions.deadline_s = 0.0
    async with ready(server) as client:
        used = server.interact("status", channel=channel)
        interaction = await client.next("interaction")
        with pytest.raises(discord.NotFound, match="10062"):
            await interaction.response.defer()
        with pytest.raises(discord.NotFound, match="10015"):
            await interaction.followup.send("x")

        assert (used.acked, used.late) == (False, 1)


async def test_commands_are_overwritten_as_a_whole(server: DiscordServer) -> None:
    async with logged_in(server) as client:
        tree = discord.app_commands.CommandTree(client)
        for name in ("new", "stop"):
            tree.add_command(discord.app_commands.Command(name=name, description=name, callback=_nothing))
        first = {command.name: command.id for command in await tree.sync()}
        tree.remove_command("new")
        await tree.sync()

        assert {c["name"]: int(c["id"]) for c in server.commands} == {"stop": first["stop"]}
        assert [c.name for c in await tree.fetch_commands()] == ["stop"]
        assert len(server.command_puts) == 2


async def _nothing(interaction: discord.Interaction) -> None:
    """A command's callback."""


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


async def test_a_mute_gateway_says_nothing_until_it_may(server: DiscordServer, channel: Channel) -> None:
    async with ready(server, heartbeat_timeout=0.3) as client:
        server.gateway.mute = True
        server.write(channel, "unheard")
        await client.next("disconnect")
        server.gateway.mute = False
        server.gateway.heartbeat_ms = 100

        assert await client.texts(1) == ["unheard"]
        await server.until(lambda: any(c.heartbeats > 2 for c in server.gateway.live))


async def test_the_gateway_refuses_connections(server: DiscordServer) -> None:
    for refuse in ("reset", 503):
        server.gateway.refuse = refuse
        async with aiohttp.ClientSession() as http:
            with pytest.raises(aiohttp.ClientError):
                await http.ws_connect(server.gateway_url)


async def test_the_whole_server_goes_away_and_comes_back(server: DiscordServer, channel: Channel) -> None:
    async with ready(server) as client:
        port = server.port
        await server.stop()
        server.write(channel, "meanwhile")
        with pytest.raises((aiohttp.ClientError, OSError)):
            await client.fetch_user(1)
        await server.start()

        assert server.port == port
        assert (await client.http.logs_from(int(channel.id), 5))[0]["content"] == "meanwhile"


async def test_frames_are_plain_or_zlib_as_the_query_asks(server: DiscordServer) -> None:
    async with aiohttp.ClientSession() as http:
        async with http.ws_connect(f"{server.gateway_url}?v=10&encoding=json") as plain:
            hello = await plain.receive_json()
            await plain.send_json({"op": 3, "d": {}})
            closed = await plain.receive()
        async with http.ws_connect(f"{server.gateway_url}?compress=zlib-stream") as packed:
            frame = await packed.receive_bytes()

    assert hello["op"] == 10
    assert closed.data == 4003
    assert orjson.loads(zlib.decompressobj().decompress(frame))["op"] == 10
