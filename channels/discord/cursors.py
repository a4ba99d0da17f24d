"""How far each channel of Discord was read: often behind, which is harmless."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Mapping
from datetime import datetime, timedelta
from functools import partial
from pathlib import Path
from sqlite3 import Connection
from typing import Final

import structlog

from channels.discord.messages import snowflake_at
from channels.errors import ChannelError
from channels.rows import change_rows, first_start, from_ms, read_rows, to_ms

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
