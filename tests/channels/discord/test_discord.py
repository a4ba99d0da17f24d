"""The Discord adapter on the real client, in front of a local Discord that fails as the platform does."""

from __future__ import annotations

import asyncio
import sys
from collections.abc import AsyncIterator, Callable
from contextlib import AbstractAsyncContextManager, asynccontextmanager
from datetime import UTC, datetime, timedelta
from pathlib import Path

import pytest

from channels.base import Channel
from channels.storage import first_start
from channels.testing import Break, ChannelContract, FarSide, Shown
from tests.channels.discord.discord_place import CALM, SENDS, Record, book, running, sender
from tests.support.discord_server import DiscordServer
from tests.support.discord_world import Channel as Place

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

    def open_channel(self) -> AbstractAsyncContextManager[tuple[Channel, FarSide]]:
        return self._open()

    @asynccontextmanager
    async def _open(self) -> AsyncIterator[tuple[Channel, FarSide]]:
        async with DiscordServer() as server:
            platform = _Platform(server, self.state)
            async with running(server, self.state):
                # This is the first start: what is written before it is old.
                pass
            async with self._adapter(platform) as channel:
                yield channel, platform

    def open_again(self, platform: FarSide) -> AbstractAsyncContextManager[Channel]:
        assert isinstance(platform, _Platform)
        return self._adapter(platform)

    def _adapter(self, platform: _Platform) -> AbstractAsyncContextManager[Channel]:
        return sender(platform.server, platform.state, allow_from=(platform.server.user("ada").id,))


# -- receiving -----------------------------------------------------------------------------------


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
        # The connection beats, and so does the first sweep.
        await run.pulse.until(lambda: run.pulse.beats >= 2)
        first = server.write(general, "first")
        await run.record.text("first")
        server.write(general, "hole", live=False)
        server.write(general, "second")
        await run.record.text("second")
        assert run.record.texts() == ["first", "second"]
        # That writes the cursors.
        server.write(server.dm("ada"), "remember me")
        await run.record.text("remember me")

    assert book(state, server)["cursors"][general.id] == first
    async with running(server, state) as run:
        await run.record.text("hole")


async def test_a_cursor_stays_before_what_was_not_taken(
    server: DiscordServer, general: Place, state: Path
) -> None:
    """Reading stops at the message in hand; the next start begins with it, however old it is."""
    now = datetime.now(UTC)
    first_start(state, "discord", server.bot.id, now - timedelta(hours=1))
    for minutes in (50, 40, 30):
        server.write(general, str(minutes), at=now - timedelta(minutes=minutes))
    record = Record()
    record.gate.clear()
    async with running(server, state, record=record):
        await record.until(lambda: record.begun)
        # That writes the cursors.
        server.write(server.dm("ada"), "remember me")
        await record.until(lambda: len(record.begun) == 2)

    async with running(server, state) as run:
        await run.record.text("30")
        assert run.record.texts(general.id) == ["50", "40", "30"]


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
        command = [sys.executable, "-m", "tests.channels.discord.discord_victim", *self._arguments]
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
