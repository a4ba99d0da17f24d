"""When a sweep comes by itself, and when it is a whole one."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from datetime import UTC, datetime
from pathlib import Path

from channels.discord.messages import snowflake_at
from tests.channels.discord.sweep_place import Rig, rig
from tests.support.discord_server import DiscordServer
from tests.support.discord_world import Channel as Place
from tests.support.until import until


@asynccontextmanager
async def swept(rigged: Rig) -> AsyncIterator[None]:
    """Let it sweep by itself."""
    task = asyncio.create_task(rigged.sweeper.run())
    try:
        yield
    finally:
        task.cancel()
        await asyncio.wait([task])


def looks(server: DiscordServer, channel: str) -> Callable[[], int]:
    return lambda: sum(call.path == f"/channels/{channel}" for call in server.calls)


async def test_the_first_sweep_waits_until_it_is_wanted_or_patience_ends(
    server: DiscordServer, general: Place, state: Path
) -> None:
    async with rig(server, state, patience_s=600.0, sweep_s=600.0) as rigged, swept(rigged):
        await asyncio.sleep(0.02)
        assert rigged.beats == []
        rigged.sweeper.want()
        await until(lambda: len(rigged.beats) == 1)
        rigged.sweeper.want()
        await until(lambda: len(rigged.beats) == 2)
    async with rig(server, state, patience_s=0.01, sweep_s=600.0) as rigged, swept(rigged):
        await until(lambda: len(rigged.beats) == 1)


async def test_a_whole_sweep_is_made_until_it_is_complete_and_when_it_is_wanted(
    server: DiscordServer, general: Place, state: Path
) -> None:
    """The regular ones between look up nothing."""
    fault = server.fail("GET", "/channels/12345", status=503, html=True, times=None)
    async with rig(server, state, patience_s=0.01, sweep_s=0.02, request_timeout_s=0.2) as rigged:
        await rigged.cursors.advance("12345", snowflake_at(datetime.now(UTC)))
        looked = looks(server, "12345")
        async with swept(rigged):
            await until(lambda: fault.used >= 2)
            assert rigged.beats == []
            fault.status = 403
            await until(lambda: len(rigged.beats) >= 1)
            before, beats = looked(), len(rigged.beats)
            await until(lambda: len(rigged.beats) >= beats + 3)
            assert looked() == before
            rigged.sweeper.want()
            await until(lambda: looked() == before + 1)
            beats = len(rigged.beats)
            await until(lambda: len(rigged.beats) >= beats + 3)
            assert looked() == before + 1


async def test_what_did_not_answer_is_tried_again_within_seconds(
    server: DiscordServer, general: Place, state: Path
) -> None:
    """However long the pause between two sweeps is otherwise."""
    fault = server.fail("GET", "/guilds/*/channels", status=503, html=True, times=None)
    async with (
        rig(server, state, patience_s=0.01, sweep_s=600.0, request_timeout_s=0.2) as rigged,
        swept(rigged),
    ):
        await until(lambda: fault.used >= 1)
        fault.times = 0
        await until(lambda: len(rigged.beats) == 1)
        assert len(server.calls) < 50
