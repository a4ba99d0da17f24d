"""Whole gateways with Discord: a local platform, the real client, real processes, both brokers."""

from __future__ import annotations

import asyncio
import json
import random
from pathlib import Path

import pytest

from gateway.outbound.standing import set_menu
from tests.support.broker import Broker
from tests.support.discord_server import DiscordServer
from tests.support.guarantee import guarantee
from tests.support.harness import Daemon
from tests.support.model_server import ModelServer, Reply
from tests.support.place import lines_of, with_model
from tests.system.platform_place import apart, told, with_discord


async def test_a_message_is_answered_in_its_channel(tmp_path: Path) -> None:
    """A mention in a channel, a thread and a direct message: each is a conversation of its own."""
    async with DiscordServer() as server:
        guild = server.guild("home")
        channel = server.channel(guild, "general")
        thread = server.thread(channel, "aside")
        direct = server.dm("ada")
        async with Daemon(tmp_path, config=with_discord(server, groups="mention")):
            await server.connected(within_s=120)
            asked = server.write(channel, "hello", user="ada", mentions_bot=True)
            server.write(channel, "not for the bot", user="ada")
            server.write(thread, "aside", user="ada", mentions_bot=True)
            server.write(direct, "you alone", user="ada")
            sent = await server.sent_count(3, within_s=120)

            assert {(one.channel_id, one.text) for one in sent} == {
                (channel.id, "echo: hello"),
                (thread.id, "echo: aside"),
                (direct.id, "echo: you alone"),
            }
            assert next(one for one in sent if one.channel_id == channel.id).reference == asked
    assert len(lines_of(tmp_path, f"discord_{direct.id}")) == 2


async def test_what_was_written_while_it_was_down_is_answered(
    tmp_path: Path, broker: Broker, broker_name: str
) -> None:
    """No event tells of these messages: the sweep finds them, and nothing older than the first start."""
    async with DiscordServer() as server:
        channel = server.channel(server.guild("home"), "general")
        server.write(channel, "long ago", user="ada", live=False)
        config = with_discord(server)
        async with apart(tmp_path, broker, broker_name, config) as (_, channels):
            await server.connected(within_s=120)
            server.write(channel, "one", user="ada")
            await server.sent_count(1, within_s=120)
            await channels.kill()
            server.write(channel, "two", user="ada", live=False)
            server.write(channel, "three", user="ada", live=False)
            await channels.start()
            await server.sent_count(3, within_s=120)

        assert [one.text for one in server.sent] == ["echo: one", "echo: two", "echo: three"]


@guarantee("loss", "A message that Discord did not deliver is found later, and each reply is sent once.")
@pytest.mark.timeout(300)
async def test_an_adapter_killed_while_300_messages_come_loses_none(
    tmp_path: Path, broker: Broker, broker_name: str
) -> None:
    """Killed four times: all are answered, each reply is sent once, whatever was asked twice."""
    async with (
        DiscordServer() as server,
        apart(tmp_path, broker, broker_name, with_discord(server)) as (_, channels),
    ):
        guild = server.guild("home")
        places = [server.channel(guild, f"c{number}").id for number in range(40)]
        await server.connected(within_s=120)
        async with asyncio.TaskGroup() as group:
            writing = group.create_task(_write(server, places, 300))
            for _ in range(4):
                await server.sent_count(min(len(server.sent) + 30, 300), within_s=120)
                await channels.kill()
                await channels.start()
        await server.until(lambda: len({one.text for one in server.sent}) >= 300, within_s=120)
        for place, written in writing.result().items():
            got = [one.text.removeprefix("echo: ") for one in server.sent if one.channel_id == place]
            assert sorted(got) == sorted(written), place


async def _write(server: DiscordServer, places: list[str], count: int) -> dict[str, list[str]]:
    """Let people write over some seconds, some of it without an event; return the texts by channel."""
    texts: dict[str, list[str]] = {}
    dice = random.Random(11)
    for number in range(count):
        place = places[dice.randrange(len(places))]
        texts.setdefault(place, []).append(f"m{number}")
        server.write(place, f"m{number}", user="ada", live=dice.random() < 0.9)
        await asyncio.sleep(dice.random() * 0.05)
    return texts


async def test_a_command_of_the_menu_is_answered(tmp_path: Path) -> None:
    """The commands are registered once; nothing says "is thinking…" for good, nor of one that is stopped."""
    async with DiscordServer() as server, ModelServer() as model:
        channel = server.channel(server.guild("home"), "general")
        server.interactions.deadline_s = 60.0
        config = with_discord(server) | with_model(model)
        # Another menu was shown last, by an older version.
        set_menu(tmp_path / "state", "discord", "another")
        async with Daemon(tmp_path, config=config) as daemon:
            await server.connected(within_s=120)
            await server.until(lambda: server.commands, within_s=120)
            used = server.interact("status", {}, user="ada", channel=channel)
            await server.until(lambda: used.acked, within_s=120)
            await server.until(lambda: any("session:" in text for text in used.answers), within_s=120)
            await daemon.stop()
        registered = len(server.command_puts)
        async with Daemon(tmp_path, config=config):
            await server.connected(within_s=120)
            model.script += [Reply("first"), Reply("never", held=asyncio.Event())]
            server.write(channel, "hello", user="ada")
            await server.until(lambda: any(one.text == "first" for one in server.sent), within_s=120)
            retry = server.interact("retry", {}, user="ada", channel=channel)
            await model.arrived(2)
            stop = server.interact("stop", {}, user="ada", channel=channel)
            await server.until(lambda: retry.answers and stop.answers, within_s=120)

        assert {"new", "stop", "status", "help"} <= {command["name"] for command in server.commands}
        assert len(server.command_puts) == registered == 1
    assert (retry.answers, stop.answers) == (["Stopped."], ["Stopped."])
    shown = [server.messages[str(each)].content for each in channel.messages]
    assert shown[1:] == ["hello", "first", "Stopped.", "Stopped."]


@guarantee("failures", "A failing platform does not affect any other channel.")
async def test_a_platform_that_is_away_at_start_stops_nothing_else(tmp_path: Path) -> None:
    """The terminal is answered meanwhile; the adapter comes up when the platform does."""
    async with DiscordServer() as server:
        channel = server.channel(server.guild("home"), "general")
        config = with_discord(server)
        await server.stop()
        async with Daemon(tmp_path, config=config):
            assert await told(tmp_path, "chat", "-m", "hello") == "echo: hello\n"
            status = json.loads(await told(tmp_path, "status", "--json"))
            assert not status["parts"]["discord"]["up"]
            await server.start()
            await server.connected(within_s=120)
            server.write(channel, "now", user="ada")
            await server.sent_count(1, within_s=120)
