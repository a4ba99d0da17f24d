"""How far each channel of Discord was read (``state/discord.json``): often behind, which is harmless."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from datetime import datetime, timedelta
from pathlib import Path
from typing import Any, Final

import structlog

from channels import state_file
from channels.discord.messages import instant_of, snowflake_at
from channels.errors import ChannelError
from channels.message import now_text

# Ids are made on many machines: up to ten seconds are looked at again.
OVERLAP: Final = 10_000 << 22
SAVE_EVERY_S: Final = 0.3
KEEP: Final = timedelta(days=30)
_AHEAD: Final = timedelta(seconds=1)
MAX_DIRECT: Final = 2_000
# A cancelled save goes on in its thread: the next one waits for it.
_writing = threading.Lock()
log = structlog.get_logger("discord")


@dataclass(slots=True)
class _Book:
    """What the file holds of one bot; ``direct`` is the person of each direct channel."""

    first_start: datetime
    swept_at: datetime | None = None
    cursors: dict[str, int] = field(default_factory=dict)
    direct: dict[str, str] = field(default_factory=dict)

    def as_json(self) -> dict[str, Any]:
        return {
            "first_start": now_text(self.first_start),
            "swept_at": now_text(self.swept_at) if self.swept_at else None,
            "cursors": {channel: str(at) for channel, at in self.cursors.items()},
            "direct": dict(self.direct),
        }


class Cursors:
    """One bot's cursors. A cursor moves only past what was emitted; only the sweep moves it."""

    def __init__(self, path: Path, bot: str, book: _Book, rest: Mapping[str, Any]) -> None:
        self._path = path
        self._bot = bot
        self._book = book
        self._rest = dict(rest)
        # What the disk holds; only what differs from it is written.
        self._written = book.as_json()
        self._saving = asyncio.Lock()
        self._unsaved = False
        self._saved_at = 0.0
        self._refused = False

    @classmethod
    async def open(cls, state: Path, bot: str, clock: Callable[[], datetime]) -> Cursors:
        """Read the bot's cursors; its very first start is written down before anything is received.

        Raises:
            NewerFile: a newer version of this program wrote the file.
            ChannelError: the file is damaged, or cannot be written.
        """
        path = cursor_file(state)
        content = await asyncio.to_thread(_load, path)
        bots = content.get("bots", {})
        try:
            others = {str(other): each for other, each in bots.items() if other != bot}
            known = _read(bots[bot]) if bot in bots else None
        except (AttributeError, KeyError, TypeError, ValueError) as error:
            raise ChannelError(
                f"{path.name} is damaged",
                hint=f"repair {path}, or move it away: messages that arrived meanwhile are then lost",
            ) from error
        now = clock()
        # A clock that was ahead wrote it: believed, it would hide all that comes until then.
        ahead = known is not None and known.first_start > now + _AHEAD
        if known is not None and ahead:
            known.first_start = now
        cursors = cls(path, bot, known or _Book(now), {**content, "bots": others})
        if known is None or ahead:
            # It is written before anything is received: after a kill the next start is no first one.
            log.info("discord.first_start", at=now_text(now))
            await cursors._save()
        return cursors

    @property
    def direct(self) -> Mapping[str, str]:
        """The direct channels that were ever heard of, each with its person."""
        return self._book.direct

    @property
    def known(self) -> Mapping[str, int]:
        """The id up to which each channel was read."""
        return self._book.cursors

    def start(self, channel: str) -> int:
        """Return the id after which a channel is to be read; never before the first start."""
        since = snowflake_at(self._book.swept_at or self._book.first_start)
        return max(snowflake_at(self._book.first_start), self._book.cursors.get(channel, since) - OVERLAP)

    async def advance(self, channel: str, id: int) -> None:
        """Move a cursor forward; it reaches the disk within a moment."""
        if id > self._book.cursors.get(channel, 0):
            self._book.cursors[channel] = id
            self._unsaved = True
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
        kind = "direct" if person else "cursors"
        if channel in self._written[kind]:
            return
        self._book.cursors.setdefault(channel, self.start(channel))
        if person:
            self._book.direct[channel] = person
        self._unsaved = True
        await self._save(lambda: channel in self._written[kind])

    async def swept(self, began: datetime) -> None:
        """Note that everything written before ``began`` was emitted, wherever the bot can read."""
        self._book.swept_at = max(began, self._book.swept_at or began)
        self._let_go(began)
        self._unsaved = True
        await self.flush()

    def forget(self, channel: str) -> None:
        """Drop a channel that is not there any more."""
        self._unsaved |= self._book.cursors.pop(channel, None) is not None
        self._unsaved |= self._book.direct.pop(channel, None) is not None

    async def flush(self) -> None:
        """Write what moved; a disk that refuses costs repeats, so it is only logged."""
        try:
            await self._save(lambda: not self._unsaved)
            self._refused = False
        except ChannelError as error:
            if not self._refused:
                log.warning("cursors.refused", error=str(error))
            self._refused = True

    async def _save(self, done: Callable[[], bool] = lambda: False) -> None:
        """Write the file, unless another save has ``done`` what was wanted meanwhile."""
        async with self._saving:
            if done():
                return
            self._unsaved = False
            own = self._book.as_json()
            content = {**self._rest, "v": state_file.VERSION, "bots": {**self._rest["bots"], self._bot: own}}
            try:
                await asyncio.to_thread(_store, self._path, content)
            except ChannelError:
                self._unsaved = True
                raise
            finally:
                self._saved_at = asyncio.get_running_loop().time()
            self._written = own

    def _let_go(self, now: datetime) -> None:
        """Forget channels that were silent for long; what they hear next is later than this sweep."""
        book, before = self._book, snowflake_at(now - KEEP)
        silent = [each for each, at in book.cursors.items() if at < before and each not in book.direct]
        for channel in silent:
            del book.cursors[channel]
        quiet = sorted(book.direct, key=lambda each: book.cursors.get(each, 0))
        for channel in quiet[: max(0, len(quiet) - MAX_DIRECT)]:
            self.forget(channel)


def cursor_file(state: Path) -> Path:
    """Return the path of the file."""
    return state / "discord.json"


def _load(path: Path) -> dict[str, Any]:
    with _writing:
        return state_file.read(path)


def _store(path: Path, content: Mapping[str, Any]) -> None:
    with _writing:
        state_file.write(path, content)


def _read(raw: Mapping[str, Any]) -> _Book:
    swept = raw.get("swept_at")
    book = _Book(
        datetime.fromisoformat(raw["first_start"]),
        datetime.fromisoformat(swept) if swept else None,
        {str(channel): int(at) for channel, at in raw.get("cursors", {}).items()},
        {str(channel): str(person) for channel, person in raw.get("direct", {}).items()},
    )
    if book.first_start.tzinfo is None or (book.swept_at and book.swept_at.tzinfo is None):
        raise ValueError("a time without zone")
    for at in book.cursors.values():
        instant_of(at)
    return book
