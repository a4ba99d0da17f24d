"""What Discord sent while nobody listened, and what is kept over a crash."""

from __future__ import annotations

import asyncio
from collections.abc import MutableMapping
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import pytest
import structlog

from channels.base import Pulse, Site
from channels.discord.adapter import Discord
from channels.discord.ingress import MAX_WAITING, Cursors, Tempo
from channels.discord.messages import snowflake_at
from channels.storage import first_start
from tests.channels.discord.discord_place import CALM, HURRY, Record, book, running, table
from tests.support.discord_gateway import DIRECT_MESSAGES, GUILD_MESSAGES
from tests.support.discord_server import REAL_LIMITS, DiscordServer
from tests.support.discord_world import Channel as Place


async def test_a_channel_made_in_the_gap_is_read_from_the_last_complete_sweep_on(
    server: DiscordServer, general: Place, state: Path
) -> None:
    """No sweep that missed a list counts: what stands in channels that nobody knew is not passed over."""
    async with running(server, state) as run:
        # The connection beats, and so does the first sweep.
        await run.pulse.until(lambda: run.pulse.beats >= 2)
    assert general.guild is not None
    server.write(server.thread(server.channel(general.guild, "new")), "first words")
    swept_at = book(state, server)["swept_at"]
    broken = server.fail("GET", "/guilds/*/threads/active", status=403, html=True, times=None)
    hung = server.fail("GET", "/guilds/*/channels", status=503, times=None)
    async with running(server, state, sweep_s=0.05):
        await server.until(lambda: hung.used > 2)
    assert book(state, server)["swept_at"] == swept_at
    broken.times = hung.times = 0

    async with running(server, state) as run:
        await run.record.text("first words")


async def test_direct_channels_are_read_while_the_gateway_is_away(
    server: DiscordServer, general: Place, state: Path
) -> None:
    """Without the gateway's list of servers the known people are still heard; that is no complete sweep."""
    ada = server.user("ada").id
    server.gateway.refuse = 503
    quick = Tempo(deadline_s=0.2, pause_s=0.02, longest_pause_s=0.1, guilds_s=0.05)
    async with running(server, state, ready=False, allow_from=(ada,), tempo=quick, sweep_s=0.1) as run:
        await server.called("GET", "/gateway/bot")
        server.write(server.dm("ada"), "anybody there?")
        await run.record.text("anybody there?")
        await server.called("GET", f"/channels/{server.dm('ada').id}/messages", 3)

        assert not run.pulse.up
    assert book(state, server)["swept_at"] is None


async def test_a_disk_that_refuses_holds_back_a_direct_message(server: DiscordServer, state: Path) -> None:
    """Not remembered, not handed on: the message comes as soon as the disk takes the note."""
    refused = asyncio.Event()

    def watch(_: object, __: str, event: MutableMapping[str, Any]) -> MutableMapping[str, Any]:
        if event["event"] == "channel.held_back":
            refused.set()
        raise structlog.DropEvent

    async with running(server, state, tempo=CALM) as run:
        await run.pulse.until(lambda: run.pulse.beats >= 2)
        lock = state / "channels.lock"
        lock.rename(state / "aside")
        lock.mkdir()
        structlog.configure(processors=[watch])
        try:
            server.write(server.dm("ada"), "hello")
            async with asyncio.timeout(30):
                await refused.wait()
        finally:
            structlog.reset_defaults()
        assert run.record.begun == []
        lock.rmdir()
        await run.record.text("hello")

    assert server.dm("ada").id in book(state, server)["direct"]


async def test_deletions_come_live_in_their_turn(server: DiscordServer, general: Place, state: Path) -> None:
    """Those of single messages and of many, in servers and in direct channels; not where nobody was heard."""
    async with running(server, state) as run:
        direct = server.dm("ada")
        unheard = {"id": "5", "channel_id": server.dm("stranger").id}
        server.gateway.dispatch("MESSAGE_DELETE", DIRECT_MESSAGES, unheard)
        messages = [server.write(place, "oops") for place in (general, general, direct)]
        await run.record.count(3)
        server.delete(messages[0])
        gone = {"ids": [messages[1]], "channel_id": general.id, "guild_id": general.guild.id}
        server.gateway.dispatch("MESSAGE_DELETE_BULK", GUILD_MESSAGES, gone)
        server.delete(messages[2])
        await run.record.count(6)

        deletions = [each for each in run.record.arrivals if each.kind == "edit"]
    assert {each.platform_id for each in deletions} == set(messages)
    assert [each.sender.id for each in deletions if not each.group] == [server.user("ada").id]


async def test_files_are_fetched_when_they_are_asked_for(
    server: DiscordServer, general: Place, state: Path
) -> None:
    """An attachment knows its size before, and comes piece by piece; one that is gone says so."""
    data = b"\x89PNG" * 50_000
    async with running(server, state) as run:
        server.write(general, "look", attachments=[("cat.png", "image/png", data)])
        (file,) = (await run.record.text("look")).files
        got = b"".join([chunk async for chunk in file.fetch()])
        server.fail("GET", "/attachments/*/*/*", status=404)

        assert (file.kind, file.name, file.mime, file.size, got) == (
            "photo",
            "cat.png",
            "image/png",
            len(data),
            data,
        )


async def test_a_missing_permission_is_said_once(server: DiscordServer, general: Place, state: Path) -> None:
    """An empty history proves nothing: the cursor stays, and the log names the permission."""
    server.deny(general)
    with structlog.testing.capture_logs() as logs:
        async with running(server, state, sweep_s=0.05) as run:
            server.write(general, "heard live")
            await run.record.text("heard live")
            await server.called("GET", f"/channels/{general.id}/messages", 4)

    told = [each for each in logs if each["event"] == "history.forbidden"]
    assert [each["channel"] for each in told] == [general.id]
    assert general.id not in book(state, server)["cursors"]


async def test_events_of_unknown_shape_are_passed_over(
    server: DiscordServer, general: Place, state: Path
) -> None:
    """Nonsense ends as a line in the log with its kind; the connection stays, and what follows arrives."""
    nonsense: list[tuple[str, Any]] = [
        ("MESSAGE_CREATE", {"id": "7", "channel_id": general.id, "author": None}),
        ("MESSAGE_CREATE", {"content": "no id"}),
        ("MESSAGE_CREATE", []),
        ("INTERACTION_CREATE", {"id": "8", "type": 99}),
        ("CHANNEL_CREATE", {"type": 0, "guild_id": "not a number"}),
        ("GUILD_ROLE_UPDATE", "?"),
        ("NEVER_HEARD_OF", {"a": 1}),
    ]
    with structlog.testing.capture_logs() as logs:
        async with running(server, state) as run:
            server.write(general, "before")
            await run.record.text("before")
            for kind, data in nonsense:
                server.gateway.dispatch(kind, GUILD_MESSAGES, lambda _, data=data: data)
            server.write(general, "sound")
            await run.record.text("sound")

            assert len(server.gateway.connections) == 1
    kinds = [each["kind"] for each in logs if each["event"] == "event.unreadable"]
    assert {"message", "MESSAGE_CREATE", "INTERACTION_CREATE", "CHANNEL_CREATE"} <= set(kinds)


async def test_a_burst_beyond_what_is_kept_in_memory_arrives_in_order(
    server: DiscordServer, general: Place, state: Path
) -> None:
    """While the queue is away live messages are not piled up without end: the history has them."""
    record = Record()
    texts = [str(number) for number in range(MAX_WAITING + 500)]
    # The command comes behind all of these.
    server.interactions.deadline_s = 60.0
    async with running(server, state, record=record) as run:
        # The connection beats, and so does the first sweep.
        await run.pulse.until(lambda: run.pulse.beats >= 2)
        server.write(general, "first")
        await record.text("first")
        record.gate.clear()
        for text in texts:
            server.write(general, text)
        after_all = server.interact("help", channel=server.dm("ada"))
        # Every event before it has come in.
        await server.until(lambda: after_all.acked)
        record.gate.set()
        await record.count(MAX_WAITING - 10)
        server.write(general, "last")
        await record.text("last")

    assert record.texts(general.id) == ["first", *texts, "last"]


async def test_two_thousand_messages_of_twenty_channels_are_swept_in_time(
    server: DiscordServer, state: Path
) -> None:
    """A gap is read back at the platform's own limits within 30 seconds."""
    guild = server.guild("home")
    places = [server.channel(guild, f"c{number}") for number in range(20)]
    async with running(server, state):
        pass
    for place in places:
        for number in range(100):
            server.write(place, str(number))
    server.buckets.limits.update(REAL_LIMITS)

    async with running(server, state) as run:
        await run.record.count(2_000, within_s=30)
    for place in places:
        assert run.record.texts(place.id) == [str(number) for number in range(100)]


@pytest.mark.parametrize("by", [timedelta(seconds=60), timedelta(days=3650)])
async def test_discords_messages_of_the_first_minute_are_heard(
    server: DiscordServer, tmp_path: Path, by: timedelta
) -> None:
    """What came while the gateway was away is found behind a first start that the platform dates."""
    record, ada = Record(), server.user("ada").id
    site = Site(tmp_path, Pulse(), {}, datetime.now(UTC) + by)
    channel = Discord(table(server, allow_from=(ada,)), site, tempo=HURRY)
    server.gateway.refuse = "reset"
    running = asyncio.create_task(channel.run(record.emit))
    try:
        await server.called("GET", "/gateway/bot")
        server.write(server.dm("ada"), "in the gap")
        server.gateway.refuse = ""
        await record.count(1)
    finally:
        running.cancel()
        await asyncio.gather(running, return_exceptions=True)
        await channel.aclose()

    assert record.texts() == ["in the gap"]


@pytest.mark.parametrize("by", [timedelta(seconds=60), timedelta(days=3650)])
async def test_a_first_start_that_was_kept_by_a_clock_ahead_is_corrected(
    tmp_path: Path, by: timedelta
) -> None:
    """Channels are read from now on, not from a time that is yet to come; the next start, too."""
    now = datetime(2026, 6, 1, 12, tzinfo=UTC)
    first_start(tmp_path, "discord", "1", now + by)

    cursors = await Cursors.open(tmp_path, "1", lambda: now)

    assert cursors.start("10") <= snowflake_at(now)
    again = await Cursors.open(tmp_path, "1", lambda: now + 2 * by)
    assert again.start("10") <= snowflake_at(now)
