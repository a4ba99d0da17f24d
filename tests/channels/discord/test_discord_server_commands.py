"""The local Discord, tried with the real discord.py: commands and their deferred answers."""

from __future__ import annotations

import discord
import pytest

from tests.channels.discord.discord_client import logged_in, ready
from tests.support.discord_server import DiscordServer
from tests.support.discord_world import Channel


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
