"""The clock as a channel: puts the letter of each job when it is due, once, whoever else does so, too."""

from __future__ import annotations

import asyncio
import contextlib
import heapq
from collections import deque
from collections.abc import Awaitable, Callable, Mapping, Sequence
from datetime import datetime, timedelta
from pathlib import Path
from typing import Final, NoReturn

import structlog

import durable
from channels.base import Pulse
from channels.cron.jobs import (
    CHANNEL,
    CLOCK_WAS_WRONG,
    NO_TASK,
    BadJob,
    CronJob,
    Ran,
    TextOf,
    due,
    letter,
    message_of,
)
from channels.cron.jobs_file import Contents, CronFile, Damaged
from channels.cron.schedule import missed, ms_of, newest, next_after, slot_name
from channels.errors import ChannelError
from channels.message import Inbound
from channels.storage import lease

log = structlog.get_logger("cron")

Put = Callable[[Inbound], Awaitable[None]]
Pause = Callable[[asyncio.Event, float], Awaitable[None]]
LOOK_S: Final = 1.0
STALLED_S: Final = 60.0
# So many letters are put at once.
MOST_PUTS: Final = 1024
# After a write of the file nothing is noted for this many times as long as it took.
REST: Final = 20
AGAIN_S: Final = 5.0
# So many runs that could not be noted yet are kept.
MOST_KEPT: Final = 10_000
_TICK: Final = timedelta(microseconds=1)


async def pause(event: asyncio.Event, seconds: float) -> None:
    """Wait for the event, at most so long."""
    await durable.first_of(event.wait(), timeout_s=seconds)


class CronScheduler:
    """Runs the jobs of one workspace; several may try, the one with the lease does.

    A job is noted as run after its letter is durable. What dies in between puts the same letter again, under
    the same id.

    Args:
        state: the folder of our own files, where its lease lies.
        pulse: where it says that it lives.
        clock: UTC; it may jump.
        put: returns once the letter is durable, however long that takes.
        text_of: says what a job asks now; None: nothing, no letter is put.
        pause: waits for an event for at most some seconds.
        access: held while the file is read or written and what it holds is adopted.
    """

    def __init__(
        self,
        file: CronFile,
        state: Path,
        *,
        pulse: Pulse,
        clock: Callable[[], datetime],
        put: Put,
        text_of: TextOf = message_of,
        pause: Pause = pause,
        access: asyncio.Lock | None = None,
    ) -> None:
        self._file = file
        self._state = state
        self._pulse = pulse
        self._clock = clock
        self._put = put
        self._text_of = text_of
        self._pause = pause
        self._due: deque[tuple[CronJob, datetime, datetime]] = deque()
        # How many tasks put what is due.
        self._putting = 0
        self._contents: Contents | None = None
        self._fault = ""
        # A heap; an entry counts if ``_next`` says the same.
        self._queue: list[tuple[datetime, str]] = []
        self._next: dict[str, datetime] = {}
        # The newest slot of each job that ran in this process.
        self._last: dict[str, datetime] = {}
        self._running: set[str] = set()
        self._wake = asyncio.Event()
        self._ran: list[Ran] = []
        self._plans: dict[str, int | None] = {}
        self._to_note = asyncio.Event()
        # What was read and what was written are adopted one at a time: the older must not undo the newer.
        self._access = access or asyncio.Lock()
        self._now = clock()

    async def run(self) -> NoReturn:
        """Wait for the lease of the workspace's clock, then put letters until cancelled."""
        async with asyncio.TaskGroup() as group:
            waiting = group.create_task(self._stand_by(), name="cron standing by")
            async with lease(self._state, CHANNEL):
                waiting.cancel()
                log.info("cron.started")
                try:
                    await self._work()
                finally:
                    await asyncio.to_thread(self._note_last)
        raise AssertionError("the clock never stops by itself")

    async def _stand_by(self) -> None:
        while True:
            self._pulse.beat(within_s=STALLED_S)
            await asyncio.sleep(LOOK_S)

    async def _work(self) -> None:
        async with asyncio.TaskGroup() as group:
            group.create_task(self._note_all(), name="cron notes")
            while True:
                self._wake.clear()
                self._watch_clock()
                await self._look()
                now = self._clock()
                self._due.extend((job, slot, now) for job, slot in self._take_due(now))
                for _ in range(min(len(self._due), MOST_PUTS - self._putting)):
                    self._putting += 1
                    group.create_task(self._fire_all(), name="cron letters")
                self._pulse.beat(within_s=STALLED_S)
                await self._pause(self._wake, self._until_next_s())

    def _watch_clock(self) -> None:
        """Begin anew where the clock was set back by so much that it must have been wrong before."""
        now = self._clock()
        if now < self._now - CLOCK_WAS_WRONG:
            log.warning("clock.set_back", by_s=round((self._now - now).total_seconds()))
            self._contents = None
            self._last.clear()
            self._next.clear()
        self._now = now

    # -- the file ----------------------------------------------------------------------------------

    async def _look(self) -> None:
        """Read the file where somebody changed it; one that we write ourselves is looked at next time."""
        if self._access.locked() or (self._contents is not None and self._file.seen() == self._contents.seen):
            return
        async with self._access:
            try:
                contents, slots = await asyncio.to_thread(self._read)
            except ChannelError as error:
                self._say_fault(str(error))
                return
            self._take_over(contents, slots)

    def _take_over(self, contents: Contents, slots: Mapping[str, datetime | None]) -> None:
        self._say_fault(contents.fault.text if contents.fault is not None else "")
        old = self._contents
        if contents.fault is not None and old is not None and (old.jobs or old.fault is not None):
            # What ran goes on as it is until a person has mended the file.
            self._contents = Contents(old.jobs, contents.bad, contents.fault, contents.seen)
            return
        for bad in contents.bad:
            log.warning("job.refused", job=bad.id, problem=bad.problem, cure=bad.cure)
        self._adopt(contents, slots)

    def _say_fault(self, text: str) -> None:
        if text and text != self._fault:
            log.error("jobs.unreadable", error=text, hint="chat-gateway cron list")
        self._fault = text

    def _read(self) -> tuple[Contents, dict[str, datetime | None]]:
        contents = self._file.read()
        return contents, self._changed(contents)

    def _changed(self, contents: Contents) -> dict[str, datetime | None]:
        """Say when each job is due that is not as we knew it."""
        known = self._contents.jobs if self._contents is not None else {}
        now = self._clock()
        return {
            job.id: due(job, now, self._last.get(job.id))
            for job in contents.jobs.values()
            if known.get(job.id) is not job
        }

    def _adopt(self, contents: Contents, slots: Mapping[str, datetime | None]) -> None:
        """Take the jobs of the file for what is to run; ``slots`` has those that are new or changed."""
        self._contents = contents
        now = self._clock()
        for gone in [job_id for job_id in self._next if job_id not in contents.jobs]:
            del self._next[gone]
        for job_id in [job_id for job_id in self._last if job_id not in contents.jobs]:
            del self._last[job_id]
        for job_id, found in slots.items():
            job, last = contents.jobs[job_id], self._last.get(job_id)
            ran_meanwhile = found is not None and last is not None and found <= last
            slot = due(job, now, last) if ran_meanwhile else found
            if job_id not in self._running:
                self._line_up(job_id, slot)
            if job.asks and (slot is None or slot > now):
                plan = ms_of(slot) if slot is not None else None
                if job.state_ms("nextRunAtMs") != plan:
                    self._plans[job_id] = plan
        if self._plans:
            self._to_note.set()

    def _line_up(self, job_id: str, slot: datetime | None) -> None:
        if slot is None:
            self._next.pop(job_id, None)
        elif self._next.get(job_id) != slot:
            self._next[job_id] = slot
            heapq.heappush(self._queue, (slot, job_id))

    # -- slots -------------------------------------------------------------------------------------

    def _until_next_s(self) -> float:
        while self._queue and self._next.get(self._queue[0][1]) != self._queue[0][0]:
            heapq.heappop(self._queue)
        if not self._queue:
            return LOOK_S
        return min(max((self._queue[0][0] - self._clock()).total_seconds(), 0.0), LOOK_S)

    def _take_due(self, now: datetime) -> list[tuple[CronJob, datetime]]:
        """Take out of the line what is due now; it comes back once it was put."""
        found = []
        jobs = self._contents.jobs if self._contents is not None else {}
        while self._queue and self._queue[0][0] <= now:
            slot, job_id = heapq.heappop(self._queue)
            if self._next.get(job_id) == slot:
                del self._next[job_id]
                self._running.add(job_id)
                found.append((jobs[job_id], slot))
        return found

    async def _fire_all(self) -> None:
        try:
            while self._due:
                await self._fire(*self._due.popleft())
        finally:
            self._putting -= 1

    async def _fire(self, job: CronJob, first: datetime, now: datetime) -> None:
        """Put the letters of a job that is due since ``first``, and line it up for its next slot."""
        try:
            slots = missed(job.schedule, first - _TICK, now, job.policy) or job.overdue
            if slots:
                for slot in slots:
                    await self._fire_slot(job, slot)
            else:
                last = newest(job.schedule, first, now)
                log.warning("slot.skipped", job=job.id, slot=slot_name(last), policy=job.policy)
                self._note(Ran(job.id, last, "skipped", now, "missed: the scheduler was not running"))
        finally:
            self._running.discard(job.id)
        self._line_up_again(job)
        self._wake.set()

    def _line_up_again(self, ran: CronJob) -> None:
        """Go on after the slot that ran, though more may have passed since; anew if the job was changed."""
        job = self._contents.jobs.get(ran.id) if self._contents is not None else None
        if job is None:
            return
        last = self._last.get(job.id)
        if last is not None and job.enabled and job.schedule == ran.schedule:
            self._line_up(job.id, next_after(job.schedule, last))
        else:
            self._line_up(job.id, due(job, self._clock(), last))

    async def _fire_slot(self, job: CronJob, slot: datetime) -> None:
        at, began = self._clock(), durable.monotonic()
        error = None
        try:
            text = await self._text_of(job)
            if text is None:
                self._note(Ran(job.id, slot, "skipped", at, NO_TASK))
                return
            await self._put(letter(job, slot, at=at, text=text))
        except Exception as refused:
            # One letter ends here; the others of the clock go on.
            error = f"{type(refused).__name__}: {refused}"
            log.exception("letter.refused", job=job.id, slot=slot_name(slot))
        took_ms = round((durable.monotonic() - began) * 1000)
        log.debug("job.fired", job=job.id, slot=slot_name(slot), took_ms=took_ms)
        self._note(Ran(job.id, slot, "error" if error else "ok", at, error, took_ms))

    # -- what the file is to say -------------------------------------------------------------------

    def _note(self, ran: Ran) -> None:
        assert ran.slot is not None
        # A clock that was set back while the letter was put would keep the job from its next slots.
        if ran.slot <= self._clock() + CLOCK_WAS_WRONG:
            self._last[ran.job_id] = max(ran.slot, self._last.get(ran.job_id, ran.slot))
        self._plans.pop(ran.job_id, None)
        self._ran.append(ran)
        self._to_note.set()

    async def _note_all(self) -> None:
        """Write what ran into the file, at once where that is quick, else together with what follows."""
        never = asyncio.Event()
        while True:
            await self._to_note.wait()
            # A crowd of letters comes first: writing the file takes the longer the more jobs it has.
            if len(self._due) > MOST_PUTS:
                await self._pause(never, LOOK_S)
            self._to_note.clear()
            began = durable.monotonic()
            try:
                async with self._access:
                    # Whoever is ended while it waits here has taken nothing.
                    ran, plans = self._take_notes()
                    contents, slots = await self._write(ran, plans)
                    # Where the clock was set back meanwhile, the file is read anew.
                    if self._contents is not None:
                        self._adopt(contents, slots)
            except ChannelError as error:
                self._put_back(ran, plans)
                # That the file is damaged was said when it was read.
                if not isinstance(error, Damaged):
                    log.warning("jobs.unwritten", error=str(error), hint=error.hint)
                await self._pause(never, AGAIN_S)
                self._to_note.set()
                continue
            if (took := durable.monotonic() - began) > 0.05:
                await self._pause(never, REST * took)

    async def _write(
        self, ran: Sequence[Ran], plans: Mapping[str, int | None]
    ) -> tuple[Contents, dict[str, datetime | None]]:
        """Write notes, and stay until that is over: what is noted last must not be overtaken by them."""
        writing = asyncio.get_running_loop().run_in_executor(None, self._note_and_read, ran, plans)
        try:
            return await asyncio.shield(writing)
        except asyncio.CancelledError:
            await asyncio.wait([writing])
            if writing.exception() is not None:
                self._put_back(ran, plans)
            raise

    def _note_and_read(
        self, ran: Sequence[Ran], plans: Mapping[str, int | None]
    ) -> tuple[Contents, dict[str, datetime | None]]:
        contents = self._file.note(ran, plans)
        return contents, self._changed(contents)

    def _take_notes(self) -> tuple[Sequence[Ran], Mapping[str, int | None]]:
        taken = self._ran, self._plans
        self._ran, self._plans = [], {}
        return taken

    def _put_back(self, ran: Sequence[Ran], plans: Mapping[str, int | None]) -> None:
        self._ran = [*ran, *self._ran][-MOST_KEPT:]
        self._plans = {**plans, **self._plans}

    def _note_last(self) -> None:
        """Write what ran and was not noted yet, before another process goes on from the file."""
        ran, plans = self._take_notes()
        if not ran and not plans:
            return
        try:
            self._file.note(ran, plans)
        except ChannelError as error:
            log.warning("jobs.unwritten", error=str(error), hint=error.hint)


async def run_now(file: CronFile, job_id: str, put: Put, text_of: TextOf = message_of) -> dict[str, str]:
    """Note a run of a job, and put its letter at once, beside its schedule.

    Returns:
        ``id`` and ``key`` of the letter, which is durable.

    Raises:
        NoJob, BadJob: there is none of this id that can run, or it asks nothing now; and whatever ``put``
            and ``text_of`` raise.
    """
    job = await asyncio.to_thread(file.job, job_id)
    if not job.asks:
        raise BadJob(f"the job {job_id} has no message", hint="only nanobot itself can run it")
    text = await text_of(job)
    if text is None:
        raise BadJob(NO_TASK, hint="write a task in it")
    at = durable.now()
    inbound = letter(job, None, at=at, run_id=durable.new_id(), text=text)
    # Noted first: a turn that fails at once is noted after it. The job runs all the same; a damaged file or a
    # full disk is told elsewhere.
    with contextlib.suppress(ChannelError):
        await asyncio.to_thread(file.note, [Ran(job_id, None, "ok", at)])
    try:
        await put(inbound)
    except Exception as error:
        with contextlib.suppress(ChannelError):
            await asyncio.to_thread(file.failed, job_id, None, f"{type(error).__name__}: {error}")
        raise
    return {"id": inbound.id, "key": inbound.key}
