"""Lets go of what is old: ended sessions are deleted, active ones that nobody uses are archived."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Coroutine, Iterator
from dataclasses import dataclass
from datetime import datetime, timedelta
from pathlib import Path
from typing import Any, Literal

import structlog

from session import archive, boundary, ended
from session.archive import Archived
from session.errors import SessionError, StoreError
from session.fence import Fence
from session.hop import start_thread
from session.idle import fresh_at
from session.jobfiles import JobFiles
from session.key import SessionKey
from session.listing import transcripts
from session.loading import load
from session.store import Store
from session.transcript import Transcript, decode

log = structlog.get_logger("retention")

EVERY_S = 24 * 3600.0
AWAITED_S = 7 * EVERY_S  # how long an ended session that memory does not have yet is kept beyond its age


@dataclass(frozen=True, slots=True)
class Step:
    """One session that is too old: an ended one to ``delete``, or an active one to ``archive``."""

    do: Literal["delete", "archive"]
    session_id: str
    key: str
    stem: str
    since: datetime

    def as_dict(self) -> dict[str, Any]:
        """Return what other programs see."""
        return {"id": self.session_id, "key": self.key, "do": self.do, "since": self.since.isoformat()}


class Retention:
    """Keeps a workspace at the age that ``session.retention_days`` names.

    Args:
        store: the conversations.
        days: how old an ended session, how idle an active one may become; 0: any.
        left: makes the background work for a session durable that was archived.
        sleep: waits that many seconds.
    """

    def __init__(
        self,
        store: Store,
        *,
        days: float,
        left: Callable[[str, str], Awaitable[bool]],
        sleep: Callable[[float], Coroutine[Any, Any, None]] = asyncio.sleep,
    ) -> None:
        self._store = store
        self._days = days
        self._left = left
        self._sleep = sleep
        self._jobs = JobFiles(store.layout.workspace / "state")

    async def run(self) -> None:
        """Prune now and every 24 hours, until cancelled; without a limit of age there is nothing to do."""
        while self._days > 0:
            try:
                steps = await self.prune()
                if steps:
                    log.info("sessions.pruned", count=len(steps))
            except SessionError as error:
                log.warning("sessions.unpruned", error=str(error), hint=error.hint)
            except Exception:  # one round ends here
                log.exception("retention.crashed")
            await self._sleep(EVERY_S)

    async def prune(self, *, dry_run: bool = False) -> list[Step]:
        """Delete and archive what is too old; return what was done, or would be.

        Raises:
            StoreError: the folders cannot be read. One session that resists is logged and left.
        """
        if self._days <= 0:
            return []
        oldest = self._store.clock() - timedelta(days=self._days)
        steps = await start_thread(lambda: self._plan(oldest), name="disk-prune")
        if dry_run:
            return steps
        return [step for step in steps if await self._take(step, oldest)]

    def _plan(self, oldest: datetime) -> list[Step]:
        steps: list[Step] = []
        layout = self._store.layout
        for path in transcripts(layout):
            transcript = _read_at(path, path.stem)
            if transcript is None:
                continue
            since = fresh_at(transcript)
            if since is not None and since < oldest:
                session_id = transcript.session_id
                steps.append(Step("archive", session_id, transcript.key, path.stem, since))
        named: dict[str, frozenset[str]] = {}
        for found in archive.everywhere(layout):
            if found.ended_at < oldest:
                if found.stem not in named:
                    named[found.stem] = self._named(found.stem)
                if found.session_id not in named[found.stem]:
                    steps.append(self._delete(found))
        return [step for step in steps if step.do == "archive" or not self._awaited(step)]

    def _delete(self, found: Archived) -> Step:
        transcript = _read_at(found.path, found.stem)
        key = transcript.key if transcript is not None else ""
        return Step("delete", found.session_id, key, found.stem, found.ended_at)

    def _named(self, stem: str) -> frozenset[str]:
        """Return the ULIDs that the open session of a stem still needs, its own among them."""
        transcript = _read_at(self._store.layout.transcript(stem), stem)
        return frozenset(named_by(transcript)) if transcript is not None else frozenset()

    async def _take(self, step: Step, oldest: datetime) -> bool:
        try:
            if step.do == "archive":
                return await self._archive(step, oldest)
            return await start_thread(lambda: self._remove(step), name="disk-prune")
        except SessionError as error:
            log.warning("session.unpruned", key=step.key, id=step.session_id, error=str(error))
            return False

    async def _archive(self, step: Step, oldest: datetime) -> bool:
        async with self._store.open(SessionKey(step.key)) as session:
            since = fresh_at(session.transcript)
            if session.session_id != step.session_id or since is None or since >= oldest:
                return False
            closed = await session.change(lambda *hands: boundary.close(*hands, of=step.session_id))
        if closed is None:
            return False
        await self._left(step.key, closed)
        return True

    def _remove(self, step: Step) -> bool:
        store = self._store
        fence = Fence(store.layout, step.stem, owner=store.owner)
        return ended.delete(
            fence,
            store.layout,
            step.stem,
            step.session_id,
            unless=lambda: step.session_id in self._named(step.stem) or self._awaited(step),
        )

    def _awaited(self, step: Step) -> bool:
        """Whether its work into memory lies ahead still: the model was away, or the budget used up."""
        return self._jobs.awaits(step.key, step.session_id, for_s=AWAITED_S)


def named_by(transcript: Transcript) -> Iterator[str]:
    """Yield the ULIDs of the sessions that an open one needs: its own, the one before, one it continues."""
    yield transcript.session_id
    previous = transcript.inner.get("previous_session")
    if isinstance(previous, str):
        yield previous
    for at in transcript.index.records:
        name = archive.previous_in(decode(transcript.messages[at]))
        if name is not None:
            yield archive.session_in(name)


def _read_at(path: Path, stem: str) -> Transcript | None:
    try:
        read = load(path, stem)
    except StoreError as error:
        log.warning("session.unreadable", file=path.name, error=str(error))
        return None
    return read[0] if read is not None else None
