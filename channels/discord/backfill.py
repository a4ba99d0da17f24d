"""Looks over REST for what the gateway did not tell: channels with news, each from its cursor on."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Iterable
from dataclasses import dataclass, field
from datetime import datetime, timedelta
from pathlib import Path
from typing import Final

import structlog

import durable
from channels import pairing
from channels.discord.ingress import OVERLAP, Cursors, DiscordIngress, GuildView
from channels.discord.messages import Location, Raw, location_of, snowflake_at
from channels.discord.rest import RequestRefused, Rest
from channels.errors import ChannelError, CredentialsRefused
from channels.tables import DiscordTable as Table

# Types of channels with messages: text, voice, announcements, stage. Threads are listed apart.
_WITH_MESSAGES: Final = frozenset({0, 2, 5, 13})
# Direct channels of one regular sweep: the newest, and others in turn.
_DIRECT_AT_ONCE: Final = 100
_OLD: Final = timedelta(days=7)
_PATIENCE_S: Final = 60.0
# The pause after a sweep that was not complete.
_AGAIN_S: Final = 5.0
log = structlog.get_logger("discord")


@dataclass(slots=True)
class _Found:
    """What one sweep is to read, whether every list could be had, and whether to try again soon."""

    locations: dict[str, Location] = field(default_factory=dict)
    listed: set[str] = field(default_factory=set)
    complete: bool = True
    soon: bool = False


class Sweeper:
    """Sweeps when it is asked to, and every ``sweep_s`` seconds once the gateway told of the servers.

    Args:
        state: the folder of our own files, where the paired people are.
        beat: told of each completed sweep.
        patience_s: how long the first sweep waits for the gateway.
    """

    def __init__(
        self,
        table: Table,
        state: Path,
        rest: Rest,
        cursors: Cursors,
        *,
        ingress: DiscordIngress,
        view: GuildView,
        beat: Callable[[], None],
        patience_s: float,
    ) -> None:
        self._table = table
        self._state = state
        self._rest = rest
        self._cursors = cursors
        self._ingress = ingress
        self._view = view
        self._beat = beat
        self._patience_s = patience_s
        self._wanted = asyncio.Event()
        self._whole = True
        # Everything after this id is looked at again.
        self._since = 0
        self._direct_from = 0
        # People to whom Discord opens no direct channel.
        self._strangers: set[str] = set()
        self._told: set[str] = set()

    def want(self) -> None:
        """Ask for a sweep of everything that may have been missed."""
        self._whole = True
        self._wanted.set()

    async def run(self) -> None:
        """Sweep until cancelled, the first time when it is wanted, or the gateway was away for long."""
        await durable.first_of(self._wanted.wait(), timeout_s=self._patience_s)
        while True:
            self._wanted.clear()
            whole, self._whole = self._whole, False
            pause_s = self._table.sweep_s
            if await self.sweep(whole=whole):
                self._whole = self._whole or whole
                pause_s = min(pause_s, _AGAIN_S)
            await durable.first_of(self._wanted.wait(), timeout_s=pause_s)

    async def sweep(self, *, whole: bool) -> bool:
        """Read every channel that has news.

        Args:
            whole: look at archived threads and every direct channel, too.

        Returns:
            Whether something did not answer and is to be tried again soon. Without the gateway's list of
            servers only direct channels are read.
        """
        began = self._rest.now()
        guilds = self._view.guild_ids() if self._table.groups != "off" else ()
        found = _Found(complete=guilds is not None)
        async with asyncio.TaskGroup() as group:
            for guild in guilds or ():
                group.create_task(self._look_into(guild, found), name="discord-sweep-guild")
            group.create_task(self._direct(found, whole=whole), name="discord-sweep-direct")
        if whole and guilds:
            await self._unlisted(found, began)
        swept = [self._ingress.sweep(location) for location in found.locations.values()]
        if swept:
            await asyncio.wait(swept, timeout=max(self._table.sweep_s, _PATIENCE_S))
        read = all(each.done() and each.result() for each in swept)
        complete = found.complete and read
        if complete:
            await self._cursors.swept(began)
            self._since = snowflake_at(began) - OVERLAP
            self._beat()
        log.debug("sweep.ended", channels=len(swept), complete=complete)
        return found.soon or not read

    async def _look_into(self, guild: str, found: _Found) -> None:
        channels = await self._listed(self._rest.guild_channels(guild), found)
        threads = await self._listed(self._rest.active_threads(guild), found)
        for raw in [*(each for each in channels if each.get("type") in _WITH_MESSAGES), *threads]:
            try:
                location = location_of(raw, guild)
                last = int(raw.get("last_message_id") or 0)
            except (KeyError, TypeError, ValueError):
                continue
            found.listed.add(location.channel)
            if self._has_news(location.channel, last):
                found.locations[location.channel] = location
                self._tell_unreadable(location.channel)

    async def _listed(self, asked: Awaitable[list[Raw]], found: _Found) -> list[Raw]:
        try:
            return await asked
        except CredentialsRefused:
            raise
        except RequestRefused as error:
            log.debug("guild.closed", status=error.status)
            found.complete = False
        except ChannelError as error:
            log.warning("sweep.held_up", error=str(error))
            # Without this the next sweep would begin behind what was not read now.
            found.complete, found.soon = False, True
        return []

    def _has_news(self, channel: str, last: int) -> bool:
        known = self._cursors.known.get(channel)
        if known is None:
            return last > self._cursors.start(channel)
        return last > known or (bool(self._since) and last > self._since)

    def _tell_unreadable(self, channel: str) -> None:
        """Say once where the bot may not read back; an empty history alone would not show it."""
        if self._view.may_read(channel) is False and channel not in self._told:
            self._told.add(channel)
            log.warning(
                "history.forbidden",
                channel=channel,
                hint="give the bot the permission Read Message History: without it, missed messages are lost",
            )

    async def _direct(self, found: _Found, *, whole: bool) -> None:
        remembered = sorted(self._cursors.direct, key=lambda each: -self._cursors.known.get(each, 0))
        if not whole and len(remembered) > _DIRECT_AT_ONCE:
            newest, others = remembered[: _DIRECT_AT_ONCE // 2], remembered[_DIRECT_AT_ONCE // 2 :]
            at = self._direct_from % len(others)
            self._direct_from += _DIRECT_AT_ONCE // 2
            remembered = newest + (others[at:] + others[:at])[: _DIRECT_AT_ONCE // 2]
        found.locations |= {channel: Location(channel) for channel in remembered}
        known = set(self._cursors.direct.values()) | self._strangers
        people = [each for each in await self._people() if each not in known]
        async with asyncio.TaskGroup() as group:
            for person in people:
                group.create_task(self._open(person, found), name="discord-sweep-person")

    async def _open(self, person: str, found: _Found) -> None:
        try:
            raw = await self._rest.open_direct(person)
            channel = str(int(raw["id"]))
            await self._cursors.remember(channel, person)
            found.locations[channel] = Location(channel)
        except CredentialsRefused:
            raise
        except RequestRefused as error:
            # Who shares no server with the bot is refused always: asking again would only use up its limits.
            self._strangers.add(person)
            log.info("direct.refused", person=person, error=str(error))
        except (ChannelError, KeyError, TypeError, ValueError) as error:
            log.warning("sweep.held_up", error=type(error).__name__)
            found.complete, found.soon = False, True

    async def _people(self) -> Iterable[str]:
        """Everybody who may write directly: listed, or paired."""
        listed = {each for each in self._table.allow_from if each.isascii() and each.isdecimal()}
        try:
            approved = await asyncio.to_thread(pairing.approved, self._state, "discord")
        except ChannelError as error:
            log.warning("pairing.unreadable", error=str(error))
            # Those who are listed must not wait for a file that is damaged.
            return sorted(listed)
        return sorted(listed | approved.people)

    async def _unlisted(self, found: _Found, now: datetime) -> None:
        """Add threads that were archived meanwhile: no list shows them, but their cursors name them."""
        newest = snowflake_at(now - _OLD)
        hidden = [
            channel
            for channel, at in self._cursors.known.items()
            if at > newest and channel not in found.listed and channel not in self._cursors.direct
        ]
        async with asyncio.TaskGroup() as group:
            for channel in hidden:
                group.create_task(self._look_up(channel, found), name="discord-sweep-thread")

    async def _look_up(self, channel: str, found: _Found) -> None:
        try:
            raw = await self._rest.channel(channel)
            location, last = location_of(raw), int(raw.get("last_message_id") or 0)
            if location.guild and self._has_news(channel, last):
                found.locations[channel] = location
        except CredentialsRefused:
            raise
        except RequestRefused as error:
            if error.status == 404:
                self._cursors.forget(channel)
        except (ChannelError, KeyError, TypeError, ValueError) as error:
            log.warning("sweep.held_up", error=type(error).__name__)
            found.complete, found.soon = False, True
