"""When a job is due: its slots are a function of its schedule alone, so that all schedulers name the same."""

from __future__ import annotations

import re
from collections import deque
from collections.abc import Mapping
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta, tzinfo
from functools import lru_cache
from typing import Any, Final, Literal
from zoneinfo import ZoneInfo

from cronsim import CronSim, CronSimError

import durable
from channels.errors import ChannelError

Policy = Literal["skip", "once", "all"]
POLICIES: Final[tuple[Policy, ...]] = ("skip", "once", "all")
# A slot that is older is not made up.
HORIZON: Final = timedelta(hours=24)
# A slot that is younger counts as kept, whatever the policy.
GRACE: Final = timedelta(seconds=60)
MOST_MADE_UP: Final = 1_000
MIN_EVERY_MS: Final = 1_000

_EPOCH: Final = datetime(1970, 1, 1, tzinfo=UTC)
_TICK: Final = timedelta(microseconds=1)
_MS: Final = timedelta(milliseconds=1)
_SECOND: Final = timedelta(seconds=1)
# Of the calendar's first and last days the clocks of a zone, the tick before and the horizon leave it.
_FIRST: Final = datetime.min.replace(tzinfo=UTC) + timedelta(days=2)
_LAST: Final = datetime.max.replace(tzinfo=UTC) - timedelta(days=2)
_UNITS: Final = {"w": 604_800, "d": 86_400, "h": 3_600, "m": 60, "s": 1}
_EVERY: Final = re.compile(r"(?:[0-9]{1,9}[wdhms])+")
_WORDS: Final = {
    "@hourly": "0 * * * *",
    "@daily": "0 0 * * *",
    "@midnight": "0 0 * * *",
    "@weekly": "0 0 * * 0",
    "@monthly": "0 0 1 * *",
    "@yearly": "0 0 1 1 *",
    "@annually": "0 0 1 1 *",
}
_FIVE: Final = "five fields: minute, hour, day of month, month, day of week, such as 0 9 * * 1-5"


class BadSchedule(ChannelError):
    """A schedule that has no slots; ``hint`` says what would have."""


@dataclass(frozen=True, slots=True)
class At:
    """Once."""

    at: datetime


@dataclass(frozen=True, slots=True)
class Every:
    """At ``anchor`` plus every whole multiple of the interval, from one interval on."""

    every_ms: int
    anchor: datetime


@dataclass(frozen=True, slots=True)
class CronExpression:
    """By an expression of five fields, on the clocks of a zone."""

    expr: str
    zone: tzinfo


Schedule = At | Every | CronExpression


def parse_every(text: str) -> int:
    """Read an interval such as ``5s``, ``2h`` or ``1h30m``; return milliseconds.

    Raises:
        BadSchedule: it is none, or is shorter than a second.
    """
    plain = text.replace(" ", "").lower()
    if not _EVERY.fullmatch(plain):
        raise BadSchedule(
            f"{text!r} is not a valid interval", hint="a number with s, m, h, d or w: 90s, 2h, 1h30m"
        )
    ms = sum(int(number) * _UNITS[unit] for number, unit in re.findall(r"(\d+)([wdhms])", plain)) * 1_000
    return _checked_every(ms)


def instant_of(ms: int) -> datetime:
    """Return the instant of a number of milliseconds since 1970.

    Raises:
        BadSchedule: it lies outside of the calendar, or within two days of its ends.
    """
    if not is_date(ms):
        raise BadSchedule(f"{ms} ms is not a date", hint="milliseconds since 1970-01-01 UTC")
    return _EPOCH + ms * _MS


def is_date(ms: int) -> bool:
    """Say whether ``instant_of`` has an instant for a number of milliseconds since 1970."""
    return ms_of(_FIRST) <= ms <= ms_of(_LAST)


def ms_of(instant: datetime) -> int:
    """Return whole milliseconds since 1970."""
    return (instant - _EPOCH) // _MS


def zone_named(name: str) -> tzinfo:
    """Return the zone of an IANA name.

    Raises:
        BadSchedule: there is none of this name.
    """
    if name == "UTC":
        return UTC
    try:
        return ZoneInfo(name)
    except (KeyError, ValueError, OSError):
        raise BadSchedule(f"there is no time zone {name!r}", hint="a name such as Europe/Berlin") from None


def cron(expr: str, zone: tzinfo) -> CronExpression:
    """Read an expression of five fields, or a word such as ``@daily``.

    Raises:
        BadSchedule: it cannot be read, or never matches.
    """
    return _cron(expr.strip(), zone)


@lru_cache(maxsize=4096)
def _cron(expr: str, zone: tzinfo) -> CronExpression:
    plain = _WORDS.get(expr.lower(), expr)
    fields = plain.split()
    if len(fields) != 5:
        raise BadSchedule(f"{expr!r} has {len(fields)} fields", hint=_FIVE)
    # Some write ? for "any" where the other one of the two days decides.
    for position in (2, 4):
        fields[position] = "*" if fields[position] == "?" else fields[position]
    found = CronExpression(" ".join(fields), zone)
    try:
        comes = next(CronSim(found.expr, durable.now()), None)
    except CronSimError as error:
        raise BadSchedule(f"{expr!r}: {str(error).lower()}", hint=_cure(fields)) from None
    # The library stumbles over some expressions that it has not foreseen.
    except (ValueError, TypeError, AssertionError, IndexError, OverflowError):
        raise BadSchedule(f"{expr!r} cannot be read", hint=_cure(fields)) from None
    if comes is None:
        raise BadSchedule(f"{expr!r} never matches", hint=_FIVE)
    return found


def _cure(fields: list[str]) -> str:
    for field in fields:
        turned = re.fullmatch(r"(\d+)-(\d+)", field)
        if turned and int(turned[1]) > int(turned[2]):
            return f"split a range that passes the end: {turned[1]}-…,…-{turned[2]}"
        if re.fullmatch(r"[lL]\d", field):
            return f"write the last such weekday as {field[1]}L"
    return _FIVE


def read(fields: Mapping[str, Any], *, anchor_ms: int, zone: tzinfo) -> Schedule:
    """Read the ``schedule`` of a job.

    Args:
        fields: as they stand in the file: ``kind`` with ``atMs``, ``everyMs``, or ``expr`` and ``tz``.
        anchor_ms: from where intervals count.
        zone: of an expression without ``tz``.

    Raises:
        BadSchedule: it has no slots.
    """
    kind = fields.get("kind")
    if kind == "at":
        return At(instant_of(_whole(fields, "atMs")))
    if kind == "every":
        return Every(_checked_every(_whole(fields, "everyMs")), instant_of(anchor_ms))
    if kind == "cron":
        expr, tz = fields.get("expr"), fields.get("tz")
        if not isinstance(expr, str):
            raise BadSchedule("schedule.expr is not a string", hint=_FIVE)
        if not isinstance(tz, str | None):
            raise BadSchedule("schedule.tz is not a string", hint="a name such as Europe/Berlin")
        return cron(expr, zone_named(tz) if tz else zone)
    raise BadSchedule(f"schedule.kind is {kind!r}", hint="at, every or cron")


def asked(
    *,
    every: str | None = None,
    expr: str | None = None,
    tz: str | None = None,
    at: str | None = None,
    heartbeat: str | None = None,
    zone: tzinfo,
    now: datetime,
) -> Schedule:
    """Read what a person asks for: one of an interval, that of a heartbeat, an expression, a date and time.

    An expression, and a date without an offset, are on the clocks of ``tz``, else of ``zone``. A time that
    these clocks leap over is the moment right after the leap; one that comes twice is the first of the two.

    Raises:
        BadSchedule: it cannot be read, is in the past, or is among the last days of the calendar.
    """
    if sum(one is not None for one in (every, expr, at, heartbeat)) != 1:
        raise BadSchedule("expected exactly one schedule", hint="use one of every, cron, at and heartbeat")
    every = every if heartbeat is None else heartbeat
    if tz is not None and every is not None:
        raise BadSchedule(
            "an interval has no time zone", hint="a time zone works with a cron expression or a date"
        )
    if tz is not None:
        zone = zone_named(tz)
    if every is not None:
        return Every(parse_every(every), instant_of(ms_of(now)))
    if expr is not None:
        return cron(expr, zone)
    assert at is not None
    try:
        local = datetime.fromisoformat(at.strip())
        if tz is not None and local.tzinfo is not None:
            raise BadSchedule(
                f"{at} has both an offset and a time zone", hint="use either the offset or the time zone"
            )
        moment = local.astimezone(UTC) if local.tzinfo is not None else _on_clocks(local, zone)
    except (ValueError, OverflowError):
        raise BadSchedule(
            f"{at!r} is not a valid date and time", hint="2027-01-01T09:00, or with an offset"
        ) from None
    if moment <= now:
        here = now.astimezone(zone)
        raise BadSchedule(f"{at} is in the past", hint=f"a time after {here:%Y-%m-%dT%H:%M} ({zone})")
    if moment > _LAST:
        raise BadSchedule(f"{at} is too far in the future", hint=f"a time before {_LAST:%Y-%m-%d}")
    return At(instant_of(ms_of(moment)))


def _on_clocks(local: datetime, zone: tzinfo) -> datetime:
    """Return when the clocks of a zone show this: the first time, or right after a leap over it; UTC."""
    early, late = (local.replace(tzinfo=zone, fold=fold).astimezone(UTC) for fold in (0, 1))
    if early.astimezone(zone).replace(tzinfo=None) == local:
        return early
    # The leap lies between what the offsets after it and before it make of the time: found by halving.
    before, after = min(early, late), max(early, late)
    offset = before.astimezone(zone).utcoffset()
    while after - before > _SECOND:
        middle = before + (after - before) / 2
        if middle.astimezone(zone).utcoffset() == offset:
            before = middle
        else:
            after = middle
    return after.replace(microsecond=0)


def _whole(fields: Mapping[str, Any], name: str) -> int:
    value = fields.get(name)
    if isinstance(value, float) and value.is_integer():
        value = int(value)
    if type(value) is not int:
        raise BadSchedule(f"schedule.{name} is not a whole number", hint="milliseconds")
    return value


def _checked_every(ms: int) -> int:
    if ms < MIN_EVERY_MS:
        raise BadSchedule(f"an interval of {ms} ms is too short", hint="use one second or more")
    if ms > 100 * 366 * 86_400_000:
        raise BadSchedule("an interval of over 100 years is too long", hint="use a shorter one")
    return ms


def next_after(schedule: Schedule, instant: datetime) -> datetime | None:
    """Return the first slot after ``instant``, in UTC; None where no more comes."""
    try:
        if isinstance(schedule, At):
            return schedule.at if schedule.at > instant else None
        if isinstance(schedule, Every):
            return _multiple(schedule, max((instant - schedule.anchor) // _every(schedule) + 1, 1))
        for slot in CronSim(schedule.expr, instant.astimezone(schedule.zone)):
            # A repeated hour is walked through from its start.
            if (found := slot.astimezone(UTC)) > instant:
                return found
    except OverflowError:
        return None
    return None


def latest(schedule: Schedule, instant: datetime) -> datetime | None:
    """Return the last slot up to ``instant`` and not before the horizon behind it; None where none was."""
    oldest = instant - HORIZON - _SECOND
    if isinstance(schedule, At):
        found: datetime | None = schedule.at
    elif isinstance(schedule, Every):
        number = (instant - schedule.anchor) // _every(schedule)
        found = _multiple(schedule, number) if number >= 1 else None
    else:
        found = _latest_cron(schedule, instant)
    return found if found is not None and oldest <= found <= instant else None


def _latest_cron(schedule: CronExpression, instant: datetime) -> datetime | None:
    """Walk back one slot; where that does not fit the walk forwards (clocks that change), walk forwards."""
    after = instant.replace(microsecond=0) + _SECOND
    back = next(CronSim(schedule.expr, after.astimezone(schedule.zone), reverse=True), None)
    if back is not None:
        found = back.astimezone(UTC)
        following = next_after(schedule, found)
        if next_after(schedule, found - _TICK) == found and (following is None or following > instant):
            return found
    found_forwards = None
    slot = next_after(schedule, instant - HORIZON - _SECOND)
    while slot is not None and slot <= instant:
        found_forwards, slot = slot, next_after(schedule, slot)
    return found_forwards


def is_slot(schedule: Schedule, instant: datetime) -> bool:
    """Say whether a job of this schedule is due at exactly this instant."""
    return next_after(schedule, instant - _TICK) == instant


def missed(schedule: Schedule, last: datetime, now: datetime, policy: Policy) -> list[datetime]:
    """List the slots after ``last`` and up to ``now`` that are to run now, oldest first.

    ``once``: the newest, where it is at most 24 hours old. ``skip``: the newest, where it is at most a minute
    old. ``all``: every one of the last 24 hours, at most the newest 1,000.
    """
    first = next_after(schedule, last)
    if first is None or first > now:
        return []
    following = next_after(schedule, first)
    youngest = first if following is None or following > now else latest(schedule, now)
    if youngest is None or youngest <= last or youngest < now - HORIZON:
        return []
    if policy != "all":
        return [youngest] if policy == "once" or now - youngest <= GRACE else []
    found: deque[datetime] = deque(maxlen=MOST_MADE_UP)
    begin = max(last, now - HORIZON - _TICK)
    if isinstance(schedule, Every):
        begin = max(begin, youngest - MOST_MADE_UP * _every(schedule))
    slot = next_after(schedule, begin)
    while slot is not None and slot <= now:
        found.append(slot)
        slot = next_after(schedule, slot)
    return list(found)


def newest(schedule: Schedule, slot: datetime, now: datetime) -> datetime:
    """Return the last slot up to ``now``, where ``slot`` is one that has passed."""
    found = latest(schedule, now)
    if found is not None and found > slot:
        return found
    following = next_after(schedule, slot)
    while following is not None and following <= now:
        slot, following = following, next_after(schedule, following)
    return slot


def slot_name(slot: datetime) -> str:
    """Write a slot as it stands in an id: ISO 8601 UTC, with milliseconds only where it has some."""
    precision = "milliseconds" if slot.microsecond else "seconds"
    return f"{slot.astimezone(UTC).replace(tzinfo=None).isoformat(timespec=precision)}Z"


def in_words(schedule: Schedule, zone: tzinfo) -> str:
    """Describe a schedule: ``every 1h30m``, ``0 9 * * 1-5 Europe/Berlin``, ``at 2027-01-01 09:00 CET``."""
    if isinstance(schedule, At):
        local = schedule.at.astimezone(zone)
        return f"at {local:%Y-%m-%d %H:%M}" + (f":{local:%S}" if local.second else "") + f" {local:%Z}"
    if isinstance(schedule, CronExpression):
        return f"{schedule.expr} {schedule.zone}"
    rest, text = schedule.every_ms // 1_000, ""
    for unit, seconds in _UNITS.items():
        number, rest = divmod(rest, seconds)
        text += f"{number}{unit}" if number else ""
    return f"every {text}"


def _every(schedule: Every) -> timedelta:
    return schedule.every_ms * _MS


def _multiple(schedule: Every, number: int) -> datetime:
    return schedule.anchor + number * _every(schedule)
