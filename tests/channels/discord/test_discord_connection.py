"""The connection to Discord: lost, mute, refused, and taken up again."""

from __future__ import annotations

import asyncio
from datetime import UTC, datetime
from pathlib import Path

import pytest

from channels.discord.ingress import Cursors, Tempo
from channels.discord.messages import snowflake_at
from channels.errors import (
    CredentialsRefused,
)
from tests.channels.discord.discord_place import Record, adapter, book, chunk, running
from tests.support.discord_server import DiscordServer
from tests.support.discord_world import Channel as Place

# -- the connection ------------------------------------------------------------------------------


async def test_a_resumption_with_holes_loses_nothing(
    server: DiscordServer, general: Place, state: Path
) -> None:
    """Events that RESUME leaves out are read over REST, before those that it replays."""
    async with running(server, state) as run:
        server.write(general, "0")
        await run.record.count(1)
        server.gateway.resume_drops = 2
        server.gateway.drop()
        for number in range(1, 8):
            server.write(general, str(number))
        await run.record.count(8)

        assert run.record.texts() == [str(number) for number in range(8)]
        assert server.gateway.connections[-1].began == "resume"


async def test_a_resumption_that_replays_nothing_is_followed_by_a_sweep(
    server: DiscordServer, general: Place, state: Path
) -> None:
    """Though no later message asks for it, what was missed is read."""
    async with running(server, state) as run:
        # The connection beats, and so does the first sweep.
        await run.pulse.until(lambda: run.pulse.beats >= 2)
        server.gateway.resume_drops = 1
        server.gateway.drop()
        server.write(general, "missed")
        await run.record.text("missed")

        assert server.gateway.connections[-1].began == "resume"


@pytest.mark.parametrize("fault", ["invalid", "reconnect", "4000", "forgotten", "stopped"])
async def test_whatever_ends_a_connection_another_one_follows(
    server: DiscordServer, general: Place, state: Path, fault: str
) -> None:
    """Messages of the time between arrive, in order, and the adapter is up again."""
    async with running(server, state) as run:
        server.write(general, "before")
        await run.record.text("before")
        known = len(server.gateway.connections)
        if fault == "invalid":
            server.gateway.invalidate()
        elif fault == "reconnect":
            server.gateway.reconnect()
        elif fault == "4000":
            server.gateway.close(4000)
        elif fault == "forgotten":
            server.gateway.forget()
            server.gateway.drop()
        else:
            await server.stop()
            server.write(general, "nobody heard")
            await server.start()
        server.write(general, "between")
        await server.until(lambda: len(server.gateway.connections) > known)
        await server.connected()
        server.write(general, "after")
        await run.record.text("after")
        await run.pulse.until(lambda: run.pulse.up)

        heard = ["before", "nobody heard", "between", "after"]
        assert run.record.texts() == [text for text in heard if fault == "stopped" or text != heard[1]]


@pytest.mark.slow
async def test_a_mute_gateway_is_noticed(server: DiscordServer, general: Place, state: Path) -> None:
    """No event and no acknowledgement for ``heartbeat_timeout_s``: another connection is made."""
    server.gateway.heartbeat_ms = 200
    quick = Tempo(deadline_s=2.0, pause_s=0.02, longest_pause_s=0.1, guilds_s=0.05)
    async with running(server, state, heartbeat_timeout_s=0.8, tempo=quick) as run:
        server.gateway.mute = True
        server.write(general, "into the void")
        await server.until(lambda: len(server.gateway.connections) > 1)
        await run.pulse.until(lambda: not run.pulse.up)
        server.gateway.mute = False
        await run.record.text("into the void")
        await run.pulse.until(lambda: run.pulse.up)


async def test_a_stall_is_overdue_soon_after_the_heartbeat(server: DiscordServer, state: Path) -> None:
    """The pulse expects the next round trip within the heartbeat's interval and two time-outs."""
    async with running(server, state, heartbeat_timeout_s=2.0) as run:
        assert run.pulse.within_s == pytest.approx(41.25 + 4.0)


async def test_a_gateway_that_is_down_at_first_is_waited_for(
    server: DiscordServer, general: Place, state: Path
) -> None:
    """The first connection may fail as often as it likes; meanwhile sending works."""
    server.gateway.refuse = "reset"
    async with running(server, state, ready=False) as run:
        await server.called("GET", "/gateway/bot", 3)
        await run.channel.send(chunk(general.id, "still here"))
        assert not run.pulse.up
        server.gateway.refuse = 502
        await server.called("GET", "/gateway/bot", 6)
        server.gateway.refuse = ""
        await run.pulse.until(lambda: run.pulse.up)
        server.write(general, "hello")
        await run.record.text("hello")


@pytest.mark.parametrize("fault", ["token", "4004", "4014", "4013"])
async def test_what_only_a_person_can_mend_is_one_clear_error(
    server: DiscordServer, state: Path, fault: str
) -> None:
    """A refused token or intent ends the run with a hint; nothing is tried again."""
    if fault == "token":
        channel, pulse = adapter(server, state)
        server.reset_token()
    else:
        channel, pulse = adapter(server, state)
        if fault == "4014":
            server.privileged.clear()
        else:
            server.gateway.close_next = int(fault)
    with pytest.raises(CredentialsRefused) as caught:
        async with asyncio.timeout(30):
            await channel.run(Record().emit)
    await channel.aclose()

    assert caught.value.hint
    assert "Message Content" in str(caught.value) + caught.value.hint or fault != "4014"
    assert not pulse.up
    assert len(server.gateway.connections) <= 1


@pytest.mark.parametrize("begun", [False, True])
async def test_no_session_is_begun_when_none_is_left(server: DiscordServer, state: Path, begun: bool) -> None:
    """One start too many would make Discord reset the token: the adapter waits; after op 9, too."""
    if not begun:
        server.gateway.identifies_left = 0
    async with running(server, state, ready=begun) as run:
        server.gateway.identifies_left = 0
        server.gateway.invalidate()
        await run.pulse.until(lambda: "no further session start now" in run.pulse.error)

        assert [one.began for one in server.gateway.connections if one.began] == ["identify"] * begun
        assert server.gateway.identifies_left == 0


async def test_the_gateway_is_the_one_that_discord_names(
    server: DiscordServer, general: Place, state: Path
) -> None:
    """Without ``gateway_url`` Discord is asked; with it that address is used."""
    async with running(server, state):
        assert server.gateway.connections[-1].path == "/gateway/"
    async with running(server, state, gateway_url=server.gateway_url.replace("/gateway/", "/resume")):
        assert server.gateway.connections[-1].path == "/resume"


async def test_cancelling_leaves_no_thread_behind(server: DiscordServer, state: Path) -> None:
    """The heartbeat's thread ends with the connection, also with one that was just being made."""
    import threading

    server.gateway.heartbeat_ms = 50
    for ready in (True, False):
        async with running(server, state, ready=ready):
            await server.until(lambda: server.gateway.connections)
    await asyncio.to_thread(
        lambda: [each.join(5) for each in threading.enumerate() if each.name.startswith("keep-alive")]
    )

    assert not [each for each in threading.enumerate() if each.name.startswith("keep-alive")]


async def test_a_second_bot_keeps_its_own_cursors(server: DiscordServer, general: Place, state: Path) -> None:
    cursors = await Cursors.open(state, "5", lambda: datetime(2020, 1, 1, tzinfo=UTC))
    await cursors.advance(general.id, 2)
    async with running(server, state) as run:
        server.write(general, "hello")
        await run.record.text("hello")

    again = await Cursors.open(state, "5", lambda: datetime.now(UTC))
    assert again.known == {general.id: 2}
    assert again.start("1") == snowflake_at(datetime(2020, 1, 1, tzinfo=UTC))
    assert book(state, server)["first_start"] > datetime(2020, 1, 1, tzinfo=UTC)
