"""A workspace with conversations that grow old, and what lets go of them."""

from __future__ import annotations

import asyncio
import os
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

from session.background.job_files import BackgroundJob, JobFiles
from session.background.retention import Retention
from session.memory.unconsolidated import UnconsolidatedReader
from session.store.store import Store
from session.transcript.key import SessionKey
from session.transcript.transcript import make_line
from tests.support.clock import Clock

START = datetime(2026, 1, 1, tzinfo=UTC)
ADA, BOB = SessionKey("telegram:1"), SessionKey("telegram:2")


def brought(workspace: Path, ref: str, **after: float) -> Path:
    """Put a file there as a message brought it so long after the start."""
    path = workspace / ref
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_bytes(b"...")
    at = (START + timedelta(**after)).timestamp()
    os.utime(path, (at, at))
    return path


class World:
    """Its retention keeps what is younger than 30 days; ``left`` and ``naps`` say what it asked for."""

    def __init__(self, folder: Path) -> None:
        self.clock = Clock(START)
        self.store = Store(folder, zone=UTC, clock=self.clock)
        self.jobs = JobFiles(folder / "state")
        self.left: list[tuple[str, str]] = []
        self.naps: list[float] = []
        self.retention = self.rules()

    def rules(self, *, days: float = 30, **more: Any) -> Retention:
        """Make a retention for this workspace."""
        return Retention(self.store, days=days, left=self._left, sleep=self._sleep, **more)

    async def _left(self, key: str, session_id: str) -> bool:
        self.left.append((key, session_id))
        self.jobs.keep(BackgroundJob(key, session_id))
        return True

    async def _sleep(self, seconds: float) -> None:
        self.naps.append(seconds)
        if len(self.naps) == 2:
            raise asyncio.CancelledError

    async def say(self, id_: str, key: SessionKey = ADA, *, answer: str = "re", **fields: Any) -> str:
        """Have somebody say something and be answered; return the session's ULID."""
        async with self.store.open(key) as session:
            at = self.clock.now.isoformat(timespec="microseconds")
            await session.append([make_line("user", id_, at, message_id=id_, **fields)])
            await session.append([make_line("assistant", answer, at, final=True, message_id=id_, **fields)])
            return session.session_id

    async def note(self) -> None:
        """Append a record of ours, which nobody said."""
        async with self.store.open(ADA) as session:
            at = self.clock.now.isoformat()
            await session.append([make_line("system", "", at, kind="note", edits="a")])

    async def end(self, key: SessionKey = ADA, *, owed: bool = False) -> None:
        """End the session, as ``/new`` does; memory has it then, unless it is ``owed``."""
        async with self.store.open(key) as session:
            ended = session.session_id
            await session.end()
        if not owed:
            await self.take_in(ended, key)

    async def ended(self, id_: str, key: SessionKey = ADA, **how: bool) -> str:
        """Have somebody say something and end the session; return its ULID."""
        session_id = await self.say(id_, key)
        await self.end(key, **how)
        return session_id

    async def take_in(self, session_id: str, key: SessionKey = ADA) -> None:
        """Have memory take in an ended session."""
        reader = UnconsolidatedReader(self.store)
        if (found := await reader.load(key, session_id)) is not None:
            await reader.move_pointer(key, found.mark(len(found.lines)))
        self.jobs.strike(BackgroundJob(key, session_id))

    async def sessions(self) -> dict[str, bool]:
        """Say of each session whether it is active."""
        return {row.id: row.active for row in await self.store.rows()}

    async def pruned(self, **how: Any) -> list[tuple[str, str]]:
        """Prune; return what was done to which session."""
        return [(step.do, step.session_id) for step in await self.retention.prune(**how)]
