"""The local Discord, tried with the real discord.py: its gateway, interrupted, refused and mute."""

from __future__ import annotations

import asyncio
import zlib

import aiohttp
import discord
import orjson
import pytest
from discord.http import Route

from tests.channels.discord.discord_client import WITHIN_S, Client, logged_in, ready
from tests.support.discord_server import DiscordServer
from tests.support.discord_world import VIEW_CHANNEL, Channel


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
