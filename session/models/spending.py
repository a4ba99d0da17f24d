"""What models cost: a line for each turn and each other call, summed up over all daemons and restarts.

A call that is no turn's own (consolidation, a summary, a name) has a line that says ``"turn": false`` and
names no person; a line without the field is a turn. In all else the form is the same, and so its version.
A process of an earlier version, which does not know the field, counts tokens and cost of such a line too,
shows it as one turn more, and takes it for nobody's where it looks at how much a person may still ask.

With a cap on a day, what a request may cost is held before it is made: a line that has ``hold`` says so, and
the line of its turn takes its place.
"""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncIterator, Awaitable, Callable, Sequence
from dataclasses import dataclass, replace
from datetime import UTC, datetime, timedelta
from functools import partial
from pathlib import Path
from typing import Any

import structlog

import durable
from session.errors import NewerFormat, NotNow, OverCap, StoreError
from session.models import caps as capped
from session.models.caps import Ask, Cap, Caps, Refused, next_day, refused
from session.models.model import Embedder, Model, Need, Payer, Prompt, Totals, Usage
from session.models.prices import Pricing
from session.models.tally import HOUR, Tally, added
from session.models.usage_files import DayFiles, Disk, Exchange
from session.models.usage_lines import Hold, SpendingRow, UsageLine

log = structlog.get_logger("spending")

AGAIN_SAID = "Messages will be answered again after midnight UTC."
SPENT_SAID = "{} is used up. {}"
COST_SAID = SPENT_SAID.format("Today's budget", AGAIN_SAID)
# How often it is looked whether requests of other processes have ended that are in the way of one.
LOOK_S = 1.0
# The background tries again after so long where only requests under way are in its way.
AGAIN_S = 30.0
Counts = Callable[[Usage | None], None]


@dataclass(frozen=True, slots=True)
class _Asked:
    """A request that asks, and where it is told: None where it is held."""

    ask: Ask
    answer: asyncio.Future[Refused | None]


class Spending:
    """Counts turns and calls at once in memory and writes them behind; reads what other daemons wrote.

    Used from the event loop; what a kill cuts off from its line is not counted afterwards. What a request may
    cost is held on disk before it is made, where there are caps.
    """

    def __init__(
        self,
        folder: Path,
        *,
        disk: Disk,
        clock: Callable[[], datetime],
        durable: bool,
        caps: Caps = Caps(),  # noqa: B008 - it is frozen
        turns_per_hour: int = 0,
        held_s: float = 150.0,
        model: str = "",
    ) -> None:
        """Touch nothing yet.

        Args:
            folder: that of the day files.
            disk: where files are read and written.
            clock: the time now, aware.
            durable: whether anything is read or written at all; else it counts for this process alone.
            caps: what may be spent in a day (UTC).
            turns_per_hour: how many a person may have; 0 is no limit: nobody asks when they ended.
            held_s: how long a request can last; what a killed process held is free again after that.
            model: the one that is asked where a call names none.
        """
        self._disk = disk
        self._clock = clock
        self._durable = durable
        self._model = model
        # Whether there is a cap on what may be spent in a day.
        self.limited = caps.any
        self._caps = caps
        self._held = timedelta(seconds=held_s)
        self._warnings = CapWarnings()
        self.pricing = Pricing()
        self._files = DayFiles(folder, caps)
        self._tally = Tally(by_subject=caps.any, with_ends=turns_per_hour > 0)
        # Lines that count already, and are not on disk yet.
        self._pending: list[UsageLine] = []
        self._asked, self._visitors = list[_Asked](), list[_Asked]()
        self._visit: asyncio.Future[Exchange] | None = None
        # Set whenever something was settled, for requests that wait for room.
        self._settled = asyncio.Event()

    def record(
        self, key: str, person: str, usage: Usage, *, job: str = "", id_: str = "", model: str = ""
    ) -> None:
        """Count a turn of ``model`` that ends now; ``id_`` is that of its message, whose hold it settles."""
        name = model or self._model
        self._record(SpendingRow(self._now(), key, person, usage, job=job, id=id_, model=name))

    def pay(
        self, key: str, usage: Usage, *, person: str = "", job: str = "", id_: str = "", model: str = ""
    ) -> None:
        """Count what a call of ``model`` cost that is no turn; ``id_`` is that of its hold."""
        name = model or self._model
        self._record(SpendingRow(self._now(), key, person, usage, turn=False, job=job, id=id_, model=name))

    def _record(self, line: UsageLine) -> None:
        if not self._durable:
            self._count_here(line)
            return
        self._pending.append(line)
        if self._visit is None:
            self._start()

    async def refresh(self) -> None:
        """Take in what other daemons wrote.

        Raises:
            NewerFormat: a newer version writes these files.
        """
        if not self._durable:
            return
        visit = self._visit or self._start()
        try:
            await asyncio.shield(visit)
        except NewerFormat:
            raise
        except StoreError as error:
            log.warning("usage.unread", error=str(error), hint=error.hint)
        finally:
            # The callback of a visit that had ended before runs only in the next pass of the loop.
            self._end(visit)

    async def aclose(self) -> None:
        """Write what was counted and not written yet, as far as the disk takes it."""
        while self._pending and self._durable:
            # A visit that began with nothing pending only reads.
            visit = self._visit or self._start()
            # What failed is logged where the visit ends.
            with contextlib.suppress(NewerFormat):
                await self.refresh()
            if visit.exception() is not None or visit.result().error is not None:
                return

    def today(self) -> Totals:
        """Sum up the running day (UTC), as far as it was read."""
        day = self._now().date()
        sums = self._tally.day(day)
        for line in self._pending:
            if isinstance(line, SpendingRow) and line.at.date() == day:
                sums = added(sums, line)
        return sums

    def within_hour(self, person: str) -> list[datetime]:
        """List the ends of a person's turns of the last hour, oldest first."""
        since = self._clock() - HOUR
        pending = [
            line.at
            for line in self._pending
            if isinstance(line, SpendingRow) and line.turn and line.person == person and line.at > since
        ]
        return sorted([*self._tally.ends(person, since), *pending])

    def calls(self, since: datetime) -> list[datetime]:
        """List the ends of all calls after ``since`` that were no turns, as the files have them; for threads.

        Raises:
            NewerFormat, StoreError: they cannot be read.
        """
        return self._files.calls(since.astimezone(UTC), self._now()) if self._durable else []

    def reached(self, payer: Payer) -> Cap | None:
        """Return a cap that is used up for a payer, as far as it was read."""
        if not self.limited:
            return None
        now = self._now()
        tally = self._with_pending(now)
        cap = next((cap for cap in self._caps.of(payer) if cap.is_reached(tally, now)), None)
        if cap is not None:
            self._warnings.tell(cap, self._until())
        return cap

    def left(self, payer: Payer) -> list[dict[str, Any]]:
        """Show the caps of a payer as ``shown`` does."""
        now = self._now()
        tally = self._with_pending(now)
        return [cap.shown(tally, now) for cap in self._caps.of(payer)]

    def shown(self) -> list[dict[str, Any]] | None:
        """List the caps with what is left of them; of those on chats, people and jobs the nearest.

        None: there are none.
        """
        if not self.limited:
            return None
        now = self._now()
        return capped.shown(self._caps, self._with_pending(now), now)

    def closed_until(self) -> datetime | None:
        """Return when the next day begins, where this one's cap on all is reached as far as it was read."""
        return self._until() if self.reached(Payer("")) is not None else None

    async def afford(self) -> None:
        """See that a call may still be paid today; see ``CostMeter``."""
        if not self.limited:
            return
        await self.refresh()
        cap = self.reached(Payer(""))
        if cap is not None:
            raise self._not_now(self._over(cap))

    @contextlib.asynccontextmanager
    async def request(self, key: str, model: Model, prompt: Prompt) -> AsyncIterator[Counts]:
        """Hold what a call that is no turn's own may cost; see ``CostMeter``."""
        need = partial(self.pricing.need, model, prompt, 0)
        async with self._held_for(Payer(key), prompt.model or model.name, need) as count:
            yield count

    @contextlib.asynccontextmanager
    async def embedding(
        self, payer: Payer, embedder: Embedder, texts: Sequence[str]
    ) -> AsyncIterator[Counts]:
        """Hold what vectors may cost that are no turn's own; see ``CostMeter``."""
        need = partial(self.pricing.need_of_texts, embedder, texts)
        async with self._held_for(payer, embedder.name.partition(" ")[0], need) as count:
            yield count

    @contextlib.asynccontextmanager
    async def _held_for(
        self, payer: Payer, model: str, need: Callable[[], Awaitable[Need]]
    ) -> AsyncIterator[Counts]:
        payer = replace(payer, id=durable.new_id() if self.limited else "")
        spent = Usage()

        def count(usage: Usage | None) -> None:
            nonlocal spent
            if usage is not None:
                spent = usage
                self.pay(payer.key, usage, person=payer.person, job=payer.job, id_=payer.id, model=model)

        try:
            if self.limited:
                await self._hold_or_refuse(payer, await need())
            yield count
        finally:
            if payer.id and spent == Usage():
                self.settle(payer, Usage())

    async def reserve(self, payer: Payer, need: Need, spent: Usage) -> Refused | None:
        """Hold what a request may cost; return why not, where it would go over a cap.

        Raises:
            NewerFormat, StoreError: nothing is held.
        """
        now = self._now()
        ask = Ask(payer, need, spent, now + self._held)
        if not self._durable:
            refusal = refused(self._caps, self._tally, ask, now)
            if refusal is None:
                self._count_here(ask.hold(now))
            return refusal
        asked = _Asked(ask, asyncio.get_running_loop().create_future())
        self._asked.append(asked)
        if self._visit is None:
            self._start()
        return await asked.answer

    def settle(self, payer: Payer, spent: Usage) -> None:
        """Hold no more than what was spent: no request is under way."""
        now = self._now()
        self._record(Hold(now, now, payer, spent))

    async def room(self) -> None:
        """Return when something was settled here, or it is time to look what others settled."""
        settled = self._settled
        with contextlib.suppress(TimeoutError):
            await asyncio.wait_for(settled.wait(), LOOK_S)

    def over(self, refusal: Refused) -> OverCap:
        """Make the error of a request that would go over a cap."""
        self._warnings.tell(refusal.cap, self._until())
        return self._over(refusal.cap)

    async def _hold_or_refuse(self, payer: Payer, need: Need) -> None:
        """Hold what a call may cost that is no turn's own.

        Raises:
            NotNow: until the next day, or until the requests that are in the way will have ended.
        """
        refusal = await self.reserve(payer, need, Usage())
        if refusal is not None:
            again = self._clock() + timedelta(seconds=AGAIN_S) if refusal.passes else None
            raise self._not_now(self.over(refusal) if again is None else self._over(refusal.cap), again)

    def _over(self, cap: Cap) -> OverCap:
        return OverCap(cap.name, about=cap.about, until=self._until())

    def _not_now(self, over: OverCap, again: datetime | None = None) -> NotNow:
        words = "today's budget is used up"
        return NotNow(words, reason="cost", until=again or over.until, hint=over.hint)

    def _until(self) -> datetime:
        return next_day(self._clock())

    def _with_pending(self, now: datetime) -> Tally:
        """Return the tally with what is not on disk yet."""
        if not self._pending:
            return self._tally
        tally = self._tally.copy()
        for line in self._pending:
            tally.take(line, now)
        return tally

    def _start(self) -> asyncio.Future[Exchange]:
        lines, now = list(self._pending), self._now()
        # Whoever was cancelled meanwhile has settled already: a hold behind that would stay.
        self._visitors, self._asked = [asked for asked in self._asked if not asked.answer.done()], []
        asks = [asked.ask for asked in self._visitors]
        job = partial(self._files.exchange, lines, now, asks)
        # Whoever asks may have to wait for another process, and must not hold up the disk of the chats.
        loop = asyncio.get_running_loop()
        visit = self._visit = loop.run_in_executor(None, job) if asks else self._disk.beside(job)
        visit.add_done_callback(self._end)
        return visit

    def _end(self, visit: asyncio.Future[Exchange]) -> None:
        """Take in what a visit brought, once: whoever sees its end first."""
        if visit is not self._visit or not visit.done():
            return
        self._visit = None
        visitors, self._visitors = self._visitors, []
        error = visit.exception()
        if error is not None:
            log.warning("usage.unwritten", error=str(error))
            _tell(visitors, error)
            # Whoever asked meanwhile is told by a visit of its own.
            if self._asked:
                self._start()
            return
        done = visit.result()
        # What was counted while the disk was busy stays for the next visit.
        del self._pending[: done.written]
        self._tally.keep(done.kept)
        for line in done.found:
            self._tally.take(line, self._now())
        if self.limited:
            self._wake(done.found)
        if done.error is not None:
            log.warning("usage.unwritten", error=str(done.error), hint=done.error.hint)
            _tell(visitors, done.error)
        else:
            for asked, refusal in zip(visitors, done.refusals, strict=True):
                if not asked.answer.done():
                    asked.answer.set_result(refusal)
        if self._asked or (self._pending and done.error is None):
            self._start()

    def _count_here(self, line: UsageLine) -> None:
        """Count a line for this process alone."""
        now = self._now()
        self._tally.take(line, now)
        if self._tally.is_over(now):
            self._tally.keep({now.date(), (now - HOUR).date(), line.at.date()})
        if self.limited:
            self._wake([line])

    def _wake(self, found: Sequence[UsageLine]) -> None:
        """Let requests that wait for room look again, where some was made."""
        if any(line.settles for line in found):
            self._settled.set()
            self._settled = asyncio.Event()

    def _now(self) -> datetime:
        now = self._clock()
        return now if now.tzinfo is UTC else now.astimezone(UTC)


def _tell(visitors: list[_Asked], error: BaseException) -> None:
    for asked in (each for each in visitors if not each.answer.done()):
        asked.answer.set_exception(error)


class CapWarnings:
    """Remembers which caps the log has told of."""

    def __init__(self) -> None:
        self._told: dict[str, datetime] = {}

    def tell(self, cap: Cap, until: datetime) -> None:
        """Write a line on a cap that is reached until then; none where there is one."""
        if self._told.get(cap.about) == until:
            return
        self._told = {about: at for about, at in self._told.items() if at == until} | {cap.about: until}
        log.warning(
            "usage.limit_reached", limit=cap.name, of=cap.limit, who=cap.subject[1], until=until.isoformat()
        )
