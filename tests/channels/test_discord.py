"""The Discord adapter on the real client, in front of a local Discord that fails as the platform does."""

from __future__ import annotations

import asyncio
import logging
import sys
from collections.abc import AsyncIterator, Callable, MutableMapping
from contextlib import AbstractAsyncContextManager, asynccontextmanager
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import orjson
import pytest
import structlog

from channels.base import Channel, Piece
from channels.contract import Break, ChannelContract, Platform, Shown
from channels.discord import build
from channels.discord_ingress import MAX_WAITING, Tempo
from channels.errors import (
    ChannelDown,
    CredentialsRefused,
    MessageGone,
    NewerFile,
    SendLater,
    SendNever,
    SendUnknown,
)
from channels.pairing import Pairing
from tests.channels.discord_place import CALM, Beats, Record, adapter, piece, running, table
from tests.discord_gateway import GUILD_MESSAGES
from tests.discord_server import REAL_LIMITS, DiscordServer
from tests.discord_world import Channel as Place

SENDS = "/channels/*/messages"


@pytest.fixture
async def server() -> AsyncIterator[DiscordServer]:
    async with DiscordServer() as server:
        yield server


@pytest.fixture
def general(server: DiscordServer) -> Place:
    return server.channel(server.guild("home"), "general")


@pytest.fixture
def state(tmp_path: Path) -> Path:
    return tmp_path / "state"


def book(state: Path, server: DiscordServer) -> dict[str, Any]:
    """What the cursor file holds of the bot."""
    content: dict[str, Any] = orjson.loads((state / "discord.json").read_bytes())
    found: dict[str, Any] = content["bots"][server.bot.id]
    return found


# -- the contract --------------------------------------------------------------------------------


class _Platform:
    """The local Discord as the contract drives it."""

    def __init__(self, server: DiscordServer, state: Path) -> None:
        self.server = server
        self.state = state
        self.place = server.dm("ada")
        self.chat_id = self.place.id

    async def write(self, text: str) -> None:
        self.server.write(self.place, text)

    async def sent(self) -> list[Shown]:
        shown = [self.server.messages[str(one)] for one in self.place.messages]
        own = [message for message in shown if message.author is self.server.bot]
        return [Shown(each.id, self.chat_id, each.content or each.attachments[0]["filename"]) for each in own]

    async def break_next(self, how: Break) -> None:
        if how == "later":
            self.server.fail("POST", SENDS, status=429, retry_after=60)
        elif how == "never":
            self.server.fail("POST", SENDS, status=403, code=50007)
        elif how == "unknown":
            self.server.fail("POST", SENDS, drop="after")
        elif how == "gone":
            self.server.delete(str(self.place.messages[-1]))


class TestContract(ChannelContract):
    # A connection that breaks looks the same before the request was carried out and after it; a server that
    # cannot be reached at all is tested below.
    lacks = frozenset({"moved", "down"})

    @pytest.fixture(autouse=True)
    def _folder(self, tmp_path: Path) -> None:
        self.state = tmp_path / "state"

    def open_channel(self) -> AbstractAsyncContextManager[tuple[Channel, Platform]]:
        return self._open()

    @asynccontextmanager
    async def _open(self) -> AsyncIterator[tuple[Channel, Platform]]:
        async with DiscordServer() as server:
            platform = _Platform(server, self.state)
            async with running(server, self.state):
                pass  # the first start: what is written before it is old
            async with self._adapter(platform) as channel:
                yield channel, platform

    def open_again(self, platform: Platform) -> AbstractAsyncContextManager[Channel]:
        assert isinstance(platform, _Platform)
        return self._adapter(platform)

    @asynccontextmanager
    async def _adapter(self, platform: _Platform) -> AsyncIterator[Channel]:
        channel, _ = adapter(platform.server, platform.state, allow_from=(platform.server.user("ada").id,))
        try:
            yield channel
        finally:
            await channel.aclose()


# -- receiving -----------------------------------------------------------------------------------


async def test_messages_of_every_kind_of_place_arrive(
    server: DiscordServer, general: Place, state: Path
) -> None:
    """A channel, a thread and a direct channel each are a chat; a thread names its channel and its server."""
    thread = server.thread(general)
    assert general.guild is not None
    async with running(server, state) as run:
        server.write(general, "in a channel", mentions_bot=True)
        server.write(thread, "in a thread")
        server.write(server.dm("ada"), "alone")
        channel, in_thread, direct = [
            await run.record.text(text) for text in ("in a channel", "in a thread", "alone")
        ]

    assert (channel.group, channel.group_ids) == (True, (general.id, general.guild.id))
    assert channel.mentioned
    assert in_thread.group_ids == (thread.id, general.id, general.guild.id)
    assert not in_thread.mentioned
    assert (direct.group, direct.chat_id) == (False, server.dm("ada").id)


async def test_own_messages_are_skipped_and_those_of_bots_are_marked(
    server: DiscordServer, general: Place, state: Path
) -> None:
    """What the bot itself wrote never comes back; who is a program is said."""
    async with running(server, state) as run:
        await run.channel.send(piece(general.id, "own words"))
        server.write(general, "beep", user="robot", bot=True)
        beep = await run.record.text("beep")

        assert beep.from_bot
        assert run.record.texts() == ["beep"]


async def test_holes_in_the_gateway_are_found_by_the_sweep(
    server: DiscordServer, general: Place, state: Path
) -> None:
    """What the gateway never told is read over REST: in channels, threads, and direct channels once known."""
    thread, direct = server.thread(general), server.dm("ada")
    async with running(server, state, sweep_s=0.2) as run:
        for place in (general, thread, direct):
            server.write(place, "told")
        await run.record.count(3)
        for place in (general, thread, direct):
            server.write(place, "untold", live=False)
        await run.record.count(6)

        assert [run.record.texts(place.id) for place in (general, thread, direct)] == [["told", "untold"]] * 3


async def test_a_live_message_never_moves_a_cursor(
    server: DiscordServer, general: Place, state: Path
) -> None:
    """Only reading over REST moves it: a live message says nothing about those before it."""
    async with running(server, state, tempo=CALM) as run:
        await run.pulse.until(lambda: run.pulse.beats >= 2)  # the connection and the first sweep
        first = server.write(general, "first")
        await run.record.text("first")
        server.write(general, "hole", live=False)
        server.write(general, "second")
        await run.record.text("second")
        assert run.record.texts() == ["first", "second"]
        server.write(server.dm("ada"), "remember me")  # which writes the file
        await run.record.text("remember me")

    assert book(state, server)["cursors"][general.id] == first
    async with running(server, state) as run:
        await run.record.text("hole")


async def test_a_cursor_stays_before_what_was_not_taken(
    server: DiscordServer, general: Place, state: Path
) -> None:
    """Reading stops at the message in hand; the next start begins with it, however old it is."""
    now = datetime.now(UTC)
    long_ago = {"first_start": (now - timedelta(hours=1)).isoformat(), "swept_at": None}
    state.mkdir()
    (state / "discord.json").write_bytes(orjson.dumps({"v": 1, "bots": {server.bot.id: long_ago}}))
    for minutes in (50, 40, 30):
        server.write(general, str(minutes), at=now - timedelta(minutes=minutes))
    record = Record()
    record.gate.clear()
    async with running(server, state, record=record):
        await record.until(lambda: record.begun)
        server.write(server.dm("ada"), "remember me")  # which writes the file
        await record.until(lambda: len(record.begun) == 2)

    async with running(server, state) as run:
        await run.record.text("30")
        assert run.record.texts(general.id) == ["50", "40", "30"]


async def test_a_restart_in_the_middle_loses_nothing_and_keeps_the_order(
    server: DiscordServer, general: Place, state: Path
) -> None:
    """Adapters that are cancelled again and again hand on everything, each channel in its order."""
    places = [general, server.thread(general), server.dm("ada")]
    for place in places:
        server.write(place, "before the first start")
    await asyncio.sleep(0.002)  # the next message bears another millisecond than the first start
    record, written = Record(), 0
    for round_ in range(4):
        async with running(server, state, record=record, allow_from=(server.user("ada").id,)):
            for place in places:
                for number in range(20):
                    server.write(place, f"{round_}.{number:02}")
            written += 60
            await record.count(written - 50)
            record.gate.clear()
        record.gate.set()
        for place in places:
            server.write(place, f"{round_}.gap")
        written += 3
    async with running(server, state, record=record, allow_from=(server.user("ada").id,)):
        await record.count(written)

    for place in places:
        expected = [f"{r}.{n}" for r in range(4) for n in (*(f"{n:02}" for n in range(20)), "gap")]
        assert record.texts(place.id) == expected


async def test_a_killed_process_loses_nothing(server: DiscordServer, general: Place, state: Path) -> None:
    """Killed three times while 300 messages arrive and others come in the gaps: all are taken, in order."""
    people = [server.user(f"person{number}") for number in range(4)]
    places = [general, server.thread(general), *(server.dm(person) for person in people)]
    victim = Victim(server, state, [person.id for person in people])
    written: dict[str, list[str]] = {place.id: [] for place in places}

    def write(times: int) -> None:
        for _ in range(times):
            for place in places:
                written[place.id].append(str(len(written[place.id])))
                server.write(place, written[place.id][-1])

    for kill_after in (3, 25, 60):
        async with victim.alive():
            write(12)
            await victim.until(lambda n=kill_after: len(victim.taken_here) >= n)
        write(4)
    async with victim.alive():
        write(2)
        await victim.until(lambda: len(set(victim.taken)) == 300)

    for place in places:
        taken = [text for chat, text in dict.fromkeys(victim.taken) if chat == place.id]
        assert taken == written[place.id]


class Victim:
    """An adapter in processes of its own, one after the other; ``taken`` is what all of them took."""

    def __init__(self, server: DiscordServer, state: Path, people: list[str]) -> None:
        self._server = server
        self._arguments = [server.api_base_url, server.token, str(state), ",".join(people)]
        self._process: asyncio.subprocess.Process | None = None
        self._before = 0
        self.taken: list[tuple[str, str]] = []

    @property
    def taken_here(self) -> list[tuple[str, str]]:
        return self.taken[self._before :]

    @asynccontextmanager
    async def alive(self) -> AsyncIterator[None]:
        """Run it until the context is left, then kill it."""
        known = len(self._server.gateway.connections)
        command = [sys.executable, "-m", "tests.channels.discord_victim", *self._arguments]
        self._process = await asyncio.create_subprocess_exec(*command, stdout=asyncio.subprocess.PIPE)
        self._before = len(self.taken)
        try:
            connections = self._server.gateway.connections
            await self._server.until(lambda: len(connections) > known and connections[-1].open, within_s=60)
            await self._server.until(lambda: connections[-1].session, within_s=30)
            yield
        finally:
            self._process.kill()
            await self.until(lambda: False)
            await self._process.wait()

    async def until(self, done: Callable[[], bool]) -> None:
        """Read what is taken until it is enough, or the process has ended."""
        assert self._process is not None
        assert self._process.stdout is not None
        async with asyncio.timeout(60):
            while not done():
                line = await self._process.stdout.readline()
                if not line:
                    return
                words = line.decode().split()
                if words[0] == "taken" and line.endswith(b"\n"):
                    self.taken.append((words[1], words[2]))


async def test_nothing_dated_before_the_first_start_is_replayed(
    server: DiscordServer, general: Place, state: Path
) -> None:
    """The first start is written down before anything is received, and a restart is no first start."""
    server.write(general, "old", at=datetime.now(UTC) - timedelta(hours=1))
    server.write(server.dm("ada"), "old", at=datetime.now(UTC) - timedelta(seconds=5))
    ada = server.user("ada").id
    server.gateway.refuse = "reset"
    async with running(server, state, ready=False, allow_from=(ada,)):
        await server.called("GET", "/gateway/bot")
    started = book(state, server)["first_start"]
    server.gateway.refuse = ""
    server.write(general, "in the gap")

    async with running(server, state, allow_from=(ada,)) as run:
        server.write(server.dm("ada"), "now")
        await run.record.count(2)
        await run.channel.typing(general.id)

        assert sorted(run.record.texts()) == ["in the gap", "now"]
    assert book(state, server)["first_start"] == started


async def test_a_direct_channel_is_remembered_before_its_message_is_handed_on(
    server: DiscordServer, state: Path
) -> None:
    """No list shows direct channels: killed with a stranger's first message in hand, the adapter finds it."""
    record = Record()
    record.gate.clear()
    async with running(server, state, record=record):
        server.write(server.dm("stranger"), "let me in")
        await record.until(lambda: record.begun)
        assert book(state, server)["direct"] == {server.dm("stranger").id: server.user("stranger").id}
    server.write(server.dm("stranger"), "hello?")

    async with running(server, state) as run:
        await run.record.text("hello?")
        assert run.record.texts() == ["let me in", "hello?"]


@pytest.mark.parametrize("how", ["listed", "paired"])
async def test_the_first_direct_message_of_an_allowed_person_is_found_after_a_gap(
    server: DiscordServer, state: Path, how: str
) -> None:
    """A listed or paired person may write for the first time while nobody listens."""
    ada = server.user("ada").id
    if how == "paired":
        pairing = Pairing(state)
        code = pairing.ask("discord", ada, kind="person", name="ada", message_id="discord:1")
        assert code is not None
        pairing.approve(code)
    async with running(server, state):
        pass
    server.write(server.dm("ada"), "while you were away")

    async with running(server, state, allow_from=(ada,) if how == "listed" else ()) as run:
        await run.record.text("while you were away")


async def test_a_thread_that_was_archived_meanwhile_is_still_read(
    server: DiscordServer, general: Place, state: Path
) -> None:
    """The list of threads has only active ones; those with a cursor are asked for one by one."""
    thread = server.thread(general)
    async with running(server, state, sweep_s=0.1) as run:
        server.write(thread, "open", live=False)
        await run.record.text("open")
    server.write(thread, "last words")
    thread.archived = True

    async with running(server, state) as run:
        last = await run.record.text("last words")

    assert general.guild is not None
    assert last.group_ids == (thread.id, general.id, general.guild.id)


async def test_a_channel_made_in_the_gap_is_read_from_the_last_complete_sweep_on(
    server: DiscordServer, general: Place, state: Path
) -> None:
    """No sweep that missed a list counts: what stands in channels that nobody knew is not passed over."""
    async with running(server, state) as run:
        await run.pulse.until(lambda: run.pulse.beats >= 2)  # the connection and the first sweep
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
        await run.pulse.until(
            lambda: run.pulse.beats >= 2
        )  # what a sweep saves would lie at the barrier's place
        barrier = state / ".discord.json.tmp"
        barrier.mkdir()
        structlog.configure(processors=[watch])
        try:
            server.write(server.dm("ada"), "hello")
            async with asyncio.timeout(30):
                await refused.wait()
        finally:
            structlog.reset_defaults()
        assert run.record.begun == []
        barrier.rmdir()
        await run.record.text("hello")

    assert server.dm("ada").id in book(state, server)["direct"]


async def test_edits_come_live_in_their_turn(server: DiscordServer, general: Place, state: Path) -> None:
    """An edit has its message's id, and an id of its own; a mere preview of a link is none."""
    async with running(server, state) as run:
        message = server.write(general, "teh")
        await run.record.text("teh")
        server.edit(message, "the")
        edit = await run.record.text("the")
        server.announce("MESSAGE_UPDATE", server.messages[message])
        server.write(general, "next")
        await run.record.text("next")

        assert [each.kind for each in run.record.arrivals] == ["message", "edit", "message"]
        assert run.record.repeats == 0
    edited_at = server.messages[message].edited_at
    assert edited_at is not None
    assert edit.platform_id == message
    assert edit.id == f"discord:{message}:e{int(edited_at.timestamp() * 1000)}"


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
    server.interactions.deadline_s = 60.0  # it comes behind all of these
    async with running(server, state, record=record) as run:
        await run.pulse.until(lambda: run.pulse.beats >= 2)  # the connection and the first sweep
        server.write(general, "first")
        await record.text("first")
        record.gate.clear()
        for text in texts:
            server.write(general, text)
        after_all = server.interact("help", channel=server.dm("ada"))
        await server.until(lambda: after_all.acked)  # every event before it has come in
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
        await run.pulse.until(lambda: run.pulse.beats >= 2)  # the connection and the first sweep
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
        await run.channel.send(piece(general.id, "still here"))
        assert not run.pulse.up
        server.gateway.refuse = 502
        await server.called("GET", "/gateway/bot", 6)
        server.gateway.refuse = ""
        await run.pulse.until(lambda: run.pulse.up)
        server.write(general, "hello")
        await run.record.text("hello")


async def test_a_platform_that_is_down_at_first_is_waited_for(
    server: DiscordServer, general: Place, state: Path
) -> None:
    """Not even a login is possible: the pulse says so, then the adapter comes up."""
    await server.stop()
    async with running(server, state, ready=False) as run:
        await run.pulse.until(lambda: len(run.pulse.failures) >= 3)
        await server.start()
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


async def test_no_session_is_begun_when_none_is_left(server: DiscordServer, state: Path) -> None:
    """One start too many would make Discord reset the token: the adapter waits, and says so."""
    server.gateway.identifies_left = 0
    async with running(server, state, ready=False) as run:
        await run.pulse.until(lambda: "no start left" in run.pulse.error)

        assert server.gateway.connections == []
        assert server.gateway.identifies_left == 0


async def test_a_session_that_was_ended_is_followed_by_another_only_if_one_is_left(
    server: DiscordServer, state: Path
) -> None:
    """After op 9, too, the limit of starts is looked at first."""
    async with running(server, state) as run:
        server.gateway.identifies_left = 0
        server.gateway.invalidate()
        await run.pulse.until(lambda: "no start left" in run.pulse.error)

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


async def test_cursors_of_a_newer_version_are_refused(server: DiscordServer, state: Path) -> None:
    """What a newer program wrote is left alone."""
    from channels.base import Site

    state.mkdir()
    (state / "discord.json").write_text('{"v": 2}')

    with pytest.raises(NewerFile):
        build(table(server), Site(state, Beats(), {}))
    assert (state / "discord.json").read_text() == '{"v": 2}'


async def test_a_second_bot_keeps_its_own_cursors(server: DiscordServer, general: Place, state: Path) -> None:
    """The file is by bot; what another one wrote is kept."""
    state.mkdir()
    other = {
        "first_start": "2020-01-01T00:00:00+00:00",
        "swept_at": None,
        "cursors": {"1": "2"},
        "direct": {},
    }
    (state / "discord.json").write_bytes(orjson.dumps({"v": 1, "bots": {"5": other}}))
    async with running(server, state) as run:
        server.write(general, "hello")
        await run.record.text("hello")

    bots = orjson.loads((state / "discord.json").read_bytes())["bots"]
    assert bots["5"] == other
    assert bots[server.bot.id]["first_start"]


# -- commands ------------------------------------------------------------------------------------


async def test_a_command_is_promised_an_answer_at_once_and_waits_for_its_turn(
    server: DiscordServer, general: Place, state: Path
) -> None:
    """Though the queue is away the interaction is deferred; the command comes after earlier messages."""
    record = Record()
    record.gate.clear()
    async with running(server, state, record=record) as run:
        server.write(general, "first")
        await record.until(lambda: record.begun)
        command = server.interact("compact", {"focus": "the plan"}, channel=general)
        await server.until(lambda: command.acked)
        assert record.begun == ["first"]
        record.gate.set()
        arrival = await record.text("/compact the plan")

        assert (arrival.kind, arrival.mentioned) == ("command", True)
        assert arrival.id == f"discord:i{command.id}"
        assert command.deferred
        assert await run.channel.send(piece(general.id, "done", meta=arrival.meta))
        assert command.answers == ["done"]


async def test_an_answer_of_several_pieces_to_a_command(
    server: DiscordServer, general: Place, state: Path
) -> None:
    """The first piece fills what was promised, also when it is repeated; the others go to the channel."""
    async with running(server, state) as run:
        command = server.interact("status", channel=general)
        meta = (await run.record.text("/status")).meta
        one = await run.channel.send(piece(general.id, "one", "a", meta=meta))
        again = await run.channel.send(piece(general.id, "one", "a", meta=meta))
        two = await run.channel.send(piece(general.id, "two", "b", meta=meta))
        await run.channel.edit(general.id, one, piece(general.id, "One").content)  # type: ignore[arg-type]

        assert one == again != two
        assert command.answers == ["One"]
        assert [each.text for each in server.sent if each.id == two] == ["two"]


async def test_an_answer_that_comes_too_late_for_its_interaction_is_a_plain_message(
    server: DiscordServer, general: Place, state: Path
) -> None:
    """After 15 minutes the interaction is over; the answer still reaches the channel."""
    async with running(server, state) as run:
        command = server.interact("retry", channel=general)
        arrival = await run.record.text("/retry")
        server.interactions.token_s = 0.0
        sent = await run.channel.send(piece(general.id, "late", meta=arrival.meta))

        assert command.answers == []
        assert server.messages[sent].content == "late"


@pytest.mark.parametrize("fault", [None, 404, 500])
async def test_the_promise_of_an_answer_that_will_not_come_is_taken_back(
    server: DiscordServer, general: Place, state: Path, fault: int | None
) -> None:
    """Nobody looks at "is thinking…" for a command that was dismissed; where Discord refuses, all goes on."""
    if fault is not None:
        server.fail("DELETE", "/webhooks/*/*/messages/@original", status=fault, times=None)
    async with running(server, state, record=Record(will_hear=False)) as run:
        command = server.interact("status", channel=general)
        await server.called("DELETE", f"/webhooks/*/{command.token}/messages/@original")
        server.write(general, "hello")
        await run.record.text("hello")

        assert command.deferred
        assert command.original is not None
        assert (command.original.id in server.messages) == (fault is not None)


@pytest.mark.parametrize("fault", ["answer lost", "refused"])
async def test_a_deferral_that_goes_wrong(
    server: DiscordServer, general: Place, state: Path, fault: str
) -> None:
    """One whose answer was lost is known to stand; without one the command is answered plainly."""
    if fault == "answer lost":
        server.fail("POST", "/interactions/*/*/callback", drop="after")
    else:
        server.fail("POST", "/interactions/*/*/callback", status=404, code=10062)
    async with running(server, state) as run:
        command = server.interact("help", channel=general)
        arrival = await run.record.text("/help")

        assert command.deferred == bool(arrival.meta) == (fault == "answer lost")


async def test_the_menu_is_replaced(server: DiscordServer, state: Path) -> None:
    """Every command is registered, those with an argument as one optional text."""
    channel, _ = adapter(server, state)
    await channel.register({"new": "begins anew", "compact": "compacts " + "x" * 200})
    await channel.aclose()

    new, compact = server.commands
    assert (new["name"], new["description"], "options" in new) == ("new", "begins anew", False)
    assert [(each["type"], each["required"]) for each in compact["options"]] == [(3, False)]
    assert len(compact["description"]) == 100


# -- sending -------------------------------------------------------------------------------------


@asynccontextmanager
async def sender(server: DiscordServer, state: Path, **more: Any) -> AsyncIterator[Any]:
    """An adapter that only sends."""
    channel, _ = adapter(server, state, **more)
    try:
        yield channel
    finally:
        await channel.aclose()


async def test_a_reply_quotes_and_pings_nobody_else(
    server: DiscordServer, general: Place, state: Path
) -> None:
    """The question is quoted; mentions in the answer stay without effect; a deleted question is no error."""
    question = server.write(general, "why?")
    async with sender(server, state) as channel:
        await channel.send(piece(general.id, "because @everyone <@1>", "a", reply_to=question))
        server.delete(question)
        await channel.send(piece(general.id, "anyway", "b", reply_to=question))

    first, second = server.sent
    assert (first.reference, first.nonce) == (question, "a")
    assert first.allowed_mentions == {"parse": [], "replied_user": True}
    assert (second.reference, second.text) == (None, "anyway")


async def test_who_may_not_quote_answers_without(server: DiscordServer, general: Place, state: Path) -> None:
    """Without Read Message History Discord refuses replies; the text is sent all the same."""
    question = server.write(general, "why?")
    server.deny(general)
    async with sender(server, state) as channel:
        await channel.send(piece(general.id, "because", reply_to=question))

    assert [each.text for each in server.sent] == ["because"]


async def test_the_same_nonce_is_the_same_message(server: DiscordServer, general: Place, state: Path) -> None:
    """A piece that is sent again after an unknown outcome is shown once."""
    server.fail("POST", SENDS, drop="after")
    async with sender(server, state) as channel:
        with pytest.raises(SendUnknown):
            await channel.send(piece(general.id, "once", "x" * 25))
        known = await channel.send(piece(general.id, "once", "x" * 25))

    assert [each.id for each in server.sent] == [known]


async def test_a_server_that_cannot_be_reached_was_sent_nothing(
    server: DiscordServer, general: Place, state: Path
) -> None:
    """Refused connections are ``ChannelDown``, before the login and after it."""
    async with sender(server, state) as channel:
        await server.stop()
        with pytest.raises(ChannelDown):
            await channel.send(piece(general.id, "one"))
        await server.start()
        await channel.send(piece(general.id, "one"))
        await server.stop()
        with pytest.raises((ChannelDown, SendUnknown)):
            await channel.send(piece(general.id, "two"))
        with pytest.raises(ChannelDown):
            await channel.send(piece(general.id, "two"))
        await server.start()

    assert [each.text for each in server.sent] == ["one"]


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
    """Each fault has its error; the next piece is not harmed, and nothing is shown twice."""
    async with sender(server, state, request_timeout_s=2.0) as channel:
        await channel.send(piece(general.id, "before", "a"))
        stands = server.fail("POST", SENDS, **fault)
        with pytest.raises(promised) as caught:
            await channel.send(piece(general.id, "told", "b"))
        stands.times = 0
        await channel.send(piece(general.id, "after", "c"))

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
        await channel.send(piece(general.id, "in time"))

    assert [each.text for each in server.sent] == ["in time"]


async def test_a_wait_that_is_cut_short_holds_up_no_other_chat(
    server: DiscordServer, general: Place, state: Path
) -> None:
    """A limit over everything that outlasts its call leaves the next one free to try."""
    server.fail("POST", f"/channels/{general.id}/messages", status=429, retry_after=5.0, everywhere=True)
    async with sender(server, state, request_timeout_s=2.0) as channel:
        with pytest.raises(SendLater):
            await channel.send(piece(general.id, "limited"))
        await channel.send(piece(server.dm("ada").id, "free"))

    assert [each.text for each in server.sent] == ["free"]


async def test_a_chat_that_hangs_holds_up_no_other(
    server: DiscordServer, general: Place, state: Path
) -> None:
    """While one chat's send has no answer another chat is served."""
    stuck = server.fail("POST", f"/channels/{general.id}/messages", hang="before")
    async with sender(server, state, request_timeout_s=60.0) as channel:
        hanging = asyncio.create_task(channel.send(piece(general.id, "stuck")))
        await server.until(lambda: stuck.used)
        await channel.send(piece(server.dm("ada").id, "free"))
        assert not hanging.done()
        hanging.cancel()
        await asyncio.wait([hanging])


async def test_edits_and_their_errors(server: DiscordServer, general: Place, state: Path) -> None:
    """An edit replaces the text; of what is deleted or not ours it says so."""
    foreign = server.write(general, "mine")
    async with sender(server, state) as channel:
        sent = await channel.send(piece(general.id, "draft"))
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
        ids = {await channel.send(Piece(general.id, path, "f")) for _ in range(2)}
        with pytest.raises(SendNever):
            await channel.send(Piece(general.id, tmp_path / "none.txt", "g"))

    assert len(ids) == len(server.sent) == 1
    assert [(name, data) for name, _, data in server.sent[0].files] == [("plan.txt", path.read_bytes())]


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
                await run.channel.send(piece(general.id, "hello", meta=arrival.meta))
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
