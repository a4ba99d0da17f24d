"""The lines of the usage files: what a turn or another call cost, and what a call under way may cost."""

from __future__ import annotations

from dataclasses import dataclass, field
from datetime import UTC, date, datetime, timedelta
from typing import Any

import orjson

import durable
from session.errors import NewerFormat
from session.models.model import Need, Payer, Usage

VERSION = 1
# "Cancel": ends what a writer left that died in its write. Nobody counts it, and it is no damage.
CUT_SHORT = b"\x18"
# The clocks of machines that share a workspace may differ by so much.
SKEW = timedelta(minutes=1)


@dataclass(frozen=True, slots=True)
class SpendingRow:
    """One turn, or a call that is none's own: when it ended (UTC), its conversation, who asked, its cost.

    ``job`` is the cron job that it was for, ``model`` the one that was asked.
    ``id`` names the ``Hold`` of this conversation that it settles.
    """

    at: datetime
    key: str
    person: str
    usage: Usage
    turn: bool = True
    job: str = ""
    id: str = ""
    model: str = ""

    @property
    def settles(self) -> bool:
        """Whether it may take the place of a hold."""
        return bool(self.id)

    @property
    def payer(self) -> Payer:
        """Whom it counts for."""
        return Payer(self.key, self.person, self.job, self.id)

    def to_bytes(self) -> bytes:
        """Write it as a line."""
        fields: dict[str, Any] = {
            "at": self.at.isoformat(),
            "key": _sound(self.key),
            "person": _sound(self.person),
            **self.usage.fields(),
            # An older version passes over a line whose cost is no number.
            "cost_usd": self.usage.cost_usd,
        }
        if not self.turn:
            fields["turn"] = False
        if self.job:
            fields["job"] = _sound(self.job)
        if self.id:
            fields["id"] = _sound(self.id)
        if self.model:
            fields["model"] = _sound(self.model)
        return orjson.dumps(fields) + b"\n"


@dataclass(frozen=True, slots=True)
class Hold:
    """What is held for a turn or call that has not ended; of a ``key`` and ``id`` the newest line holds.

    ``spent`` is what its requests have cost so far, which counts for the day of ``at`` until a row settles
    it. ``need`` is what the one under way may cost, which counts up to ``until``.
    """

    at: datetime
    until: datetime
    payer: Payer
    spent: Usage = field(default_factory=Usage)
    need: Need = field(default_factory=Need)

    @property
    def settles(self) -> bool:
        """Whether no request is under way any more."""
        return self.until <= self.at

    def is_live(self, now: datetime) -> bool:
        """Say whether a request may be under way; where the clock was set back since, none is taken to be."""
        return self.at - SKEW <= now < self.until

    def to_bytes(self) -> bytes:
        """Write it as a line; an older version, which finds no ``prompt`` in it, passes it over."""
        payer, spent, need = self.payer, self.spent, self.need
        fields = {
            "hold": _sound(payer.id),
            "at": self.at.isoformat(),
            "until": self.until.isoformat(),
            "key": _sound(payer.key),
            "person": _sound(payer.person),
            "job": _sound(payer.job),
            "spent": [spent.prompt, spent.completion, spent.cost_usd],
            "need": [need.tokens, need.cost_usd or 0.0],
        }
        return orjson.dumps(fields) + b"\n"


UsageLine = SpendingRow | Hold


def read_line(raw: bytes, day: date) -> UsageLine | None:
    """Read a line of the file of ``day``; None where it is torn or damaged, or the heading.

    Raises:
        NewerFormat: it is the heading of a newer version.
    """
    try:
        fields: Any = orjson.loads(raw)
        if "v" in fields:
            durable.check_version(fields["v"], VERSION, f"usage of {day}", error=NewerFormat)
        at = datetime.fromisoformat(fields["at"]).astimezone(UTC)
        return _hold(fields, at) if "hold" in fields else _row(fields, at)
    except (ValueError, TypeError, KeyError, OverflowError):
        return None


def is_cut_short(line: bytes, *, last: bool) -> bool:
    """Say whether a line that cannot be read is the beginning of one whose writer died.

    It is marked as such by whoever wrote behind it; the last one (without its newline) may be yet to be.
    """
    return line == CUT_SHORT or (line.startswith(b'{"') and (last or line.endswith(CUT_SHORT)))


def _row(fields: Any, at: datetime) -> SpendingRow:
    prompt, completion, cost_usd = int(fields["prompt"]), int(fields["completion"]), float(fields["cost_usd"])
    cached, written = int(fields.get("cached", 0)), int(fields.get("cache_written", 0))
    # An older version wrote a cost of 0 where it knew none.
    unpriced = int(fields.get("unpriced", 0 if cost_usd else prompt + completion))
    return SpendingRow(
        at,
        str(fields["key"]),
        str(fields["person"]),
        Usage(prompt, completion, cost_usd, cached, written, unpriced),
        turn=fields.get("turn") is not False,
        job=str(fields.get("job", "")),
        id=str(fields.get("id", "")),
        model=str(fields.get("model", "")),
    )


def _hold(fields: Any, at: datetime) -> Hold:
    prompt, completion, cost_usd = fields["spent"]
    tokens, most_usd = fields["need"]
    return Hold(
        at,
        datetime.fromisoformat(fields["until"]).astimezone(UTC),
        Payer(str(fields["key"]), str(fields["person"]), str(fields["job"]), str(fields["hold"])),
        Usage(int(prompt), int(completion), float(cost_usd)),
        Need(int(tokens), float(most_usd)),
    )


def _sound(text: str) -> str:
    """Replace what no line can hold: a half of a surrogate pair."""
    return text.encode("utf-8", "replace").decode()
