"""The workers of a gateway: kept up, replaced when they die or stand still, drained together."""

from __future__ import annotations

import asyncio
import os
from collections.abc import Awaitable, Collection, Mapping, Sequence
from typing import Any, Final

import structlog

import durable
from durable import first_of
from gateway.config.settings import Settings
from gateway.errors import ConfigError, GatewayError
from gateway.workers.merging import lasting, merged, packed
from gateway.workers.process import NoAnswer, WorkerFailed, WorkerProcess

log = structlog.get_logger("workers")

# What imports, and opens a large workspace on a busy machine, says nothing for a while.
START_WITHIN_S: Final = 120.0
# One that worked is replaced at once. The wait after a further death, and the longest one after several: one
# that has lived a while begins anew.
FIRST_WAIT_S, LONGEST_WAIT_S, PROVEN_S = 0.5, 30.0, 60.0
# So long after all work a spare process starts: its imports would take a core from the turns that resume.
SPARE_AFTER_S: Final = 3.0
ANSWER_WITHIN_S: Final = 2.0
# Behind the time that turns have to end: what a worker still has to close.
CLOSES_WITHIN_S: Final = 5.0


class _Place:
    """One of the workers, over all the processes that it was."""

    def __init__(self, number: int, partitions: Sequence[int]) -> None:
        self.number, self.partitions = number, partitions
        self.process: WorkerProcess | None = None
        self.since = durable.now()
        self.restarts = 0
        self.error = ""

    @property
    def up(self) -> bool:
        return self.process is not None and self.process.up

    def shown(self) -> dict[str, Any]:
        """Return it as ``status`` shows it."""
        return {
            "number": self.number,
            "pid": self.process.pid if self.process is not None else 0,
            "up": self.up,
            "partitions": list(self.partitions),
            "since": self.since.isoformat(),
            "restarts": self.restarts,
            "error": self.error,
        }


class Workers:
    """All workers of one gateway.

    Args:
        count: how many, at least one.
        partitions: into how many the inbound queue is cut. Worker k, from 1, has those with
            ``p % count == k - 1``, whichever process it is: the next one starts when the last one has ended.
        values: the configuration, as ``load_values`` returns it: the same for all of them, however long they
            live and whatever becomes of its file.
        state: the writer of the workspace, open as long as they run.
        silent_s: after how many seconds without a word one is taken to stand still. Its loop speaks once a
            second, whatever its turns wait for.
    """

    def __init__(
        self,
        count: int,
        values: Mapping[str, Any],
        state: durable.StateWriter,
        *,
        partitions: int,
        silent_s: float,
    ) -> None:
        self._values = values
        self._state = state
        self._silent_s = silent_s
        self._places = [_Place(k, range(k - 1, partitions, count)) for k in range(1, count + 1)]
        self._stopping = asyncio.Event()
        self._cut = False
        self._started = False
        self.any_up_since = durable.now()
        self._news = asyncio.Event()
        self._spare: WorkerProcess | None = None
        self._spare_taken = asyncio.Event()
        # What those that run have counted, by number, and what ended ones had, as they said last: a counter
        # never goes back.
        self.counted: dict[int, list[list[Any]]] = {}
        self.past: list[list[Any]] = []
        self.failed: asyncio.Future[GatewayError] = asyncio.get_running_loop().create_future()

    # -- kept up -----------------------------------------------------------------------------------

    async def run(self) -> None:
        """Keep all of them up until they are drained; cancelled, have them end at once.

        Raises:
            WorkerFailed, ConfigError: one could not start, before all were up for the first time.
        """
        async with asyncio.TaskGroup() as group:
            for place in self._places:
                group.create_task(self._keep(place), name=f"worker {place.number}")
            group.create_task(self._keep_spare(), name="spare worker")

    async def started(self) -> None:
        """Return once each of them works."""
        while not all(place.up for place in self._places):
            self._news.clear()
            await self._news.wait()
        self._started = True

    async def _keep(self, place: _Place) -> None:
        wait_s = 0.0
        while not self._stopping.is_set():
            process = place.process = self._next_process()
            began = durable.monotonic()
            await self._live(place, process)
            if self._stopping.is_set():
                return
            self._mourn(place, process)
            if durable.monotonic() - began > PROVEN_S:
                wait_s = 0.0
            if not process.ready.is_set():
                wait_s = max(wait_s, FIRST_WAIT_S)
            await first_of(self._stopping.wait(), timeout_s=wait_s)
            wait_s = min(max(wait_s * 2, FIRST_WAIT_S), LONGEST_WAIT_S)
            place.restarts += 1

    def _next_process(self) -> WorkerProcess:
        """Return the spare process, else a new one."""
        spare, self._spare = self._spare, None
        self._spare_taken.set()
        if spare is not None:
            if spare.alive:
                return spare
            spare.discard()
        return WorkerProcess(self._values, self._state, changed=self._changed)

    async def _keep_spare(self) -> None:
        """Keep a process at hand that has imported what a worker needs, which takes seconds."""
        while not self._stopping.is_set():
            await first_of(self._stopping.wait(), timeout_s=SPARE_AFTER_S)
            await first_of(self._stopping.wait(), self.started())
            if self._stopping.is_set():
                return
            spare = WorkerProcess(self._values, self._state, changed=self._changed)
            try:
                await spare.start()
                self._spare = spare
                self._spare_taken.clear()
                await first_of(self._stopping.wait(), self._spare_taken.wait())
            except OSError as error:
                log.warning("worker.no_spare", error=str(error))
                await first_of(self._stopping.wait(), timeout_s=LONGEST_WAIT_S)
            finally:
                if self._spare is spare:
                    self._spare = None
                    spare.discard()

    async def _live(self, place: _Place, process: WorkerProcess) -> None:
        async with asyncio.TaskGroup() as group:
            watching = group.create_task(self._watch(process), name=f"watch worker {place.number}")
            saying = group.create_task(self._welcome(place, process), name=f"await worker {place.number}")
            try:
                await process.run(place.number, place.partitions)
            finally:
                watching.cancel()
                saying.cancel()

    async def _welcome(self, place: _Place, process: WorkerProcess) -> None:
        await process.ready.wait()
        if sum(each.up for each in self._places) == 1:
            self.any_up_since = durable.now()
        place.since, place.error = durable.now(), ""
        log.info("worker.started", number=place.number, pid=process.pid, restarts=place.restarts)

    async def _watch(self, process: WorkerProcess) -> None:
        """Kill a process that says nothing for too long.

        Ticks are counted, not time: if this process itself stood still, its workers are not to blame. While
        they drain ``drain`` sees to it: one whose turns have ended speaks no more, and takes its time to go.
        """
        tick_s = min(1.0, self._silent_s / 4)
        heard, silent_s = 0, 0.0
        while not self._stopping.is_set():
            await asyncio.sleep(tick_s)
            if process.beats != heard or self._stopping.is_set():
                heard, silent_s = process.beats, 0.0
                continue
            silent_s += tick_s
            if silent_s >= (self._silent_s if heard else max(START_WITHIN_S, self._silent_s)):
                log.error("worker.stuck", number=process.number, pid=process.pid, silent_s=round(silent_s))
                await process.kill_stuck()
                return

    def _mourn(self, place: _Place, process: WorkerProcess) -> None:
        """Note the end of a process that nobody asked for.

        Raises:
            WorkerFailed, ConfigError: it could not start at all.
        """
        place.since = durable.now()
        if not self.any_up:
            self.any_up_since = place.since
        code = process.code
        how = process.how or (f"signal {-code}" if code is not None and code < 0 else f"exit code {code}")
        place.error = f"worker {place.number} ended ({how}) and is started anew"
        log.error("worker.ended", number=place.number, pid=process.pid, code=code)
        if (last := self.counted.pop(place.number, None)) is not None:
            self.past = packed(merged((), [], [self.past, lasting(last)]))
        self._changed()
        if process.failed is not None and not self._started:
            raise process.failed
        if process.failed is not None:
            # What its start told would be told by each further one: the turns of the others end first.
            if not self.failed.done():
                self.failed.set_result(process.failed)
        elif not process.ready.is_set() and not self._started:
            text = f"worker {place.number} ended while it started ({how})"
            raise WorkerFailed(text, hint="see the log above")

    def _changed(self) -> None:
        self._news.set()

    async def drain(self, within_s: float) -> bool:
        """Have all end their running turns, for so many seconds at most; return whether all did."""
        self._stopping.set()
        processes = [place.process for place in self._places if place.process is not None]
        for process in processes:
            process.drain()
        try:
            async with asyncio.timeout(within_s + CLOSES_WITHIN_S):
                for process in processes:
                    await process.ended.wait()
        except TimeoutError:
            for process in processes:
                process.kill()
            return False
        return not self._cut and all(process.code == 0 for process in processes)

    def end(self) -> None:
        """Have all end at once; their letters come again."""
        self._stopping.set()
        for place in self._places:
            if place.process is not None and not place.process.ended.is_set():
                self._cut = True
                place.process.end()

    def kill(self) -> None:
        """End what still runs, whatever it does."""
        for place in self._places:
            if place.process is not None and not place.process.ended.is_set():
                place.process.kill()

    # -- what they say -----------------------------------------------------------------------------

    @property
    def any_up(self) -> bool:
        """Whether at least one works, so that messages are answered."""
        return any(place.up for place in self._places)

    def shown(self) -> list[dict[str, Any]]:
        """List them as ``status`` shows them, by number."""
        return [place.shown() for place in self._places]

    def part(self, since: str) -> dict[str, Any]:
        """Return them as one part of the gateway: up where each of them is."""
        errors = [place.error or f"worker {place.number} starts" for place in self._places if not place.up]
        changes = [place.since.isoformat() for place in self._places if place.up == (not errors)]
        # Down since the first of them went, up since the last one came.
        at = min(changes, default=since) if errors else max(changes, default=since)
        return {"up": not errors, "since": at, "error": "; ".join(errors)}

    def standings(self) -> list[Mapping[str, Any]]:
        """Return what each that works said last of how it stands."""
        return [p.process.standing for p in self._places if p.process is not None and p.process.up]

    async def ask(self, what: str, *, within_s: float = ANSWER_WITHIN_S, **arguments: Any) -> list[Any]:
        """Ask all that work the same; who does not answer in time is left out."""
        answers = await self.ask_by_number(what, within_s=within_s, **arguments)
        return list(answers.values())

    async def ask_by_number(
        self, what: str, *, within_s: float = ANSWER_WITHIN_S, **arguments: Any
    ) -> dict[int, Any]:
        """As ``ask``, by the number of the worker."""
        up = [place for place in self._places if place.up]
        asked = [_in_time(p, p.process.ask(what, **arguments), within_s) for p in up if p.process]
        found = await asyncio.gather(*asked)
        return {place.number: answer[0] for place, answer in zip(up, found, strict=True) if answer}

    async def count(self) -> list[int]:
        """Ask all that work what they have counted, for ``counted``; return how many letters each holds."""
        asked = [self._count(p, p.process) for p in self._places if p.up and p.process is not None]
        return [letters for found in await asyncio.gather(*asked) for letters in found]

    async def _count(self, place: _Place, process: WorkerProcess) -> tuple[int, ...]:
        found = await _in_time(place, process.ask("metrics"), ANSWER_WITHIN_S)
        if not found:
            return ()
        # At once, and of none that has ended: what it said before has gone to the past, or is about to.
        if place.process is process and process.up:
            self.counted[place.number] = found[0]["families"]
        return (found[0]["letters"],)

    async def ask_one(self, what: str, *, within_s: float = ANSWER_WITHIN_S, **arguments: Any) -> Any:
        """Ask whichever works to do something.

        Raises:
            NoAnswer: none did.
        """
        for place in self._places:
            if place.up and place.process is not None:
                found = await _in_time(place, place.process.ask(what, **arguments), within_s)
                if found:
                    return found[0]
        raise NoAnswer("no worker answers")

    def silent(self, answered: Collection[int]) -> list[int]:
        """List the process ids of those that work and are not among ``answered``, by number."""
        return [p.process.pid for p in self._places if p.process and p.up and p.number not in answered]


async def _in_time(place: _Place, asking: Awaitable[Any], within_s: float) -> tuple[Any, ...]:
    """Return the answer in a tuple; an empty one where there is none in time."""
    try:
        async with asyncio.timeout(within_s):
            return (await asking,)
    except TimeoutError:
        log.warning("worker.silent", number=place.number, after_s=within_s)
    except NoAnswer as error:
        log.warning("worker.unanswered", number=place.number, error=str(error))
    return ()


# -- how many there are ----------------------------------------------------------------------------

ALONE: Final = (
    "workers: one process works here, since the embedded queue is one's alone; RabbitMQ lets several"
)


def count(settings: Settings, role: str, asked: int | None = None) -> int:
    """Return how many workers a gateway starts; 0: it does the work itself, in one process.

    Args:
        settings: ``limits.workers``, which counts for all of its processes but adapters alone.
        role: that of the process.
        asked: what the command line says instead.

    Raises:
        ConfigError: workers were asked for where none have anything to do.
    """
    if role == "channels":
        if asked is not None:
            raise ConfigError(
                ["--workers: a process of role channels runs no conversations"],
                hint="give --workers to the process of role session",
            )
        return 0
    wanted = settings.limits.workers if asked is None else asked
    number = wanted or _cores()
    return 0 if number == 1 or settings.broker.embedded else number


def remarks(settings: Settings, role: str, asked: int | None = None) -> list[str]:
    """Say in plain lines what becomes of the wish for several workers where it cannot be had."""
    if role == "channels":
        return []
    wanted = settings.limits.workers if asked is None else asked
    if settings.broker.embedded:
        return [ALONE] if wanted != 1 else []
    number, partitions = count(settings, role, asked), settings.broker.partitions
    if number > partitions:
        return [f"workers: {number} share {partitions} partitions, so that {number - partitions} have none"]
    return []


def _cores() -> int:
    # macOS has no such call.
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
