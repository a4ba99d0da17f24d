"""Lets go of what is old: ended sessions and former texts of memory; unused active sessions are archived."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Awaitable, Callable, Collection, Coroutine, Iterator
from dataclasses import dataclass, replace
from datetime import datetime, timedelta
from pathlib import Path
from typing import Any, Literal

import structlog

from session.background.job_files import BackgroundJob, JobFiles
from session.background.passing import Passing
from session.disk.threads import start_thread
from session.errors import NotNow, SessionError, StoreError, WorkspaceInUse
from session.memory.notes import VersionRules, prune_all
from session.store import archived, rollover
from session.store.listing import last_message_at, transcripts
from session.store.media import UNKNOWN, AwaitedFiles, let_go, named_in_files, sweep
from session.store.rollover import fresh_at
from session.store.store import Store
from session.transcript import archive
from session.transcript.archive import Archived
from session.transcript.key import SessionKey
from session.transcript.line import FOR_EVER_DAYS
from session.transcript.loading import load
from session.transcript.transcript import Transcript, decode

log = structlog.get_logger("retention")

EVERY_S = 24 * 3600.0
# How long a file of media/ stays that no line and no letter names.
UNNAMED_FOR = timedelta(days=7)
# How long an ended session that memory does not have yet is kept beyond its age.
AWAITED_S = 7 * EVERY_S


@dataclass(frozen=True, slots=True)
class Step:
    """One session that is too old: an ended one to ``delete``, or an active one to ``archive``.

    ``owed`` says of an ended one that memory lacks some of it, and that no job says so.
    """

    do: Literal["delete", "archive"]
    session_id: str
    key: str
    stem: str
    since: datetime
    owed: bool = False

    def as_dict(self) -> dict[str, Any]:
        """Return what other programs see."""
        return {"id": self.session_id, "key": self.key, "do": self.do, "since": self.since.isoformat()}


class Retention:
    """Keeps a workspace at the age that ``session.retention_days`` names.

    ``awaited`` may be set later by whoever has the queue.

    Args:
        store: the conversations.
        days: how old an ended session, how idle an active one may become; 0: any.
        left: makes the background work for a session durable that was archived.
        remembers: whether a model works ended sessions into memory; without one nothing waits for that.
        sleep: waits that many seconds.
        passing: says whether the clock is to be believed; None: always.
        awaited: names the files of letters that wait or are parked; None: nobody can say, and files that no
            line names are left alone.
        versions: how many former texts of memory are kept, and for how long.
    """

    def __init__(
        self,
        store: Store,
        *,
        days: float,
        left: Callable[[str, str], Awaitable[bool]],
        remembers: bool = True,
        sleep: Callable[[float], Coroutine[Any, Any, None]] = asyncio.sleep,
        passing: Passing | None = None,
        awaited: Callable[[], Awaitable[AwaitedFiles]] | None = None,
        versions: VersionRules | None = None,
    ) -> None:
        self._store = store
        self._versions = versions or VersionRules()
        self._days = min(days, FOR_EVER_DAYS)
        self._left = left
        self._remembers = remembers
        self._sleep = sleep
        self._passing = passing
        self.awaited = awaited
        self._jobs = JobFiles(store.layout.workspace / "state")

    async def run(self) -> None:
        """Prune now and every 24 hours, until cancelled."""
        while True:
            try:
                steps = await self.prune()
                if steps:
                    log.info("sessions.pruned", count=len(steps))
                await start_thread(self._prune_versions, name="disk-prune")
            except SessionError as error:
                log.warning("sessions.unpruned", error=str(error), hint=error.hint)
            # A fault in one round must not end those to come.
            except Exception:
                log.exception("retention.crashed")
            await self._sleep(EVERY_S)

    async def prune(self, *, dry_run: bool = False, sweeps: bool = True) -> list[Step]:
        """Archive, then delete what is too old; return what was done, or would be, in this order.

        Without a limit of age, no session is too old; files that nothing names are swept all the same.

        A session that is archived ended with its last message: where that is old enough, and memory need not
        take it in first, it is deleted right away.

        Args:
            dry_run: change nothing.
            sweeps: delete the files of ``media/``, too, that neither a line nor a letter names.

        Raises:
            NotNow: the clock leapt; nothing is concluded from it yet.
            WorkspaceInUse: another process has the workspace, and nothing can be done.
            StoreError: the folders cannot be read. One session that resists is logged and left.
        """
        if self._days <= 0 and (dry_run or not sweeps):
            return []
        if self._passing is not None:
            passing, now = self._passing, self._store.clock()
            await start_thread(lambda: passing.believe(now), name="disk-prune")
        if self._days <= 0:
            await self._sweep(await self._look_at_letters())
            return []
        oldest = self._store.clock() - timedelta(days=self._days)
        steps = await start_thread(lambda: self._idle(oldest), name="disk-prune")
        if dry_run:
            return await start_thread(lambda: self._foreseen(steps, oldest), name="disk-prune")
        done = [step for step in steps if await self._take(step, oldest)]
        # One that resisted may be closed, and its job not written: it is not deleted in the same round.
        resisted = {step.session_id for step in steps} - {step.session_id for step in done}
        old = await start_thread(lambda: self._old(oldest), name="disk-prune")
        old = [step for step in old if step.session_id not in resisted]
        if not old and not sweeps:
            return done
        await self._store.state.open()
        # The letters before the lines: one whose line is written meanwhile is found among the lines.
        awaited = await self._look_at_letters()
        done += [step for step in old if await self._take(step, oldest, awaited)]
        if sweeps:
            await self._sweep(awaited)
        if any(step.do == "delete" for step in done):
            await self._store.state.compact()
        return done

    async def _look_at_letters(self) -> AwaitedFiles:
        return await self.awaited() if self.awaited is not None else UNKNOWN

    async def _sweep(self, awaited: AwaitedFiles) -> None:
        before = self._store.clock() - UNNAMED_FOR
        await start_thread(lambda: sweep(self._store.layout, awaited, before=before), name="disk-prune")

    def _prune_versions(self) -> None:
        memory = self._store.layout.workspace / "memory"
        if gone := prune_all(memory, self._versions, clock=self._store.clock):
            log.info("versions.pruned", count=gone)

    def _foreseen(self, idle: list[Step], oldest: datetime) -> list[Step]:
        """Say what would be done if these sessions were archived."""
        old = [step for step in self._old(oldest, closed=[step.stem for step in idle]) if not step.owed]
        for step in idle:
            with _left_alone(step.stem):
                transcript = _read_at(self._store.layout.transcript(step.stem), step.stem)
                if transcript is None or self._is_owed(transcript):
                    continue
                ended_at = last_message_at(transcript)
                if ended_at is not None and ended_at < oldest:
                    old.append(replace(step, do="delete", since=ended_at))
        return [*idle, *sorted(old, key=lambda step: (step.stem, step.since))]

    def _idle(self, oldest: datetime) -> list[Step]:
        """Plan which active sessions are archived."""
        steps: list[Step] = []
        layout = self._store.layout
        for path in transcripts(layout):
            with _left_alone(path.name):
                transcript = _read_at(path, path.stem)
                since = fresh_at(transcript) if transcript is not None else None
                if transcript is not None and since is not None and since < oldest:
                    session_id = transcript.session_id
                    steps.append(Step("archive", session_id, transcript.key, path.stem, since))
        return steps

    def _old(self, oldest: datetime, *, closed: Collection[str] = ()) -> list[Step]:
        """Plan which ended sessions are deleted; those of ``closed`` stems have no open session any more."""
        steps: list[Step] = []
        layout = self._store.layout
        for stem in archive.stems(layout):
            # Which of them an open session needs nobody knows while that cannot be read.
            with _left_alone(stem):
                ended = [found for found in archive.of_stem(layout, stem) if found.ended_at < oldest]
                named = self._named(stem) if ended and stem not in closed else frozenset()
                for found in ended:
                    if found.session_id not in named:
                        steps += self._delete(found)
        return steps

    def _delete(self, found: Archived) -> Iterator[Step]:
        """Plan that an ended session is deleted, unless it is awaited, or nobody can say."""
        with _left_alone(found.path.name):
            transcript = _read_at(found.path, found.stem)
            if transcript is None:
                return
            key, session_id = transcript.key, found.session_id
            forgotten = self._is_owed(transcript) and not self._jobs.holds(BackgroundJob(key, session_id))
            step = Step("delete", session_id, key, found.stem, found.ended_at, owed=forgotten)
            if not self._awaited(step):
                yield step

    def _named(self, stem: str) -> frozenset[str]:
        """Return the ULIDs that the open session of a stem still needs, its own among them.

        Raises:
            StoreError: it cannot be read.
        """
        transcript = _read_at(self._store.layout.transcript(stem), stem)
        return frozenset(named_by(transcript)) if transcript is not None else frozenset()

    async def _take(self, step: Step, oldest: datetime, awaited: AwaitedFiles = UNKNOWN) -> bool:
        try:
            if step.do == "archive":
                return await self._archive(step, oldest)
            # Its process died, or the disk was full, before there was a job: now there is, and it waits.
            if step.owed and await self._left(step.key, step.session_id):
                log.info("session.owed", key=step.key, id=step.session_id)
                return False
            return await start_thread(lambda: self._remove(step, awaited), name="disk-prune")
        except WorkspaceInUse:
            # None of the others could be archived or deleted either.
            raise
        except NotNow as error:
            # The process that works on the conversation does it.
            log.debug("session.unpruned", key=step.key, id=step.session_id, error=str(error))
            return False
        except (SessionError, OSError) as error:
            log.warning("session.unpruned", key=step.key, id=step.session_id, error=str(error))
            return False

    async def _archive(self, step: Step, oldest: datetime) -> bool:
        async with self._store.open_unasked(SessionKey(step.key)) as session:
            since = fresh_at(session.transcript)
            if session.session_id != step.session_id or since is None or since >= oldest:
                return False
            closed = await session.change(
                lambda *writers: rollover.close(*writers, of=step.session_id, ended=self._ended_at)
            )
        if closed is None:
            return False
        await self._left(step.key, closed)
        return True

    def _remove(self, step: Step, awaited: AwaitedFiles) -> bool:
        store = self._store
        paths = [each.path for each in archive.of_stem(store.layout, step.stem)]
        files = named_in_files(path for path in paths if step.session_id in path.name)
        gone = archived.delete(
            store.state,
            store.layout,
            step.key,
            step.stem,
            step.session_id,
            unless=lambda: step.session_id in self._named(step.stem) or self._awaited(step),
        )
        if gone:
            store.forget(SessionKey(step.key))
            let_go(store.layout, files, awaited, now=store.clock())
        return gone

    def _awaited(self, step: Step) -> bool:
        """Whether its work into memory lies ahead still: the model was away, or the budget used up."""
        return self._remembers and self._jobs.awaits(step.key, step.session_id, for_s=AWAITED_S)

    def _is_owed(self, transcript: Transcript) -> bool:
        """Whether memory will have to take something in before a session can be deleted."""
        return self._remembers and transcript.last_consolidated < len(transcript.messages)

    def _ended_at(self, transcript: Transcript) -> datetime | None:
        last = last_message_at(transcript)
        return None if last is None else min(last, self._store.clock())


def named_by(transcript: Transcript) -> Iterator[str]:
    """Yield the ULIDs of the sessions that an open one needs: its own, and one whose summary it holds."""
    yield transcript.session_id
    for at in transcript.index.records:
        name = archive.previous_in(decode(transcript.messages[at]))
        if name is not None:
            yield archive.session_in(name)


def _read_at(path: Path, stem: str) -> Transcript | None:
    """Read a session; None where there is none, but not where it cannot be read (StoreError)."""
    read = load(path, stem)
    return read[0] if read is not None else None


@contextlib.contextmanager
def _left_alone(name: str) -> Iterator[None]:
    """Go on behind what cannot be read: it stays as it is, and does not hold up the others."""
    try:
        yield
    except (StoreError, OSError) as error:
        log.warning("session.unreadable", file=name, error=str(error))
