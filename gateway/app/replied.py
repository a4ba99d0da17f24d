"""Remembers to which channels replies went: RabbitMQ does not say which queues it has."""

from __future__ import annotations

import asyncio
import re
from pathlib import Path

import structlog

from channels.errors import ChannelError
from channels.message import Inbound
from channels.storage import change_rows, read_rows
from gateway.turns.replies import target
from session.transcript.key import SUBAGENTS

log = structlog.get_logger("replied")

_NAME = re.compile(r"[a-z][a-z0-9_]{0,31}")


class RepliedChannels:
    """The channels to which replies went, in the order of their names."""

    def __init__(self, state: Path) -> None:
        self._state = state
        self._noted: set[str] = set()

    def names(self) -> list[str]:
        """List the channels, by name; none where they cannot be read."""
        try:
            with read_rows(self._state) as file:
                return [name for (name,) in file.execute("SELECT channel FROM replied ORDER BY channel")]
        except ChannelError as error:
            log.warning("channels.unread", error=str(error))
            return []

    def news(self, inbound: Inbound) -> str | None:
        """Return the channel to which the answer of a letter goes, once; None where it is noted already."""
        channel = target(inbound)[1]
        if channel in self._noted or channel == SUBAGENTS or not _NAME.fullmatch(channel):
            return None
        # Before the write, so that letters that end meanwhile do not write it again.
        self._noted.add(channel)
        return channel

    async def note(self, channel: str) -> None:
        """Take note of a channel that ``news`` returned."""
        statement = "INSERT OR IGNORE INTO replied VALUES (?)"
        work = lambda file: file.execute(statement, (channel,)).rowcount  # noqa: E731
        try:
            await asyncio.to_thread(change_rows, self._state, work)
        # The reply itself is safe; only who asks for unserved replies misses it, until the next one.
        except ChannelError as error:
            self._noted.discard(channel)
            log.warning("channel.unnoted", channel=channel, error=str(error))
