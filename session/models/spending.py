"""What models cost: a row for each turn and each other call, and the caps on a day.

A row is handed over right behind the last lines of its turn, and shares their commit or the next one. With a
cap, what a request may cost at most is reserved before it is made, and settled by what it cost.
"""

from __future__ import annotations

import asyncio
import contextlib
import os
from collections.abc import AsyncIterator, Awaitable, Callable, Iterable, Sequence
from dataclasses import dataclass, replace
from datetime import UTC, datetime, timedelta
from functools import partial
from typing import Any, Final

import structlog

import durable
from durable import BoundedDict, Change, Conflict
from session.errors import NotNow, OverCap, StoreError
from session.models import caps as capped
from session.models import usage_rows
from session.models.caps import HOUR, Amount, Cap, Caps, Refused, Subject, Total, subjects
from session.models.model import Embedder, Model, Need, Payer, Prices, PricesTexts, Prompt, Totals, Usage
from session.models.tokens import estimate, estimate_messages, estimate_tools
from session.models.usage_rows import Held, Rows, UsageRow, day_of

log = structlog.get_logger("spending")


AGAIN_SAID = "Messages will be answered again after midnight UTC."
SPENT_SAID = "{} is used up. {}"
COST_SAID = SPENT_SAID.format("Today's budget", AGAIN_SAID)
# How often a request looks whether those of other processes that are in its way have ended.
LOOK_S = 1.0
# The background tries again after so long where only requests under way are in its way.
AGAIN_S = 30.0
# Turns under way, and those that ended without a row, such as one that waits for a person.
_HELD_MAX: Final = 10_000
Counts = Callable[[Usage | None], None]


class Spending:
    """Counts what turns and calls cost in the state database, and keeps requests within the caps.

    Used from the event loop. What the disk refused is written with the next row.

    Raises StoreError if it cannot be read or written; nothing is reserved then.

    ``caps`` are on a day (UTC); ``model`` is the one that is asked where a call names none.
    """

    def __init__(
        self,
        state: Rows,
        *,
        clock: Callable[[], datetime],
        caps: Caps = Caps(),  # noqa: B008 - it is frozen
        model: str = "",
    ) -> None:
        self._state = state
        self._clock = clock
        self._model = model
        # Whether there is a cap on what may be spent in a day.
        self.limited = caps.any
        self._caps = caps
        # Caps that the log has told of, and until when they are reached.
        self._told: dict[str, datetime] = {}
        self._unpriced = set[str]()
        self._held: BoundedDict[tuple[str, str], Held] = BoundedDict(_HELD_MAX)
        self._unwritten = list[Change]()
        self._cleaned = 0
        # Set whenever something was settled, for requests that wait for room.
        self._settled = asyncio.Event()

    # -- counting --------------------------------------------------------------------------------------

    def record(self, payer: Payer, usage: Usage, *, model: str = "", turn: bool = True) -> None:
        """Count a turn, or a call that is no turn, of ``model`` that ends now."""
        now = self._now()
        row = UsageRow(now, payer, usage, turn=turn, model=model or self._model)
        spent = usage_rows.add_to_totals(day_of(now), payer, Total(Amount.of(usage)))
        self._submit([usage_rows.add_row(row), *spent, *self._hold(payer, None)])

    async def aclose(self) -> None:
        """Write what the disk has refused so far, if it takes it now."""
        if self._unwritten:
            try:
                await self._state.write(self._unwritten)
                self._unwritten = []
            except StoreError as error:
                log.warning("usage.unwritten", error=str(error), hint=error.hint)

    def _submit(self, changes: Sequence[Change]) -> None:
        today = day_of(self._now())
        cleaning = usage_rows.forget_old(today) if self._cleaned != today else []
        self._cleaned = today
        every, self._unwritten = [*self._unwritten, *changes, *cleaning], []
        commit = self._state.submit(every)
        if commit is None:
            self._unwritten = every
        else:
            commit.done.add_done_callback(lambda done: self._ended(done, every))

    def _ended(self, done: asyncio.Future[Any], changes: Sequence[Change]) -> None:
        error = None if done.cancelled() else done.exception()
        if error is not None:
            log.warning("usage.unwritten", error=str(error))
            self._unwritten = [*changes, *self._unwritten]

    # -- what was spent --------------------------------------------------------------------------------

    async def today(self) -> Totals:
        """Sum up the running day (UTC)."""
        return await usage_rows.sum_of_day(self._state, day_of(self._now()))

    async def within_hour(self, person: str) -> list[datetime]:
        """List the ends of a person's turns of the last hour, oldest first."""
        return await usage_rows.ends_of_turns(self._state, person, self._now() - HOUR)

    async def reached(self, payer: Payer) -> Cap | None:
        """Return a cap that is used up for a payer."""
        if not self.limited:
            return None
        totals = await self._totals(subjects(payer))
        for cap in self._caps.of(payer):
            if cap.is_reached(totals.get(cap.subject, Total())):
                self._tell(cap)
                return cap
        return None

    async def left(self, payer: Payer) -> list[dict[str, Any]]:
        """Show the caps of a payer as ``shown`` does."""
        now, totals = self._now(), await self._totals(subjects(payer))
        return [cap.shown(totals.get(cap.subject, Total()), now) for cap in self._caps.of(payer)]

    async def shown(self) -> list[dict[str, Any]] | None:
        """List the caps with what is left of them; of those on chats, people and jobs the nearest.

        None: there are none.
        """
        if not self.limited:
            return None
        return capped.shown(self._caps, await self._totals(), self._now())

    async def _totals(self, wanted: Iterable[Subject] | None = None) -> dict[Subject, Total]:
        return await usage_rows.totals_of(self._state, day_of(self._now()), wanted)

    def closed_until(self) -> datetime | None:
        """Return when the next day begins, where this one's cap on all was found to be reached."""
        found, now = (self._told.get(about) for about in ("cost", "tokens")), self._now()
        return next((at for at in found if at is not None and at > now), None)

    async def afford(self) -> None:
        """See that a call may still be paid today.

        Raises:
            NotNow: what may be spent is used up; ``reason`` is ``cost``.
            NewerFormat, StoreError: it cannot be known.
        """
        cap = await self.reached(Payer(""))
        if cap is not None:
            raise self._not_now(self._over(cap))

    # -- reserving -------------------------------------------------------------------------------------

    def meter(self, payer: Payer) -> Meter:
        """Make the meter of a turn; without any cap it does nothing but count."""
        return Meter(self if self.limited else None, payer)

    async def need(self, model: Model, prompt: Prompt, tokens: int) -> Need:
        """Price a request of at least ``tokens``; a model's library may have to be loaded for that."""
        if model.plain:
            return Need()

        def price() -> Need:
            sent = max(estimate_messages(prompt.messages) + estimate_tools(prompt.tools), tokens)
            if isinstance(model, Prices):
                return model.most(prompt, sent)
            return Need(sent + (prompt.max_tokens or 0), None)

        return self._priced(prompt.model or model.name, await asyncio.to_thread(price))

    async def need_of_texts(self, embedder: Embedder, texts: Sequence[str]) -> Need:
        """Price a request for vectors."""
        tokens = sum(map(estimate, texts))
        need = Need(tokens, None)
        if isinstance(embedder, PricesTexts):
            need = await asyncio.to_thread(embedder.most, tokens)
        return self._priced(embedder.name, need)

    def _priced(self, name: str, need: Need) -> Need:
        if need.cost_usd is None and name not in self._unpriced:
            self._unpriced.add(name)
            hint = "LiteLLM has no price for this model; only limits.tokens_per_day can cap it"
            log.warning("usage.no_price", model=name, hint=hint)
        return need

    @contextlib.asynccontextmanager
    async def request(self, key: str, model: Model, prompt: Prompt) -> AsyncIterator[Counts]:
        """Hold what a call that is no turn's own may cost while the context is open.

        It yields what counts the real cost, as no turn.

        Raises:
            NotNow: it would go over a cap; ``reason`` is ``cost``.
            StoreError: the disk refused; nothing is held.
        """
        need = partial(self.need, model, prompt, 0)
        async with self._held_for(Payer(key), prompt.model or model.name, need) as count:
            yield count

    @contextlib.asynccontextmanager
    async def embedding(
        self, payer: Payer, embedder: Embedder, texts: Sequence[str]
    ) -> AsyncIterator[Counts]:
        """Hold what vectors may cost that are no turn's own, as ``request``; it never waits for others."""
        need = partial(self.need_of_texts, embedder, texts)
        async with self._held_for(payer, embedder.name.partition(" ")[0], need) as count:
            yield count

    @contextlib.asynccontextmanager
    async def _held_for(
        self, payer: Payer, model: str, need: Callable[[], Awaitable[Need]]
    ) -> AsyncIterator[Counts]:
        held = replace(payer, id=durable.new_id())

        def count(usage: Usage | None) -> None:
            if usage is not None:
                self.record(replace(payer, id=""), usage, model=model, turn=False)

        try:
            if self.limited:
                await self._reserve_or_refuse(held, await need())
            yield count
        finally:
            self.settle(held, Usage())

    async def reserve(self, payer: Payer, need: Need, spent: Usage) -> Refused | None:
        """Reserve what a request may cost; return why not, where it would go over a cap.

        ``spent`` is what the requests of the turn before it have cost.
        """
        if self._unwritten:
            self._submit([])
        deciding = asyncio.ensure_future(self._reserve(payer, Amount.of(need), Amount.of(spent)))
        try:
            return await asyncio.shield(deciding)
        except asyncio.CancelledError:
            # ``settle`` has to know what is reserved.
            await asyncio.wait([deciding])
            if not deciding.cancelled():
                deciding.exception()
            raise

    async def _reserve(self, payer: Payer, need: Amount, spent: Amount) -> Refused | None:
        name = payer.key, payer.id
        if name not in self._held and (left := await usage_rows.held_of(self._state, payer)) is not None:
            self._held[name] = left
        while True:
            day, former = day_of(self._now()), self._held.get(name)
            held = Held(day, Total(spent, need))
            changes = [
                *self._moved(payer, former, Held(day, Total(spent))),
                usage_rows.keep(payer, os.getpid(), held),
                *usage_rows.reserve(day, payer, need, self._caps),
            ]
            try:
                await self._state.write(changes)
            except Conflict:
                totals = await usage_rows.totals_of(self._state, day, subjects(payer))
                ours = Total(spent) + (-former.part if former is not None and former.day == day else Total())
                totals = {subject: totals.get(subject, Total()) + ours for subject in subjects(payer)}
                refusal = capped.refused(self._caps, totals, payer, need)
                if refusal is not None:
                    return refusal
                continue
            self._held[name] = held
            return None

    def settle(self, payer: Payer, spent: Usage) -> None:
        """Hold no more than what was spent: no request is under way."""
        amount = Amount.of(spent)
        held = Held(day_of(self._now()), Total(amount)) if amount != Amount() else None
        if changes := self._hold(payer, held):
            self._submit(changes)

    def _hold(self, payer: Payer, held: Held | None) -> list[Change]:
        """Return the changes that put ``held`` in the place of what a turn or call holds, if it holds any."""
        former = self._held.pop((payer.key, payer.id), None)
        if former is None:
            return []
        if held is not None:
            self._held[payer.key, payer.id] = held
        settled, self._settled = self._settled, asyncio.Event()
        settled.set()
        return [*self._moved(payer, former, held), usage_rows.keep(payer, os.getpid(), held)]

    def _moved(self, payer: Payer, former: Held | None, held: Held | None) -> list[Change]:
        changes = list[Change]()
        for each, sign in ((former, -1), (held, 1)):
            if each is not None:
                part = each.part if sign > 0 else -each.part
                changes += usage_rows.add_to_totals(each.day, payer, part)
        return changes

    async def room(self) -> None:
        """Return when something was settled here, or it is time to look what others settled."""
        with contextlib.suppress(TimeoutError):
            await asyncio.wait_for(self._settled.wait(), LOOK_S)

    def over(self, refusal: Refused) -> OverCap:
        """Make the error of a request that would go over a cap."""
        self._tell(refusal.cap)
        return self._over(refusal.cap)

    async def _reserve_or_refuse(self, payer: Payer, need: Need) -> None:
        """Reserve what a call may cost that is no turn's own.

        Raises:
            NotNow: until the next day, or until the requests that are in the way will have ended.
        """
        refusal = await self.reserve(payer, need, Usage())
        if refusal is not None:
            again = self._clock() + timedelta(seconds=AGAIN_S) if refusal.passes else None
            raise self._not_now(self.over(refusal) if again is None else self._over(refusal.cap), again)

    def _tell(self, cap: Cap) -> None:
        until = self._until()
        if self._told.get(cap.about) != until:
            self._told = {about: at for about, at in self._told.items() if at == until} | {cap.about: until}
            who, at = cap.subject[1], until.isoformat()
            log.warning("usage.limit_reached", limit=cap.name, of=cap.limit, who=who, until=at)

    def _over(self, cap: Cap) -> OverCap:
        return OverCap(cap.name, about=cap.about, until=self._until())

    def _not_now(self, over: OverCap, again: datetime | None = None) -> NotNow:
        words = "today's budget is used up"
        return NotNow(words, reason="cost", until=again or over.until, hint=over.hint)

    def _until(self) -> datetime:
        return capped.next_day(self._clock())

    def _now(self) -> datetime:
        now = self._clock()
        return now if now.tzinfo is UTC else now.astimezone(UTC)


class Meter:
    """Adds up what the requests of a turn cost, so that it is known however the turn ends.

    ``spending`` keeps them within the caps on a day; None: there are none, and nothing is held.
    """

    def __init__(self, spending: Spending | None = None, payer: Payer = Payer("")) -> None:  # noqa: B008 - frozen
        self.usage = Usage()
        # Requests so far, their seconds, and those to the first text of the last one that had any.
        self.calls, self.model_s = 0, 0.0
        self.first_s: float | None = None
        self._spending = spending
        self._payer = payer

    @property
    def reserves(self) -> bool:
        """Whether ``request`` does anything."""
        return self._spending is not None

    def count(self, usage: Usage | None) -> None:
        """Add one request, as far as the provider counted it."""
        if usage is not None:
            self.usage += usage

    @contextlib.asynccontextmanager
    async def request(self, model: Model, prompt: Prompt, *, tokens: int = 0) -> AsyncIterator[Counts]:
        """Hold what a request may cost while the context is open; its real cost is counted within.

        It waits for requests of others that are in its way. ``tokens`` is how many the request has, where
        somebody knows better than the local estimate.

        Raises:
            OverCap: it would go over a cap.
            StoreError: the disk refused; nothing is held.
        """
        spending = self._spending
        if spending is None:
            yield self.count
            return
        try:
            if not model.plain:
                need = await spending.need(model, prompt, tokens)
                while (refusal := await spending.reserve(self._payer, need, self.usage)) is not None:
                    if not refusal.passes:
                        raise spending.over(refusal)
                    await spending.room()
            yield self.count
        finally:
            spending.settle(self._payer, self.usage)

    @contextlib.asynccontextmanager
    async def embedding(self, embedder: Embedder, texts: Sequence[str]) -> AsyncIterator[Counts]:
        """Hold what vectors may cost, as ``request``; a turn goes on without them, so it waits for nobody."""
        spending = self._spending
        if spending is None:
            yield self.count
            return
        try:
            need = await spending.need_of_texts(embedder, texts)
            if (refusal := await spending.reserve(self._payer, need, self.usage)) is not None:
                raise spending.over(refusal)
            yield self.count
        finally:
            spending.settle(self._payer, self.usage)


@dataclass(frozen=True, slots=True)
class OwnMeter:
    """Pays for vectors that are counted beside a turn, or without one."""

    spending: Spending
    payer: Payer

    def embedding(
        self, embedder: Embedder, texts: Sequence[str]
    ) -> contextlib.AbstractAsyncContextManager[Counts]:
        """Hold what they may cost while the context is open; it yields what counts the real cost."""
        return self.spending.embedding(self.payer, embedder, texts)


EmbeddingMeter = Meter | OwnMeter
