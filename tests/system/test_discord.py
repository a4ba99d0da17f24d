"""Whole gateways with Discord: a local platform, the real client, real processes, both brokers."""

from __future__ import annotations

import asyncio
import hashlib
import json
import random
from pathlib import Path

import orjson
import pytest

from session.turn.command_names import DESCRIPTIONS
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
        await _lose_none(server, channels, messages=300, channels=40, kills=4)


@pytest.mark.timeout(300)
async def test_a_gateway_killed_while_200_messages_come_loses_none(tmp_path: Path) -> None:
    """One process with the embedded queue: adapter, queue and sessions die together."""
    async with DiscordServer() as server, Daemon(tmp_path, config=with_discord(server)) as daemon:
        await _lose_none(server, daemon, messages=200, channels=30, kills=3)


async def test_a_command_of_the_menu_is_answered(tmp_path: Path) -> None:
    """The commands are registered once; one that is used is deferred, and answered."""
    async with DiscordServer() as server:
        channel = server.channel(server.guild("home"), "general")
        server.interactions.deadline_s = 60.0
        async with Daemon(tmp_path, config=with_discord(server)) as daemon:
            await server.connected(within_s=120)
            await server.until(lambda: server.commands, within_s=120)
            used = server.interact("status", {}, user="ada", channel=channel)
            await server.until(lambda: used.acked, within_s=120)
            await server.until(lambda: any("session:" in text for text in used.answers), within_s=120)
            await daemon.stop()
        registered = len(server.command_puts)
        async with Daemon(tmp_path, config=with_discord(server)):
            await server.connected(within_s=120)
            server.write(channel, "still there?", user="ada")
            await server.until(lambda: any("still there" in one.text for one in server.sent), within_s=120)

        assert {"new", "stop", "status", "help"} <= {command["name"] for command in server.commands}
        assert len(server.command_puts) == registered == 1


async def test_a_command_whose_turn_is_stopped_is_told_so(tmp_path: Path) -> None:
    """Of both, ``/retry`` and the ``/stop`` that ended it, nothing says "is thinking…" any more."""
    async with DiscordServer() as server, ModelServer() as model:
        channel = server.channel(server.guild("home"), "general")
        server.interactions.deadline_s = 60.0
        async with Daemon(tmp_path, config=with_discord(server) | with_model(model)):
            await server.connected(within_s=120)
            await server.until(lambda: server.commands, within_s=120)
            model.script += [Reply("first"), Reply("never", held=asyncio.Event())]
            server.write(channel, "hello", user="ada")
            await server.sent_count(1, within_s=120)
            retry = server.interact("retry", {}, user="ada", channel=channel)
            await model.arrived(2)
            stop = server.interact("stop", {}, user="ada", channel=channel)
            await server.until(lambda: retry.answers and stop.answers, within_s=120)

    assert (retry.answers, stop.answers) == (["Stopped."], ["Stopped."])
    assert [server.messages[str(each)].content for each in channel.messages] == [
        "hello",
        "first",
        "Stopped.",
        "Stopped.",
    ]


async def test_a_menu_that_an_older_version_showed_is_shown_anew_once(tmp_path: Path) -> None:
    """The same commands with other options: the mark of then is not that of now."""
    async with DiscordServer() as server:
        config = with_discord(server)
        shown = orjson.dumps([server.token, dict(DESCRIPTIONS)], option=orjson.OPT_SORT_KEYS)
        mark = hashlib.sha256(shown).hexdigest()[:16]
        (tmp_path / "state").mkdir()
        (tmp_path / "state" / "discord-commands.json").write_text(json.dumps({"v": 1, "menu": mark}))
        async with Daemon(tmp_path, config=config) as daemon:
            await server.until(lambda: server.commands, within_s=30)
            await daemon.stop()
        channel = server.channel(server.guild("home"), "general")
        async with Daemon(tmp_path, config=config):
            await server.connected(within_s=120)
            server.write(channel, "hello", user="ada")
            await server.sent_count(1, within_s=120)

        assert len(server.command_puts) == 1


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


# -- what they share -------------------------------------------------------------------------------


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


async def _lose_none(
    server: DiscordServer, daemon: Daemon, *, messages: int, channels: int, kills: int
) -> None:
    """Kill the daemon again and again while messages come; check that each is answered once."""
    guild = server.guild("home")
    places = [server.channel(guild, f"c{number}").id for number in range(channels)]
    await server.connected(within_s=120)
    async with asyncio.TaskGroup() as group:
        writing = group.create_task(_write(server, places, messages))
        for _ in range(kills):
            await server.sent_count(min(len(server.sent) + 30, messages), within_s=120)
            await daemon.kill()
            await daemon.start()
    await server.until(lambda: len({one.text for one in server.sent}) >= messages, within_s=120)
    for place, written in writing.result().items():
        got = [one.text.removeprefix("echo: ") for one in server.sent if one.channel_id == place]
        assert sorted(got) == sorted(written), place
