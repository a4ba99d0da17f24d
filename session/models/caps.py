"""What may be spent in a day, by whom: whether a request may be made is a function of the tally; pure."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, fields
from datetime import UTC, datetime

from session.models.model import Need, Payer, Usage
from session.models.tally import DAY, Amount, Subject, Tally, subjects
from session.models.usage_lines import Hold

# Sums of dollars are off by less than this part of them.
_TINY = 1e-9
_KINDS = {
    "cost_per_day_usd": "day",
    "tokens_per_day": "day",
    "cost_per_chat_per_day_usd": "chat",
    "cost_per_person_per_day_usd": "person",
    "cost_per_job_per_day_usd": "job",
}
TOKENS = "tokens_per_day"
SHOWN = 10


@dataclass(frozen=True, slots=True)
class Caps:
    """The caps on a day (UTC), by the names of ``[limits]``; 0 is none."""

    cost_per_day_usd: float = 0.0
    tokens_per_day: int = 0
    cost_per_chat_per_day_usd: float = 0.0
    cost_per_person_per_day_usd: float = 0.0
    cost_per_job_per_day_usd: float = 0.0

    @property
    def any(self) -> bool:
        """Whether there is one."""
        return any(getattr(self, field.name) > 0 for field in fields(self))

    def of(self, payer: Payer) -> Iterator[Cap]:
        """List those that a payer's requests count for."""
        for subject in subjects(payer):
            yield from self.on(subject)

    def on(self, subject: Subject) -> Iterator[Cap]:
        """List those on one subject."""
        for name, kind in _KINDS.items():
            limit = getattr(self, name)
            if kind == subject[0] and limit > 0:
                yield Cap(name, subject, limit)

    def kinds(self) -> set[str]:
        """Name the kinds of subjects that have a cap."""
        return {kind for name, kind in _KINDS.items() if getattr(self, name) > 0}


@dataclass(frozen=True, slots=True)
class Cap:
    """One cap on one subject: the key of ``[limits]``, for whom, and how much."""

    name: str
    subject: Subject
    limit: float

    @property
    def about(self) -> str:
        """Tell it from other caps, in a journal."""
        kind, who = self.subject
        return f"{kind} {who}" if who else ("tokens" if self.name == TOKENS else "cost")

    def measure(self, amount: Amount) -> float:
        """Read from an amount what the cap is on."""
        return amount.tokens if self.name == TOKENS else amount.cost_usd

    def is_reached(self, tally: Tally, now: datetime) -> bool:
        """Say whether all of it is spent."""
        return self.measure(tally.firm(self.subject, now)) >= self.limit * (1 - _TINY)

    def shown(self, tally: Tally, now: datetime) -> dict[str, object]:
        """Return what ``status`` shows: ``used`` is spent, ``reserved`` held for requests under way."""
        used = self.measure(tally.firm(self.subject, now))
        reserved = self.measure(tally.held(self.subject, now))
        return {
            "limit": self.name,
            "who": self.subject[1] or None,
            "of": self.limit,
            "used": round(used, 6),
            "reserved": round(reserved, 6),
            "left": round(max(self.limit - used - reserved, 0), 6),
            "until": next_day(now).isoformat(),
            "reached": self.is_reached(tally, now),
        }


@dataclass(frozen=True, slots=True)
class Ask:
    """A request that is about to be made: who pays, what it may cost, what the turn has spent before it."""

    payer: Payer
    need: Need
    spent: Usage
    until: datetime

    def hold(self, now: datetime) -> Hold:
        """Make the line that reserves it."""
        return Hold(now, max(self.until, now), self.payer, self.spent, self.need)


@dataclass(frozen=True, slots=True)
class Refused:
    """Why a request is not made: the cap, and whether it may be once the requests under way have ended."""

    cap: Cap
    passes: bool


def refused(caps: Caps, tally: Tally, ask: Ask, now: datetime) -> Refused | None:
    """Say whether a request would go over a cap; None: it may be made, and is to be held.

    What others may still spend counts as spent; where it alone is in the way, the request may be made later.
    """
    waits: Refused | None = None
    for cap in caps.of(ask.payer):
        own = Amount().plus(ask.spent.cost_usd, ask.spent.prompt + ask.spent.completion)
        need = cap.measure(own.plus(ask.need.cost_usd or 0.0, ask.need.tokens))
        firm = cap.measure(tally.firm(cap.subject, now, but=ask.payer))
        most = cap.limit * (1 + _TINY)
        reached = firm + cap.measure(own) >= cap.limit * (1 - _TINY)
        if reached or firm + need > most:
            return Refused(cap, passes=False)
        held = cap.measure(tally.held(cap.subject, now, but=ask.payer))
        if firm + held + need > most:
            waits = waits or Refused(cap, passes=True)
    return waits


def shown(caps: Caps, tally: Tally, now: datetime) -> list[dict[str, object]]:
    """List the caps as ``status`` shows them; of chats, people and jobs those that have least left."""
    rows: list[dict[str, object]] = []
    for kind in ("day", "chat", "person", "job"):
        if kind not in caps.kinds():
            continue
        found = {("day", "")} if kind == "day" else tally.known(kind, now)
        each = [cap.shown(tally, now) for subject in sorted(found) for cap in caps.on(subject)]
        rows += each if kind == "day" else sorted(each, key=lambda row: float(str(row["left"])))[:SHOWN]
    return rows


def next_day(now: datetime) -> datetime:
    """Return the midnight (UTC) at which the caps begin anew."""
    return now.astimezone(UTC).replace(hour=0, minute=0, second=0, microsecond=0) + DAY
