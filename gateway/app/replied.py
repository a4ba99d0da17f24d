"""Remembers to which channels replies went: RabbitMQ does not say which queues it has."""

from __future__ import annotations

import asyncio
import re
from pathlib import Path

import structlog

import durable
from channels.message import Inbound
from gateway.turns.replies import target
from session.transcript.key import SUBAGENTS

log = structlog.get_logger("replied")

_NAME = re.compile(r"[a-z][a-z0-9_]{0,31}")


class RepliedChannels:
    """One empty file for each channel in ``state/replied/``, so that processes need no lock to add theirs."""

    def __init__(self, state: Path) -> None:
        self._folder = state / "replied"
        self._noted: set[str] = set()

    def names(self) -> list[str]:
        """List the channels, by name."""
        try:
            return sorted(path.name for path in self._folder.iterdir() if _NAME.fullmatch(path.name))
        except FileNotFoundError:
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
        try:
            await asyncio.to_thread(self._write, self._folder / channel)
        # The reply itself is safe; only who asks for unserved replies misses it, until the next one.
        except OSError as error:
            self._noted.discard(channel)
            log.warning("channel.unnoted", channel=channel, error=str(error))

    def _write(self, path: Path) -> None:
        if not path.exists():
            durable.replace(path, b"")
