"""What was spent and what is held, summed up by day and by whom it counts for; pure."""

from __future__ import annotations

from collections import deque
from collections.abc import Collection, Iterator
from dataclasses import dataclass
from datetime import UTC, date, datetime, timedelta

from session.models.model import Payer, Totals, Usage
from session.models.usage_lines import Hold, SpendingRow, UsageLine

HOUR, DAY = timedelta(hours=1), timedelta(days=1)
# A kind (day, chat, person, job) and who it is; the day's own sum has nobody's name.
Subject = tuple[str, str]
EVERYBODY: Subject = ("day", "")
_NOTHING = Totals()


@dataclass(frozen=True, slots=True)
class Amount:
    """Dollars and tokens."""

    cost_usd: float = 0.0
    tokens: int = 0

    def plus(self, cost_usd: float, tokens: int) -> Amount:
        """Add to it."""
        return Amount(self.cost_usd + cost_usd, self.tokens + tokens)


def subjects(payer: Payer) -> Iterator[Subject]:
    """List all for whom a payer's cost counts."""
    yield EVERYBODY
    yield "chat", payer.key
    if payer.person:
        yield "person", payer.person
    if job := payer.job_id:
        yield "job", job


class Tally:
    """Sums over the lines of the usage files, of the days that are kept.

    Args:
        by_subject: whether chats, people and jobs are summed up, too, and holds are known.
        with_ends: whether the ends of the turns of an hour are kept, of each person.
    """

    def __init__(self, *, by_subject: bool, with_ends: bool) -> None:
        self._by_subject = by_subject
        self._with_ends = with_ends
        self._days: dict[date, Totals] = {}
        self._amounts: dict[date, dict[Subject, Amount]] = {}
        self._holds: dict[tuple[str, str], Hold] = {}
        self._ends: dict[str, deque[datetime]] = {}
        self._swept: datetime | None = None
        self._kept: set[date] = set()

    def take(self, line: UsageLine, now: datetime) -> None:
        """Add a line; of one turn's holds the newest stands, until its row."""
        if isinstance(line, Hold):
            if self._by_subject:
                self._hold(line)
            return
        day = line.at.date()
        self._days[day] = added(self._days.get(day, _NOTHING), line)
        if self._by_subject:
            self._holds.pop((line.key, line.id), None)
            sums = self._amounts.setdefault(day, {})
            for subject in subjects(line.payer):
                sums[subject] = _plus(sums.get(subject, Amount()), line.usage)
        if self._with_ends and line.turn and line.at > now - HOUR:
            self._add_end(line.person, line.at, now - HOUR)

    def is_over(self, now: datetime) -> bool:
        """Say whether a day is known that is not that of ``now``."""
        return len(self._days) > 1 or now.date() not in self._days

    def keep(self, days: Collection[date]) -> None:
        """Forget all other days: the clock leapt, or they are over. Their files may be read again."""
        if self._kept == set(days):
            return
        self._kept = set(days)
        self._days = {day: sums for day, sums in self._days.items() if day in days}
        self._amounts = {day: sums for day, sums in self._amounts.items() if day in days}
        self._holds = {which: hold for which, hold in self._holds.items() if hold.at.date() in days}
        self._ends = {
            person: kept
            for person, ends in self._ends.items()
            if (kept := deque(at for at in ends if at.date() in days))
        }

    def copy(self) -> Tally:
        """Return another one with the same sums."""
        other = Tally(by_subject=self._by_subject, with_ends=self._with_ends)
        other._days = dict(self._days)
        other._amounts = {day: dict(sums) for day, sums in self._amounts.items()}
        other._holds = dict(self._holds)
        other._ends = {person: deque(ends) for person, ends in self._ends.items()}
        return other

    def day(self, day: date) -> Totals:
        """Sum up the rows of a day."""
        return self._days.get(day, _NOTHING)

    def firm(self, subject: Subject, now: datetime, *, but: Payer | None = None) -> Amount:
        """Sum up what is spent for good on the day of ``now``, by turns that run, too, ``but`` for one."""
        day = now.astimezone(UTC).date()
        sums = self._amounts.get(day, {}).get(subject, Amount())
        for hold in self._holds_of(subject, but):
            if hold.at.date() == day:
                sums = _plus(sums, hold.spent)
        return sums

    def held(self, subject: Subject, now: datetime, *, but: Payer | None = None) -> Amount:
        """Sum up what the requests under way may cost at most, ``but`` for those of one turn."""
        sums = Amount()
        for hold in self._holds_of(subject, but):
            if hold.is_live(now):
                sums = sums.plus(hold.need.cost_usd or 0.0, hold.need.tokens)
        return sums

    def known(self, kind: str, now: datetime) -> set[Subject]:
        """List everybody of a kind who spent or holds something on the day of ``now``."""
        day = now.astimezone(UTC).date()
        found = {subject for subject in self._amounts.get(day, {}) if subject[0] == kind}
        for hold in self._holds.values():
            found |= {subject for subject in subjects(hold.payer) if subject[0] == kind}
        return found

    def ends(self, person: str, since: datetime) -> list[datetime]:
        """List the ends of a person's turns after ``since``, at most an hour ago, oldest first."""
        ends = self._ends.get(person, deque())
        while ends and ends[0] <= since:
            ends.popleft()
        return list(ends)

    def _hold(self, hold: Hold) -> None:
        which = (hold.payer.key, hold.payer.id)
        if hold.spent == Usage() and hold.settles:
            self._holds.pop(which, None)
        else:
            self._holds[which] = hold

    def _holds_of(self, subject: Subject, but: Payer | None) -> Iterator[Hold]:
        for (key, id_), hold in self._holds.items():
            if but is not None and (key, id_) == (but.key, but.id):
                continue
            if subject in subjects(hold.payer):
                yield hold

    def _add_end(self, person: str, at: datetime, since: datetime) -> None:
        ends = self._ends.setdefault(person, deque())
        ends.append(at)
        if len(ends) > 1 and ends[-2] > at:
            ends = self._ends[person] = deque(sorted(ends))
        # Nobody may ask for them: whoever is never silent for an hour would leave one more with each turn.
        while ends[0] <= since:
            ends.popleft()
        self._swept = self._swept or at
        if at - self._swept > HOUR:
            self._swept = at
            self._ends = {who: ends for who, ends in self._ends.items() if ends and ends[-1] > since}


def added(sums: Totals, row: SpendingRow) -> Totals:
    """Add a row to the sums of a day."""
    return Totals(sums.turns + row.turn, sums.usage + row.usage)


def _plus(sums: Amount, usage: Usage) -> Amount:
    return sums.plus(usage.cost_usd, usage.prompt + usage.completion)
