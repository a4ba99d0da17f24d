"""Background work that survives a restart: consolidation, summaries and names of sessions.

What follows a turn needs no record: it is due again after the next one. An ended session is due once, so its
jobs are files in ``state/jobs/``, there before ``/new`` is answered: one is gone when memory holds the whole
session, the other when its summary is written. A name that a turn has asked for gets a file when its session
ends or its process does, so that one of a single exchange is named, too. With a model that cannot do it
(``echo``) the files wait until one is configured that can.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Coroutine
from datetime import datetime, timedelta
from functools import partial
from typing import Any

import structlog

import durable
from durable import BoundedDict, first_of
from session.background.due import Calm, Due
from session.background.fact_timers import FactTimers
from session.background.job_files import BackgroundJob, JobFiles
from session.background.report import Report, sizes
from session.background.waiting import Waiting
from session.disk.threads import start_thread
from session.errors import ModelAway, NewerFormat, NotNow, SessionError, loggable
from session.memory.consolidation import MemoryNotes
from session.memory.fact_extraction import FactExtraction
from session.memory.notes import Notes
from session.memory.titles import SessionTitles
from session.store.session import View
from session.store.store import ELSEWHERE, Store
from session.transcript.agent import agent_in
from session.transcript.line import is_ulid

log = structlog.get_logger("jobs")

# Jobs side by side; those of one scope go one after the other, and wait without a place.
AT_ONCE = 4
# How often to look for jobs that another process left.
LOOK_S = 300.0
FIRST_WAIT_S, LONGEST_WAIT_S = 15.0, 600.0
# What no model can do, since its agent has none, is looked at again.
PLAIN_S = 3600.0
# Sessions of which is remembered that a name was asked for.
NAMED_MAX = 10_000


class Background:
    """Does the jobs, each once over all processes, and keeps those that cannot be done yet.

    Args:
        memory: does consolidations.
        store: the conversations, for summaries and names.
        files: where jobs are kept that this process may not live to do.
        clock: the time now, aware.
        sleep: waits that many seconds.
        facts: draws facts from sessions that are idle; None: none are drawn.
        quiet_s: what a turn asks for begins when none has ended for so long, or half a minute later.
    """

    def __init__(
        self,
        memory: MemoryNotes,
        *,
        store: Store,
        files: JobFiles,
        facts: FactExtraction | None = None,
        clock: Callable[[], datetime] = durable.now,
        sleep: Callable[[float], Coroutine[Any, Any, None]] = asyncio.sleep,
        quiet_s: float = 0.0,
    ) -> None:
        self._memory = memory
        self._titles, self._store = SessionTitles(memory, store), store
        self._files = files
        self._clock = clock
        self._sleep = sleep
        self._facts = facts
        idle_s = facts.rules.idle_s if facts is not None else 0.0
        self._timers = FactTimers(files, idle_s=idle_s, clock=clock, sleep=sleep)
        self._calm = Calm(quiet_s, clock)
        self._waiting = Waiting(self._calm)
        self._named: BoundedDict[str, None] = BoundedDict(NAMED_MAX)
        self._changed = asyncio.Event()
        self._ended = asyncio.Event()
        # Set when the jobs that other processes left have been looked for.
        self.looked = asyncio.Event()
        self._away_until: datetime | None = None
        self._away_tries = 0
        self._last_error = ""

    def turn_ended(self, session: View) -> None:
        """See whether enough messages wait, and whether a name is missing; what is due stays so."""
        self._calm.disturb()
        rules = self._memory.of(agent_in(session.metadata)).rules
        if len(session) - session.last_consolidated >= rules.window:
            self._put(BackgroundJob(session.key), gives_way=True)
        unnamed = not session.metadata.get("name") and session.session_id not in self._named
        if unnamed and session.transcript.index.finals:
            self._put(BackgroundJob(session.key, session.session_id, "name"), gives_way=True)
        if self._facts is not None and self._facts.is_due(session):
            self._timers.begin(session.key, session.session_id)

    async def ended(self, session: View) -> bool:
        """Make the work on the session before this one durable; doing it twice does no harm.

        Returns:
            Whether there was one.

        Raises:
            StoreError: it could not be made durable.
        """
        previous = session.metadata.get("previous_session")
        if not is_ulid(previous):
            return False
        if self._facts is not None:
            # The process that began its timer may have died before there was a file.
            self._timers.begin(session.key, str(previous))
        return await self.left(session.key, str(previous))

    async def left(self, key: str, session_id: str) -> bool:
        """Make the work on an ended session durable, as ``ended`` does, by its ULID.

        Raises:
            StoreError: it could not be made durable.
        """
        unconsolidated = await self._memory.unconsolidated.load(key, session_id)
        if unconsolidated is None or not unconsolidated.ended:
            return False
        if unconsolidated.before is not None and await self._forgotten(key, unconsolidated.before):
            await self._keep(key, unconsolidated.before, lines=True)
        await self._keep(key, session_id, lines=bool(unconsolidated.lines))
        return True

    async def _forgotten(self, key: str, session_id: str) -> bool:
        """Say whether nobody has seen to a session that a compaction ended: its process died then."""
        if BackgroundJob(key, session_id) in self._waiting:
            return False
        unconsolidated = await self._memory.unconsolidated.load(key, session_id)
        return unconsolidated is not None and unconsolidated.ended and bool(unconsolidated.lines)

    async def _keep(self, key: str, session_id: str, *, lines: bool) -> None:
        jobs = [BackgroundJob(key, session_id, "summary")]
        if lines:
            jobs.append(BackgroundJob(key, session_id))
        if (name := BackgroundJob(key, session_id, "name")) in self._waiting:
            jobs.append(name)
        for job in jobs:
            await start_thread(partial(self._files.keep, job), name="job")
            self._put(job)
            self._waiting[job].again = self._waiting.running(job)

    async def aclose(self) -> None:
        """Leave behind what was asked for by turns that may have been the last of their sessions."""
        # Listed here and not in the thread, since jobs under way may end meanwhile.
        # One that was named and cut off behind that has nothing left to do.
        names = [job for job in self._waiting if job.kind == "name"]
        unnamed = [job for job in names if job.session_id not in self._named]

        def keep() -> None:
            for job in unnamed:
                self._files.keep(job)

        await self._timers.keep()
        try:
            await start_thread(keep, name="job")
        except (SessionError, OSError) as error:
            log.warning("jobs.unkept", error=str(error))

    async def run(self) -> None:
        """Do jobs until cancelled, those that an earlier process left among them.

        Raises:
            NewerFormat: a newer version wrote the budget or a job.
        """
        try:
            await self._memory.budget.load()
            await asyncio.to_thread(self._files.left)
            await self._memory.settle()
        except NewerFormat:
            raise
        except (SessionError, OSError) as error:
            log.warning("jobs.unread", error=str(error))
        async with asyncio.TaskGroup() as group:
            group.create_task(self._look_around(), name="jobs left behind")
            group.create_task(self._timers.run(self._put), name="facts that come due")
            while True:
                self._changed.clear()
                # One moment for both: what came due between two would be neither begun nor waited for.
                now = self._clock()
                for job in self._take(now):
                    group.create_task(self._do(job), name=job.kind)
                await self._next_change(now)

    async def at_once(self, key: str) -> Report:
        """Do what there is to do for a key, for a person who waits: nothing is put off.

        Raises:
            ModelAway: the model cannot be reached.
            NotNow: its answer was of no use, or another process works on this memory.
            StoreError: the disk refused.
        """
        notes = Notes((await self._memory.scope_of(key)).memory)
        before = await asyncio.to_thread(sizes, notes)
        left = await asyncio.to_thread(self._files.left)
        ended = [job for job in left if job.key == key and job.kind == "consolidate"]
        messages = raw = calls = 0
        for job in [*ended, BackgroundJob(key)]:
            # That of an agent without a language model waits until it has one.
            if job in ended and (await self._memory.of_session(key, job.session_id)).model.plain:
                continue
            is_new = await asyncio.to_thread(self._files.watch, job)
            done = await self._memory.consolidate(key, session_id=job.session_id, asked=True)
            await start_thread(partial(self._files.strike, job, unless=is_new), name="job")
            messages, raw, calls = messages + done.messages, raw + done.raw, calls + done.calls
        after = await asyncio.to_thread(sizes, notes)
        return Report(messages, raw, calls, before[0], after[0], before[1], after[1])

    async def settled(self) -> None:
        """Return when nothing runs, and nothing is to run before the clock moves."""
        # What was just put in is begun first.
        await asyncio.sleep(0)
        while self._waiting.running_count() or self._ready(self._clock()):
            self._ended.clear()
            await self._ended.wait()

    def shown(self) -> dict[str, Any]:
        """Return what ``status`` shows."""
        idle = [due for _, due in self._waiting.idle()]
        next_at = min((due.at for due in idle), default=None)
        now = self._clock()
        return {
            "waiting": len(idle),
            "facts_waiting": len(self._timers),
            "running": self._waiting.running_count(),
            "next_at": next_at.isoformat() if next_at is not None and next_at > now else None,
            "reasons": sorted({due.reason for due in idle if due.reason}),
            "last_error": self._last_error,
            "consolidated": dict(self._memory.totals),
            "written": dict(self._titles.totals),
            "budget": self._memory.budget.shown(),
        }

    # -- choosing ----------------------------------------------------------------------------------------

    def _put(self, job: BackgroundJob, *, gives_way: bool = False) -> None:
        if job not in self._waiting:
            self._waiting.put(job, self._calm.due(gives_way=gives_way))
            self._changed.set()

    def _ready(self, now: datetime) -> bool:
        away = self._away_until is not None and self._away_until > now
        return not away and self._waiting.any_ready(now)

    def _take(self, now: datetime) -> list[BackgroundJob]:
        if not self._ready(now):
            return []
        # After an outage one job goes ahead, to see whether the model is back.
        places = AT_ONCE if self._away_until is None else 1
        return self._waiting.take(now, places - self._waiting.running_count())

    async def _has_scope_alone(self, job: BackgroundJob, due: Due) -> bool:
        """Say whether no other job writes where this one will; if one does, it gives up its place."""
        due.scope = ""
        scope = (await self._memory.scope_of(job.key, job.session_id)).name
        # From here to the return nothing else runs, so that two cannot both find it free.
        due.scope = scope
        return scope not in self._waiting.busy(but=job)

    async def _next_change(self, now: datetime) -> None:
        """Wait until something was put in or has ended, or what is not due at ``now`` is."""
        away = self._away_until if self._away_until is not None and self._away_until > now else None
        until = away or self._waiting.next_start(now)
        waits: list[Coroutine[Any, Any, object]] = [self._changed.wait()]
        if until is not None:
            waits.append(self._sleep((until - now).total_seconds()))
        await first_of(*waits)

    async def _look_around(self) -> None:
        await self._look_once()
        if self._facts is not None:
            await self._timers.recover(self._facts)
        self.looked.set()
        while True:
            await self._sleep(LOOK_S)
            await self._look_once()

    async def _look_once(self) -> None:
        try:
            await self._memory.settle()
            left = await asyncio.to_thread(self._files.left)
            self._forget_done_elsewhere(left)
            for job in left:
                if job.kind != "facts":
                    self._put(job)
                elif self._facts is not None and job not in self._waiting:
                    self._timers.take_over(job, job.due or self._clock())
        except (SessionError, OSError) as error:
            log.warning("jobs.unread", error=str(error))

    def _forget_done_elsewhere(self, left: list[BackgroundJob]) -> None:
        # One without a session's id, and a name, have no file yet.
        filed = [(job, due) for job, due in self._waiting.idle() if job.session_id and job.kind != "name"]
        known = set(left)
        for job, due in filed:
            if due.reason == ELSEWHERE and job not in known:
                self._waiting.forget(job)

    # -- doing -------------------------------------------------------------------------------------------

    async def _do(self, job: BackgroundJob) -> None:
        """Do one job; what cannot be done now is put off, and nothing that it raises ends the others."""
        due = self._waiting[job]
        try:
            if not await self._has_scope_alone(job, due):
                return
            await self._work(job)
        except NotNow as error:
            self._put_off(job, due, error.until, error.reason, error)
        except ModelAway as error:
            self._away(error)
            self._put_off(job, due, self._after(due.tries), "away", error)
            # It goes behind the others: that of another agent, which has a model of its own, is tried next.
            due.latest = due.at
        except (SessionError, OSError) as error:
            self._put_off(job, due, self._after(due.tries), "error", error)
        # A fault in one job ends that job, not the others.
        except Exception as error:
            log.exception("job.crashed", key=job.key)
            self._put_off(job, due, self._after(due.tries), "error", error)
        else:
            self._away_until, self._away_tries, self._last_error = None, 0, ""
            self._waiting.done(job)
            if due.again:
                self._put(job)
        finally:
            if self._waiting.running(job):
                self._waiting.back(job)
            self._ended.set()
            self._changed.set()

    async def _work(self, job: BackgroundJob) -> None:
        # Every process finds the files of all: what it claims would fence off a turn that runs elsewhere.
        self._store.check_serves(job.key)
        if (await self._memory.of_session(job.key, job.session_id)).model.plain:
            until = self._clock() + timedelta(seconds=PLAIN_S)
            raise NotNow("its agent has no language model", reason="plain", until=until)
        # Its session may be opened again and end again meanwhile: what is written then is of the next run.
        is_new = await asyncio.to_thread(self._files.watch, job)
        if job.kind == "consolidate" or job.session_id is None:
            await self._memory.consolidate(job.key, session_id=job.session_id)
        elif job.kind == "summary":
            await self._titles.summarise(job.key, job.session_id)
        elif job.kind == "facts":
            await self._draw_facts(job, job.session_id)
            return
        else:
            await self._titles.name(job.key, job.session_id)
            self._named[job.session_id] = None
        await start_thread(partial(self._files.strike, job, unless=is_new), name="job")

    async def _draw_facts(self, job: BackgroundJob, session_id: str) -> None:
        """Draw the facts of a session, or set its timer anew where people still write."""
        if self._facts is None:
            return
        later = await self._facts.extract(job.key, session_id)
        if later is None:
            await start_thread(partial(self._files.strike, job), name="job")
            # A turn that ended before the file was gone relies on it, in whichever process.
            later = await self._facts.idle_at(job.key, session_id)
        if later is not None:
            self._timers.set(job, later)

    def _put_off(self, job: BackgroundJob, due: Due, until: datetime, reason: str, error: Exception) -> None:
        due.at, due.tries = until, due.tries + 1
        known, due.reason = due.reason, reason
        if reason not in (known, ELSEWHERE):
            log.warning(
                "job.waiting", key=job.key, reason=reason, until=until.isoformat(), error=loggable(error)
            )
        self._last_error = str(error) if reason != ELSEWHERE else self._last_error

    def _away(self, error: ModelAway) -> None:
        """Let all jobs wait for the model; the one that is tried next shows whether it is back."""
        wait = self._wait_s(self._away_tries)
        self._away_tries += 1
        self._away_until = self._clock() + timedelta(seconds=max(wait, error.after_s or 0.0))

    def _after(self, tries: int) -> datetime:
        return self._clock() + timedelta(seconds=self._wait_s(tries))

    def _wait_s(self, tries: int) -> float:
        return min(FIRST_WAIT_S * 2.0 ** min(tries, 16), LONGEST_WAIT_S)
