"""What may be spent in a day, by whom: whether a request may be made is a function of totals; pure."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, fields
from datetime import UTC, datetime, timedelta
from typing import Final

from session.models.model import Need, Payer, Usage

HOUR, DAY = timedelta(hours=1), timedelta(days=1)
NANO: Final = 10**9
# A kind (day, chat, person, job) and who it is; the day's own sum has nobody's name.
Subject = tuple[str, str]
EVERYBODY: Final[Subject] = ("day", "")
_KINDS: Final = {
    "cost_per_day_usd": "day",
    "tokens_per_day": "day",
    "cost_per_chat_per_day_usd": "chat",
    "cost_per_person_per_day_usd": "person",
    "cost_per_job_per_day_usd": "job",
}
TOKENS: Final = "tokens_per_day"
SHOWN: Final = 10


@dataclass(frozen=True, slots=True)
class Amount:
    """Billionths of a dollar, and tokens."""

    cost_nano: int = 0
    tokens: int = 0

    @classmethod
    def of(cls, spent: Usage | Need) -> Amount:
        """Return what was spent, or is needed at most; an unknown price counts as none."""
        tokens = spent.tokens if isinstance(spent, Need) else spent.prompt + spent.completion
        return cls(round((spent.cost_usd or 0.0) * NANO), tokens)

    def __add__(self, other: Amount) -> Amount:
        """Sum up two amounts."""
        return Amount(self.cost_nano + other.cost_nano, self.tokens + other.tokens)

    def __neg__(self) -> Amount:
        """Return what takes it away."""
        return Amount(-self.cost_nano, -self.tokens)


@dataclass(frozen=True, slots=True)
class Total:
    """What one subject has spent on a day, and what is reserved for its requests under way."""

    spent: Amount = Amount()
    reserved: Amount = Amount()

    def __add__(self, other: Total) -> Total:
        """Sum up two totals."""
        return Total(self.spent + other.spent, self.reserved + other.reserved)

    def __neg__(self) -> Total:
        """Return what takes it away."""
        return Total(-self.spent, -self.reserved)


def subjects(payer: Payer) -> Iterator[Subject]:
    """List all for whom a payer's cost counts."""
    yield EVERYBODY
    yield "chat", payer.key
    if payer.person:
        yield "person", payer.person
    if job := payer.job_id:
        yield "job", job


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

    @property
    def most(self) -> int:
        """The limit in the unit of ``measure``."""
        return int(self.limit) if self.name == TOKENS else round(self.limit * NANO)

    def measure(self, amount: Amount) -> int:
        """Read from an amount what the cap is on."""
        return amount.tokens if self.name == TOKENS else amount.cost_nano

    def is_reached(self, total: Total) -> bool:
        """Say whether all of it is spent."""
        return self.measure(total.spent) >= self.most

    def shown(self, total: Total, now: datetime) -> dict[str, object]:
        """Return what ``status`` shows: ``used`` is spent, ``reserved`` held for requests under way."""
        unit = 1 if self.name == TOKENS else NANO
        used, reserved = self.measure(total.spent), self.measure(total.reserved)
        return {
            "limit": self.name,
            "who": self.subject[1] or None,
            "of": self.limit,
            "used": round(used / unit, 6),
            "reserved": round(reserved / unit, 6),
            "left": round(max(self.most - used - reserved, 0) / unit, 6),
            "until": next_day(now).isoformat(),
            "reached": self.is_reached(total),
        }


@dataclass(frozen=True, slots=True)
class Refused:
    """Why a request is not made: the cap, and whether it may be once the requests under way have ended."""

    cap: Cap
    passes: bool


def refused(caps: Caps, totals: Mapping[Subject, Total], payer: Payer, need: Amount) -> Refused | None:
    """Say whether a request would go over a cap; None: it may be made.

    ``totals`` hold what the payer's own turn has spent, and nothing that is reserved for it. Where only what
    others may still spend is in the way, the request may be made later.
    """
    waits: Refused | None = None
    for cap in caps.of(payer):
        total = totals.get(cap.subject, Total())
        spent = cap.measure(total.spent + need)
        if cap.is_reached(total) or spent > cap.most:
            return Refused(cap, passes=False)
        if spent + cap.measure(total.reserved) > cap.most:
            waits = waits or Refused(cap, passes=True)
    return waits


def shown(caps: Caps, totals: Mapping[Subject, Total], now: datetime) -> list[dict[str, object]]:
    """List the caps as ``status`` shows them; of chats, people and jobs those that have least left."""
    rows: list[dict[str, object]] = []
    for kind in dict.fromkeys(_KINDS.values()):
        found = sorted({EVERYBODY, *totals} if kind == "day" else totals)
        each = [
            cap.shown(totals.get(subject, Total()), now)
            for subject in found
            if subject[0] == kind
            for cap in caps.on(subject)
        ]
        rows += each if kind == "day" else sorted(each, key=lambda row: float(str(row["left"])))[:SHOWN]
    return rows


def next_day(now: datetime) -> datetime:
    """Return the midnight (UTC) at which the caps begin anew."""
    return now.astimezone(UTC).replace(hour=0, minute=0, second=0, microsecond=0) + DAY
