"""Hands on what Discord shows, each channel in its order: live events, and what only the history knows."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Coroutine, Iterable, Mapping
from contextlib import suppress
from dataclasses import dataclass, replace
from datetime import datetime, timedelta
from functools import partial
from itertools import chain
from pathlib import Path
from sqlite3 import Connection
from typing import Any, Final, Protocol

import structlog

import durable
from channels.base import Arrival, Emit, Quote
from channels.discord.messages import (
    OPENING,
    DiscordBot,
    Location,
    Raw,
    SkippedMessage,
    interaction_location,
    location_of,
    read_deletion,
    read_edit,
    read_interaction,
    read_message,
    read_opening,
    snowflake_at,
)
from channels.discord.rest import PAGE, RequestRefused, Rest, withdraw
from channels.errors import ChannelError, CredentialsRefused
from channels.keyed_lanes import KeyedLanes
from channels.parts import Batch, Parts
from channels.storage import change_rows, first_start, from_ms, read_rows, to_ms

# Ids are made on many machines: up to ten seconds are looked at again.
OVERLAP: Final = 10_000 << 22
SAVE_EVERY_S: Final = 0.3
KEEP: Final = timedelta(days=30)
MAX_DIRECT: Final = 2_000
log = structlog.get_logger("discord")


class Cursors:
    """One bot's cursors. A cursor moves only past what was emitted; only the sweep moves it."""

    def __init__(
        self,
        state: Path,
        bot: str,
        *,
        first_start: datetime,
        swept_at: datetime | None,
        rows: Mapping[str, tuple[int, str]],
    ) -> None:
        self._state = state
        self._bot = bot
        self._first_start = first_start
        self._swept_at = swept_at
        self._cursors = {channel: at for channel, (at, _) in rows.items()}
        # The person of each direct channel.
        self._direct = {channel: person for channel, (_, person) in rows.items() if person}
        # The channels in the database, with whether each is known there as a direct one; and those of which
        # it has to learn something.
        self._stored = {channel: bool(person) for channel, (_, person) in rows.items()}
        self._unsaved: set[str] = set()
        self._saving = asyncio.Lock()
        self._saved_at = 0.0
        self._refused = False

    @classmethod
    async def open(cls, state: Path, bot: str, clock: Callable[[], datetime]) -> Cursors:
        """Read the bot's cursors; its very first start is recorded before anything is received.

        Raises:
            NewerFile: a newer version of this program wrote the database.
            ChannelError: the database cannot be read or written.
        """
        # After a kill the next start is no first one.
        since = await asyncio.to_thread(first_start, state, "discord", bot, clock())
        swept_at, rows = await asyncio.to_thread(_load, state, bot)
        return cls(state, bot, first_start=since, swept_at=swept_at, rows=rows)

    @property
    def direct(self) -> Mapping[str, str]:
        """The direct channels that were ever heard of, each with its person."""
        return self._direct

    @property
    def known(self) -> Mapping[str, int]:
        """The id up to which each channel was read."""
        return self._cursors

    def start(self, channel: str) -> int:
        """Return the id after which a channel is to be read; never before the first start."""
        since = snowflake_at(self._swept_at or self._first_start)
        return max(snowflake_at(self._first_start), self._cursors.get(channel, since) - OVERLAP)

    async def advance(self, channel: str, id: int) -> None:
        """Move a cursor forward; it reaches the disk within a moment."""
        if id > self._cursors.get(channel, 0):
            self._cursors[channel] = id
            self._unsaved.add(channel)
        rested_s = asyncio.get_running_loop().time() - self._saved_at
        if rested_s >= SAVE_EVERY_S and not self._saving.locked():
            await self.flush()

    async def remember(self, channel: str, person: str = "") -> None:
        """Note a channel that no list may show later; on return the next start will find it.

        Args:
            channel: a direct channel, or a thread.
            person: whose direct channel it is.

        Raises:
            ChannelError: the disk refused.
        """

        def done() -> bool:
            return channel in self._stored and (self._stored[channel] or not person)

        if done():
            return
        self._cursors.setdefault(channel, self.start(channel))
        if person:
            self._direct[channel] = person
        self._unsaved.add(channel)
        await self._save(done)

    async def swept(self, began: datetime) -> None:
        """Note that everything written before ``began`` was emitted, wherever the bot can read."""
        self._swept_at = max(began, self._swept_at or began)
        self._forget_silent(began)
        await self.flush(always=True)

    def forget(self, channel: str) -> None:
        """Drop a channel that is not there any more."""
        self._cursors.pop(channel, None)
        self._direct.pop(channel, None)
        if channel in self._stored:
            self._unsaved.add(channel)

    async def flush(self, *, always: bool = False) -> None:
        """Write what moved; a disk that refuses costs repeats, so it is only logged."""
        try:
            await self._save(lambda: not (self._unsaved or always))
            self._refused = False
        except ChannelError as error:
            if not self._refused:
                log.warning("cursors.refused", error=str(error))
            self._refused = True

    async def _save(self, done: Callable[[], bool]) -> None:
        """Write what moved, unless another save has ``done`` what was wanted meanwhile."""
        async with self._saving:
            if done():
                return
            moved, self._unsaved = self._unsaved, set()
            rows = {
                channel: (self._cursors[channel], self._direct.get(channel))
                for channel in moved
                if channel in self._cursors
            }
            try:
                await asyncio.to_thread(
                    change_rows,
                    self._state,
                    partial(_store, self._bot, self._swept_at, rows, moved - {*rows}),
                )
            except BaseException:
                self._unsaved |= moved
                raise
            finally:
                self._saved_at = asyncio.get_running_loop().time()
            for channel in moved:
                self._stored.pop(channel, None)
            self._stored |= {channel: bool(person) for channel, (_, person) in rows.items()}

    def _forget_silent(self, now: datetime) -> None:
        """Forget channels that were silent for long; what they hear next is later than this sweep."""
        before = snowflake_at(now - KEEP)
        for channel in [
            each for each, at in self._cursors.items() if at < before and each not in self._direct
        ]:
            self.forget(channel)
        quiet = sorted(self._direct, key=lambda each: self._cursors.get(each, 0))
        for channel in quiet[: max(0, len(quiet) - MAX_DIRECT)]:
            self.forget(channel)


def _load(state: Path, bot: str) -> tuple[datetime | None, dict[str, tuple[int, str]]]:
    with read_rows(state) as file:
        query = "SELECT swept_ms FROM bots WHERE (channel, bot) = ('discord', ?)"
        (swept_ms,) = file.execute(query, (bot,)).fetchone()
        rows = file.execute("SELECT chat, read_to, person FROM cursors WHERE bot = ?", (bot,)).fetchall()
    swept_at = None if swept_ms is None else from_ms(swept_ms)
    return swept_at, {channel: (at, person or "") for channel, at, person in rows}


def _store(
    bot: str,
    swept_at: datetime | None,
    rows: Mapping[str, tuple[int, str | None]],
    gone: set[str],
    file: Connection,
) -> None:
    swept_ms = None if swept_at is None else to_ms(swept_at)
    file.execute("UPDATE bots SET swept_ms = ? WHERE (channel, bot) = ('discord', ?)", (swept_ms, bot))
    # A save whose waiter was cancelled may come behind the next one: cursors never go back.
    statement = """INSERT INTO cursors VALUES (?, ?, ?, ?)
        ON CONFLICT DO UPDATE SET read_to = max(read_to, excluded.read_to), person = excluded.person"""
    file.executemany(statement, [(bot, channel, *row) for channel, row in rows.items()])
    file.executemany("DELETE FROM cursors WHERE (bot, chat) = (?, ?)", [(bot, channel) for channel in gone])


# Live messages in memory; what comes beyond is left to the history.
MAX_WAITING: Final = 2_000
# What no history tells of, with what waits besides; beyond it changes are lost, and commands are turned away.
MAX_CHANGES: Final = 2 * MAX_WAITING
_FULL: Final = "Too many commands are waiting. Try again in a few minutes."
_MAX_SEEN: Final = 10_000
_MAX_LOCATIONS: Final = 10_000
_TRIES: Final = 3
# The kind of answer that promises another one, and Discord's code where one was given already.
_LATER, _ALREADY = 5, 40060
# The kind of answer that is one, and the mark of what nobody else sees.
_AT_ONCE, _ALONE = 4, 64
# The kind of an interaction that is a pressed button, and the answer to it that changes nothing.
_PRESSED, _RESTS = 3, 6
Job = Callable[[], Awaitable[None]]


class GuildView(Protocol):
    """What the gateway told about the servers."""

    def guild_ids(self) -> Iterable[str] | None:
        """The servers that the bot is in; None until the gateway has told of all."""
        ...

    def own_roles(self, guild: str) -> frozenset[str]:
        """The role that Discord made for the bot on a server, where there is one."""
        ...

    def name_of(self, guild: str, number: str) -> str:
        """The name of a role or channel of a server; empty where it is not known."""
        ...

    def locate(self, channel: str) -> Location | None:
        """Where a channel of a server stands; None where it is not known."""
        ...

    def may_read(self, channel: str) -> bool | None:
        """Whether the bot may read the history of a channel; None where it is not known."""
        ...


@dataclass(frozen=True, slots=True)
class Tempo:
    """How long things take; tests are in a hurry.

    Args:
        deadline_s: until a connection must stand.
        pause_s: before the first new try; it doubles up to ``longest_pause_s``.
        defer_s: for the answer that an interaction must have within three seconds.
        guilds_s: without a further server after which the list counts as whole.
    """

    deadline_s: float = 60.0
    pause_s: float = 1.0
    longest_pause_s: float = 30.0
    defer_s: float = 2.5
    guilds_s: float = 0.5

    def pauses(self) -> Iterable[float]:
        """Yield the pauses between tries, without end."""
        pause_s = self.pause_s
        while True:
            yield pause_s
            pause_s = min(2 * pause_s, self.longest_pause_s)


class DiscordIngress:
    """Everything that is received passes here; its methods put it in line and return at once.

    A channel is read over REST before its first live event since a connection was lost: what was missed
    comes first. No other reading counts for that, since it may have ended before the gap did. Only reading
    over REST moves a cursor.

    Args:
        sleep: waits between tries.
    """

    def __init__(
        self,
        emit: Emit,
        rest: Rest,
        cursors: Cursors,
        *,
        me: str,
        view: GuildView,
        group: asyncio.TaskGroup,
        tempo: Tempo,
        sleep: Callable[[float], Awaitable[object]] = asyncio.sleep,
    ) -> None:
        self._emit = emit
        self._rest = rest
        self._cursors = cursors
        self._me = me
        self._view = view
        self._group = group
        self._tempo = tempo
        self._sleep = sleep
        self._lanes: KeyedLanes[Job] = KeyedLanes(_do, start=self._start_lane)
        # Channels that have no gap before their next live event.
        self._fresh: set[str] = set()
        # Sweeps that have not begun: who asks for one meanwhile gets the same.
        self._queued: dict[str, asyncio.Future[bool]] = {}
        # Ids of what was handed on: the history shows again what came live.
        self._seen: durable.BoundedDict[str, None] = durable.BoundedDict(_MAX_SEEN)
        self._parts: Parts[None] = Parts(self._ripe)
        # Id → channel of each that was read and is not emitted yet: the cursor stays before it.
        self._held: dict[str, str] = {}
        # Whether something was lost since there was room last.
        self._full = False
        self._locations: durable.BoundedDict[str, Location] = durable.BoundedDict(_MAX_LOCATIONS)
        # The messages from which threads began, until one of a thread was taken; None: there is none to tell.
        self._openings: durable.BoundedDict[str, Raw | None] = durable.BoundedDict(_MAX_LOCATIONS)

    def _start_lane(self, lane: Coroutine[Any, Any, None], channel: str) -> None:
        self._group.create_task(lane, name=f"discord-channel-{channel}")

    def close(self) -> None:
        """Let go of the parts that wait: the next run reads them again."""
        self._parts.close()

    def lost(self) -> None:
        """Note that events may have been missed."""
        self._fresh.clear()

    def message(self, raw: Raw) -> None:
        """Take a new message from the gateway."""
        channel = str(raw["channel_id"])
        if self._lanes.waiting >= MAX_WAITING:
            # Discord keeps it: the next event of the channel reads its history first.
            self._fresh.discard(channel)
            return
        self._follow(channel, str(raw.get("guild_id") or ""), partial(self._live, raw))

    def edited(self, raw: Raw) -> None:
        """Take a changed message from the gateway: the history does not tell of changes."""
        # Its links were unfolded: no person changed it.
        if not raw.get("edited_timestamp") or self._is_full("edit"):
            return
        job = partial(self._edited, raw)
        self._follow(str(raw["channel_id"]), str(raw.get("guild_id") or ""), job)

    def deleted(self, raw: Raw) -> None:
        """Take from the gateway that messages were deleted: the history tells of that neither."""
        if self._is_full("deletion"):
            return
        self._follow(str(raw["channel_id"]), str(raw.get("guild_id") or ""), partial(self._deleted, raw))

    def _is_full(self, kind: str) -> bool:
        """Say whether no more is kept in memory; the first that is lost is named in the log."""
        full = self._lanes.waiting >= MAX_CHANGES
        if full and not self._full:
            log.warning("changes.dropped", kind=kind, waiting=self._lanes.waiting)
        self._full = full
        return full

    def interaction(self, raw: Raw) -> None:
        """Take a command of the menu: promise an answer at once, then let it wait for its turn.

        A pressed button is only let go of: what it does is told in the chat. Where too much waits, whoever
        it was is told so at once.
        """
        location = interaction_location(raw)
        if self._is_full("interaction"):
            answer = {"type": _AT_ONCE, "data": {"content": _FULL, "flags": _ALONE}}
            self._group.create_task(self._answer(raw, answer), name=f"discord-interaction-{raw['id']}")
            return
        if raw["type"] == _PRESSED:
            rests = self._answer(raw, {"type": _RESTS})
            self._group.create_task(rests, name=f"discord-interaction-{raw['id']}")
            self._follow(location.channel, location.guild, partial(self._press, raw, location))
            return
        later = self._answer(raw, {"type": _LATER})
        promise = self._group.create_task(later, name=f"discord-interaction-{raw['id']}")
        self._follow(location.channel, location.guild, partial(self._command, raw, location, promise))

    def sweep(self, location: Location) -> asyncio.Future[bool]:
        """Read a channel from its cursor on, in its turn; the result says whether it was read to its end."""
        queued = self._queued.get(location.channel)
        if queued is not None:
            return queued
        done: asyncio.Future[bool] = asyncio.get_running_loop().create_future()
        self._queued[location.channel] = done
        self._lanes.put(location.channel, partial(self._sweep, location, done))
        return done

    async def _sweep(self, location: Location, done: asyncio.Future[bool]) -> None:
        # Who asks from now on may mean a message that this reading does not see.
        del self._queued[location.channel]
        swept = False
        try:
            swept = await self._read(location)
        finally:
            if not done.done():
                done.set_result(swept)

    def _follow(self, channel: str, guild: str, job: Job) -> None:
        if channel not in self._fresh:
            self._fresh.add(channel)
            self._lanes.put(channel, partial(self._catch_up, channel, guild))
        self._lanes.put(channel, job)

    async def _catch_up(self, channel: str, guild: str) -> None:
        """Read what was missed before a live event; where Discord does not let us, go on without."""
        pauses = iter(self._tempo.pauses())
        for _ in range(_TRIES):
            if await self._read(await self._locate(channel, guild)):
                return
            await self._sleep(next(pauses))

    async def _read(self, location: Location) -> bool:
        channel = location.channel
        try:
            after = self._cursors.start(channel)
            while True:
                page = await self._rest.history(channel, after)
                for raw in page:
                    await self._take(raw, location)
                    # Only behind what was emitted: a kill in between costs a repeat, which the queue knows.
                    after = int(raw["id"])
                    if channel not in self._held.values():
                        await self._cursors.advance(channel, after)
                if len(page) < PAGE:
                    break
        except RequestRefused as error:
            if error.status == 404:
                # A channel that was deleted would be asked for at every sweep.
                self._cursors.forget(channel)
            log.debug("channel.closed", channel=channel, status=error.status)
        except CredentialsRefused:
            raise
        except ChannelError as error:
            self._fresh.discard(channel)
            log.warning("channel.unread", channel=channel, error=str(error))
            return False
        await self._cursors.flush()
        return True

    async def _live(self, raw: Raw) -> None:
        location = await self._locate(str(raw["channel_id"]), str(raw.get("guild_id") or ""))
        await self._take(raw, location)

    async def _take(self, raw: Raw, location: Location) -> None:
        if raw.get("type") == OPENING:
            self._openings[location.channel] = raw.get("referenced_message")
            return
        found = read_message(raw, self._bot(location), location, self._rest.download)
        if isinstance(found, Arrival) and not found.unreadable and found.id not in self._seen:
            if found.quoted is None:
                found = replace(found, quoted=await self._opening(location))
            if await self._hand_on(found, location, raw.get("id")) and location.channel in self._openings:
                self._openings[location.channel] = None
            return
        await self._hand_on(found, location, raw.get("id"))

    async def _opening(self, location: Location) -> Quote | None:
        """Return the message from which a thread began; it lies in the thread's channel, under its id."""
        channel = location.channel
        if location.parent and channel not in self._openings:
            try:
                self._openings[channel] = await self._rest.message(location.parent, channel)
            except RequestRefused:
                # It began without one, or the message was deleted since.
                self._openings[channel] = None
            except CredentialsRefused:
                raise
            except ChannelError as error:
                log.warning("thread.opening_unread", channel=channel, error=str(error))
        return read_opening(self._openings.get(channel), self._bot(location), self._rest.download)

    async def _edited(self, raw: Raw) -> None:
        location = await self._locate(str(raw["channel_id"]), str(raw.get("guild_id") or ""))
        edit = read_edit(raw, self._bot(location), location, self._rest.download)
        await self._hand_on(edit, location, raw.get("id"))

    async def _deleted(self, raw: Raw) -> None:
        location = await self._locate(str(raw["channel_id"]), str(raw.get("guild_id") or ""))
        person = "" if location.guild else self._cursors.direct.get(location.channel, "")
        if not (location.guild or person):
            # Nobody was ever heard in this direct channel.
            return
        await self._emit_all(self._parts.flush(location.channel))
        for arrival in read_deletion(raw, location, person=person):
            await self._emit(arrival)

    async def _command(self, raw: Raw, location: Location, promise: asyncio.Task[bool]) -> None:
        deferred = await promise
        answered = await self._hand_on(read_interaction(raw, deferred=deferred), location, raw["id"])
        if deferred and not answered:
            place = {"application": raw["application_id"], "interaction": raw["token"]}
            await withdraw(self._rest, place)

    async def _press(self, raw: Raw, location: Location) -> None:
        await self._hand_on(read_interaction(raw, deferred=False), location, raw["id"])

    def _bot(self, location: Location) -> DiscordBot:
        if not location.guild:
            return DiscordBot(self._me)
        guild = location.guild
        return DiscordBot(self._me, self._view.own_roles(guild), partial(self._view.name_of, guild))

    async def _hand_on(self, arrival: Arrival | SkippedMessage, location: Location, id: object) -> bool:
        """Emit what came; return whether the chat will hear of it, or has heard."""
        if isinstance(arrival, SkippedMessage):
            if arrival.strange:
                log.warning("event.unreadable", kind=arrival.kind, id=str(id), reason=arrival.reason)
            return False
        if arrival.id in self._seen or arrival.id in self._held:
            return True
        if not location.guild or location.parent:
            await self._remember(location.channel, "" if location.guild else arrival.sender.id)
        self._held[arrival.id] = arrival.chat_id
        return await self._emit_all(self._parts.take(arrival, None))

    def _ripe(self, batch: Batch[None]) -> None:
        self._lanes.put(batch[0][0].chat_id, partial(self._emit_batch, batch))

    async def _emit_batch(self, batch: Batch[None]) -> None:
        await self._emit_all([batch])

    async def _emit_all(self, batches: list[Batch[None]]) -> bool:
        """Emit in order; return whether the chat will hear of the last one, or that one waits."""
        answered = True
        for arrival, _ in chain.from_iterable(batches):
            answered = await self._emit(arrival)
            self._seen[arrival.id] = None
            self._held.pop(arrival.id, None)
        return answered

    async def _remember(self, channel: str, person: str) -> None:
        """Note a direct channel or a thread before its first message is handed on.

        Nothing else would find the one again, nor the other once it is archived.
        """
        for pause_s in self._tempo.pauses():
            try:
                await self._cursors.remember(channel, person)
                break
            except ChannelError as error:
                log.error("channel.held_back", channel=channel, error=str(error))
                # Until it is on disk the message is not handed on: no sweep would ever look there.
                await self._sleep(pause_s)

    async def _locate(self, channel: str, guild: str) -> Location:
        """Find out whether a channel is a thread, and of which channel, however long Discord does not tell.

        Where a thread's channel alone is allowed, a message would be dismissed for good by a guess.
        """
        if not guild:
            return Location(channel)
        location = self._view.locate(channel) or self._locations.get(channel)
        pauses = iter(self._tempo.pauses())
        while location is None:
            try:
                location = location_of(await self._rest.channel(channel), guild)
                self._locations[channel] = location
            except CredentialsRefused:
                raise
            except (RequestRefused, KeyError, TypeError, ValueError):
                # It may be told at the next message, and is not kept.
                location = Location(channel, guild)
            except ChannelError as error:
                log.warning("channel.unlocated", channel=channel, error=str(error))
                await self._sleep(next(pauses))
        return location

    async def _answer(self, raw: Raw, answer: Raw) -> bool:
        """Tell Discord within its three seconds that an answer will come, a button may rest, or why not."""
        where = {"webhook_id": str(raw["id"]), "webhook_token": str(raw["token"])}
        path = "/interactions/{webhook_id}/{webhook_token}/callback"
        with suppress(TimeoutError):
            # Discord lets an interaction die after three seconds; the answer then goes to the channel itself.
            async with asyncio.timeout(self._tempo.defer_s):
                for pause_s in self._tempo.pauses():
                    try:
                        await self._rest.ask("POST", path, by_token=False, json=answer, **where)
                        return True
                    except RequestRefused as error:
                        # The answer to an earlier try was lost.
                        if error.code == _ALREADY:
                            return True
                        break
                    except ChannelError:
                        await self._sleep(pause_s / 10)
        log.warning("interaction.undeferred", id=str(raw["id"]))
        return False


async def _do(job: Job) -> None:
    await job()
