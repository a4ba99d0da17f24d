"""What models cost: all statements on ``usage``, ``totals`` and ``reservations`` of the state database."""

# ruff: noqa: S608 - statements are put together of constants, values are always bound

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import UTC, date, datetime, timedelta
from typing import Any, Final, Protocol

import durable
from durable import Change, Commit
from session.models.caps import NANO, TOKENS, Amount, Caps, Subject, Total, subjects
from session.models.model import Payer, Totals, Usage

KEPT_DAYS: Final = 35
# Stands for a key that was erased.
ERASED: Final = "-"
_DAY_MS: Final = 86_400_000
_NO_LIMIT: Final = 2**62
_ZERO: Final = Total()
_SUMS: Final = "sum(prompt), sum(completion), sum(cost_nano), sum(cached), sum(cache_written), sum(unpriced)"
_COLUMNS: Final = (
    "at_ms, turn, key, person, job, id, model, prompt, completion, cost_nano, cached, cache_written, unpriced"
)
_ADD_ROW: Final = f"INSERT INTO usage VALUES (?{', ?' * 13})"
# Not one statement for all rows of a batch: PostgreSQL refuses one that changes a row twice.
_NUMBERS: Final = "cost_nano, tokens, reserved_nano, reserved_tokens"
_ADD_TO_TOTAL: Final = f"""
INSERT INTO totals (day, kind, who, {_NUMBERS}) VALUES (?, ?, ?, ?, ?, ?, ?)
ON CONFLICT (day, kind, who) DO UPDATE SET
    cost_nano = totals.cost_nano + excluded.cost_nano, tokens = totals.tokens + excluded.tokens,
    reserved_nano = totals.reserved_nano + excluded.reserved_nano,
    reserved_tokens = totals.reserved_tokens + excluded.reserved_tokens
"""
_RESERVE: Final = """
UPDATE totals SET reserved_nano = reserved_nano + ?, reserved_tokens = reserved_tokens + ?
WHERE day = ? AND kind = ? AND who = ?
    AND cost_nano < ? AND cost_nano + reserved_nano + ? <= ?
    AND tokens < ? AND tokens + reserved_tokens + ? <= ?
"""
_KEEP: Final = f"""
INSERT INTO reservations (key, id, day, owner, person, job, {_NUMBERS}) VALUES (?, ?, ?, ?, ?, ?, ?, ?, ?, ?)
ON CONFLICT (key, id) DO UPDATE SET
    day = excluded.day, owner = excluded.owner, person = excluded.person, job = excluded.job,
    cost_nano = excluded.cost_nano, tokens = excluded.tokens,
    reserved_nano = excluded.reserved_nano, reserved_tokens = excluded.reserved_tokens
"""
_TOTALS: Final = f"SELECT kind, who, {_NUMBERS} FROM totals WHERE day = ?"
_RESERVED: Final = f"SELECT key, person, job, id, day, {_NUMBERS} FROM reservations"


class Rows(Protocol):
    """The state database, as ``session.store.state.StoreState`` has it."""

    async def read(self, statement: str, values: Sequence[Any] = ()) -> list[tuple[Any, ...]]:
        """Return the rows of a query."""
        ...

    async def write(self, changes: Sequence[Change]) -> object:
        """Commit changes."""
        ...

    def submit(self, changes: Sequence[Change]) -> Commit | None:
        """Hand changes over to be committed; None where it is not open for writing."""
        ...


@dataclass(frozen=True, slots=True)
class UsageRow:
    """One turn, or a call that is none's own: when it ended (UTC), for whom, what it cost."""

    at: datetime
    payer: Payer
    usage: Usage
    turn: bool
    model: str

    def as_dict(self) -> dict[str, Any]:
        """Return it as an export has it."""
        payer = self.payer
        fields = {"job": payer.job, "id": payer.id, "model": self.model}
        return {
            "at": self.at.isoformat(),
            "key": payer.key,
            "person": payer.person,
            "turn": self.turn,
            **self.usage.fields(),
            **{name: value for name, value in fields.items() if value},
        }


@dataclass(frozen=True, slots=True)
class Held:
    """The part in the totals of a day of a turn or call that has not ended."""

    day: int
    part: Total


def day_of(at: datetime) -> int:
    """Return the days since 1970 (UTC)."""
    return int(at.timestamp() // 86_400)


# -- changes -----------------------------------------------------------------------------------------------


def add_row(row: UsageRow) -> Change:
    """Return the change that counts a turn or call."""
    payer, usage = row.payer, row.usage
    names = tuple(map(sound, (payer.key, payer.person, payer.job, payer.id, row.model)))
    used = (usage.prompt, usage.completion, usage.cached, usage.cache_written, usage.unpriced)
    when = round(row.at.timestamp() * 1000), durable.random_below(_NO_LIMIT)
    values = (*when, int(row.turn), *names, *used, round(usage.cost_usd * NANO))
    return Change(_ADD_ROW, values)


def add_to_totals(day: int, payer: Payer, part: Total) -> list[Change]:
    """Return the changes that add ``part`` to the totals of everybody for whom a payer counts."""
    return [_add(day, subject, part) for subject in subjects(payer)] if part != _ZERO else []


def _add(day: int, subject: Subject, part: Total) -> Change:
    kind, who = subject
    return Change(_ADD_TO_TOTAL, (day, kind, sound(who), *_numbers(part)))


def reserve(day: int, payer: Payer, need: Amount, caps: Caps) -> list[Change]:
    """Return the changes that reserve ``need``; one that is required fails where it would go over a cap."""
    changes = []
    for subject in subjects(payer):
        found = list(caps.on(subject))
        changes.append(_add(day, subject, Total() if found else Total(reserved=need)))
        if found:
            cost, tokens = (
                next((cap.most for cap in found if (cap.name == TOKENS) == of_tokens), _NO_LIMIT)
                for of_tokens in (False, True)
            )
            which = (need.cost_nano, need.tokens, day, subject[0], sound(subject[1]))
            limits = (cost, need.cost_nano, cost, tokens, need.tokens, tokens)
            changes.append(Change(_RESERVE, (*which, *limits), required=True))
    return changes


def keep(payer: Payer, owner: int, held: Held | None) -> Change:
    """Return the change that keeps what a turn or call holds; None: it is settled."""
    held = held or Held(0, _ZERO)
    key, id_, person, job = map(sound, (payer.key, payer.id, payer.person, payer.job))
    return Change(_KEEP, (key, id_, held.day, owner, person, job, *_numbers(held.part)))


def forget_old(today: int) -> list[Change]:
    """Return the changes that remove what is older than it is kept."""
    oldest = today - KEPT_DAYS
    return [
        Change("DELETE FROM usage WHERE at_ms < ?", (oldest * _DAY_MS,)),
        Change("DELETE FROM totals WHERE day < ?", (oldest,)),
        Change("DELETE FROM reservations WHERE day < ?", (oldest,)),
    ]


async def release(state: Rows, owner: int) -> None:
    """Free what a process that died has reserved.

    Raises:
        StoreError, StateUnavailable: the disk refused.
    """
    held = await _reservations(state, "owner = ? AND (reserved_nano <> 0 OR reserved_tokens <> 0)", (owner,))
    changes: list[Change] = []
    for payer, each in held:
        reserved = Total(reserved=each.part.reserved)
        changes += add_to_totals(each.day, payer, -reserved)
        changes.append(keep(payer, owner, Held(each.day, Total(each.part.spent))))
    if changes:
        await state.write(changes)


# -- totals ------------------------------------------------------------------------------------------------


async def totals_of(state: Rows, day: int, wanted: Iterable[Subject] | None = None) -> dict[Subject, Total]:
    """Return the totals of some subjects on a day, or of all (None)."""
    if wanted is None:
        return {(kind, who): _total(numbers) for kind, who, *numbers in await state.read(_TOTALS, (day,))}
    names = {(kind, sound(who)): (kind, who) for kind, who in wanted}
    some = f"{_TOTALS} AND (kind, who) IN (VALUES {', '.join(['(?, ?)'] * len(names))})"
    rows = await state.read(some, (day, *(text for name in names for text in name)))
    return {names[kind, who]: _total(numbers) for kind, who, *numbers in rows}


async def held_of(state: Rows, payer: Payer) -> Held | None:
    """Return what an earlier process left of a turn that has not ended."""
    found = await _reservations(state, "key = ? AND id = ? AND day > 0", (sound(payer.key), sound(payer.id)))
    return found[0][1] if found else None


async def _reservations(state: Rows, where: str, values: Sequence[Any]) -> list[tuple[Payer, Held]]:
    rows = await state.read(f"{_RESERVED} WHERE {where}", values)
    return [(Payer(*each[:4]), Held(each[4], _total(each[5:]))) for each in rows]


def _numbers(total: Total) -> tuple[int, ...]:
    spent, reserved = total.spent, total.reserved
    return spent.cost_nano, spent.tokens, reserved.cost_nano, reserved.tokens


def _total(numbers: Sequence[int]) -> Total:
    return Total(Amount(*numbers[:2]), Amount(*numbers[2:]))


# -- rows --------------------------------------------------------------------------------------------------


async def sum_of_day(state: Rows, day: int) -> Totals:
    """Sum up the turns of a day (UTC), and what they and all other calls used."""
    query = f"SELECT sum(turn), {_SUMS} FROM usage WHERE at_ms >= ? AND at_ms < ?"
    for turns, *sums in await state.read(query, (day * _DAY_MS, (day + 1) * _DAY_MS)):
        if turns is not None:
            return Totals(int(turns), _usage(sums))
    return Totals()


async def ends_of_turns(state: Rows, person: str, since: datetime) -> list[datetime]:
    """List the ends of a person's turns after ``since``, oldest first."""
    query = "SELECT at_ms FROM usage WHERE at_ms > ? AND turn = 1 AND person = ? ORDER BY at_ms"
    rows = await state.read(query, (int(since.timestamp() * 1000), sound(person)))
    return [_at(at_ms) for (at_ms,) in rows]


async def of_turn(state: Rows, key: str, message_id: str, since: datetime) -> list[UsageRow]:
    """Return what the turn of a message is billed for, of rows after ``since``."""
    query = f"SELECT {_COLUMNS} FROM usage WHERE at_ms >= ? AND key = ? AND id = ? ORDER BY at_ms"
    values = (int(since.timestamp() * 1000), sound(key), sound(message_id))
    return [_row(*each) for each in await state.read(query, values)]


async def of_subject(state: Rows, keys: Collection[str], payers: Collection[str]) -> list[UsageRow]:
    """Return the rows of some chats, of jobs by their chats, and of some payers, oldest first."""
    where, values = _of(keys, payers)
    query = f"SELECT {_COLUMNS} FROM usage WHERE {where} ORDER BY at_ms, n"
    return [_row(*each) for each in await state.read(query, values)]


async def forget(state: Rows, keys: Collection[str], payers: Collection[str]) -> int:
    """Take the names of such chats and payers out of all rows; what they cost still counts for their days.

    Returns:
        How many rows of ``usage`` were changed.

    Raises:
        StoreError: the disk refused; call it again.
    """
    where, values = _of(keys, payers)
    changes: list[Change] = []
    # What is reserved for them must not stay in the sum of the day, which nobody will settle any more.
    for payer, each in await _reservations(state, where, values):
        changes += add_to_totals(each.day, payer, -Total(reserved=each.part.reserved))
    chats, jobs, people = list(map(sound, keys)), _jobs(keys), list(map(sound, payers))
    changes.append(Change(f"DELETE FROM reservations WHERE {where}", values))
    for kind, names in (("chat", chats), ("job", jobs), ("person", people)):
        gone = f"DELETE FROM totals WHERE kind = '{kind}' AND who IN {_marks(names)}"
        changes.append(Change(gone, names))
    changed = await of_subject(state, keys, payers)
    erased = f"UPDATE usage SET key = '{ERASED}', job = '', id = '' WHERE key IN {_marks(chats)}"
    changes += [
        Change(f"UPDATE usage SET person = '' WHERE {where}", values),
        Change(f"UPDATE usage SET job = '' WHERE job IN {_marks(jobs)}", jobs),
        Change(erased, chats),
    ]
    await state.write(changes)
    return len(changed)


def _of(keys: Collection[str], payers: Collection[str]) -> tuple[str, list[str]]:
    jobs = _jobs(keys)
    where = f"(key IN {_marks(keys)} OR person IN {_marks(payers)} OR job IN {_marks(jobs)})"
    return where, [*map(sound, keys), *map(sound, payers), *jobs]


def _jobs(keys: Collection[str]) -> list[str]:
    return [sound(key.removeprefix("cron:")) for key in keys if key.startswith("cron:")]


def _marks(values: Collection[str]) -> str:
    return f"({', '.join('?' * len(values)) or 'NULL'})"


def _row(at_ms: int, turn: int, *rest: Any) -> UsageRow:
    *payer, model = rest[:5]
    return UsageRow(_at(at_ms), Payer(*payer), _usage(rest[5:]), bool(turn), model)


def _usage(used: Sequence[int]) -> Usage:
    # PostgreSQL adds integers up to decimals.
    prompt, completion, cost_nano, *rest = map(int, used)
    return Usage(prompt, completion, cost_nano / NANO, *rest)


def _at(at_ms: int) -> datetime:
    return datetime.fromtimestamp(at_ms / 1000, UTC)


def sound(text: str) -> str:
    """Replace what no row can hold: a half of a surrogate pair."""
    return text.encode("utf-8", "replace").decode()


# -- sums for people ---------------------------------------------------------------------------------------


@dataclass(slots=True)
class Sums:
    """Turns, other calls, and what they used."""

    turns: int = 0
    calls: int = 0
    usage: Usage = field(default_factory=Usage)

    def add(self, turns: int, calls: int, usage: Usage) -> None:
        """Add some turns and calls."""
        self.turns += turns
        self.calls += calls
        self.usage += usage

    def as_dict(self) -> dict[str, int | float | None]:
        """Return it as clients see it."""
        return {"turns": self.turns, "calls": self.calls, **self.usage.shown()}


async def report(state: Rows, *, today: date, days: int, key: str = "") -> dict[str, Any]:
    """Sum up the last ``days`` days (UTC), the running one included; of one chat where a key is named.

    Returns:
        ``from``, ``to`` and ``total``; ``days`` oldest first, each with or without a turn; ``chats``,
        ``people`` and ``models``, the dearest first, then those with the most tokens.

    Raises:
        StoreError: they cannot be read.
    """
    first = today - timedelta(days=days - 1)
    by_day = {first + timedelta(days=further): Sums() for further in range(days)}
    chats: dict[str, Sums] = {}
    people: dict[str, Sums] = {}
    models: dict[str, Sums] = {}
    total, epoch = Sums(), date(1970, 1, 1)
    query = (
        f"SELECT at_ms / {_DAY_MS}, key, person, model, sum(turn), sum(1 - turn), {_SUMS} FROM usage "
        f"WHERE at_ms >= ? AND at_ms < ? {'AND key = ?' if key else ''} GROUP BY 1, 2, 3, 4"
    )
    span = ((each - epoch).days * _DAY_MS for each in (first, today + timedelta(days=1)))
    rows = await state.read(query, (*span, *([sound(key)] if key else [])))
    for day, chat, person, model, turns, calls, *used in rows:
        each = [total, by_day[epoch + timedelta(days=day)]]
        each += [chats.setdefault(chat, Sums()), models.setdefault(model, Sums())]
        if person:
            each.append(people.setdefault(person, Sums()))
        for one in each:
            one.add(int(turns), int(calls), _usage(used))
    return {
        "from": first.isoformat(),
        "to": today.isoformat(),
        "total": total.as_dict(),
        "days": [{"day": day.isoformat(), **sums.as_dict()} for day, sums in by_day.items()],
        "chats": _ranked("key", chats),
        "people": _ranked("person", people),
        "models": _ranked("model", models),
    }


def _ranked(name: str, found: Mapping[str, Sums]) -> list[dict[str, Any]]:
    def rank(item: tuple[str, Sums]) -> tuple[float, int, str]:
        usage = item[1].usage
        return -usage.cost_usd, -usage.prompt - usage.completion, item[0]

    return [{name: who, **sums.as_dict()} for who, sums in sorted(found.items(), key=rank)]
