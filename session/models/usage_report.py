"""Sums up what models cost over days, chats, people and models, of the usage files; reads alone."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field
from datetime import date, timedelta
from pathlib import Path
from typing import Any

from session.errors import StoreError
from session.models.model import Usage
from session.models.usage_files import KEPT_DAYS
from session.models.usage_lines import SpendingRow, read_line

MOST_DAYS = KEPT_DAYS


@dataclass(slots=True)
class Sums:
    """Turns, other calls, and what they used."""

    turns: int = 0
    calls: int = 0
    usage: Usage = field(default_factory=Usage)

    def add(self, row: SpendingRow) -> None:
        """Add one turn or call."""
        self.turns += row.turn
        self.calls += not row.turn
        self.usage += row.usage

    def as_dict(self) -> dict[str, int | float | None]:
        """Return it as clients see it."""
        return {"turns": self.turns, "calls": self.calls, **self.usage.shown()}


def report(folder: Path, *, today: date, days: int, key: str = "") -> dict[str, Any]:
    """Sum up the last ``days`` days (UTC), the running one included; of one chat where a key is named.

    For threads.

    Returns:
        ``from``, ``to`` and ``total``; ``days`` oldest first, each with or without a turn; ``chats``,
        ``people`` and ``models``, the dearest first, then those with the most tokens.

    Raises:
        NewerFormat: a newer version writes these files.
        StoreError: they cannot be read.
    """
    first = today - timedelta(days=days - 1)
    by_day = {first + timedelta(days=further): Sums() for further in range(days)}
    chats: dict[str, Sums] = {}
    people: dict[str, Sums] = {}
    models: dict[str, Sums] = {}
    total = Sums()
    for day, sums in by_day.items():
        for row in _rows(folder / f"{day.isoformat()}.jsonl", day):
            if key and row.key != key:
                continue
            each = [total, sums, chats.setdefault(row.key, Sums()), models.setdefault(row.model, Sums())]
            if row.person:
                each.append(people.setdefault(row.person, Sums()))
            for one in each:
                one.add(row)
    return {
        "from": first.isoformat(),
        "to": today.isoformat(),
        "total": total.as_dict(),
        "days": [{"day": day.isoformat(), **sums.as_dict()} for day, sums in by_day.items()],
        "chats": _ranked("key", chats),
        "people": _ranked("person", people),
        "models": _ranked("model", models),
    }


def of_turn(folder: Path, key: str, message_id: str, days: Iterable[date]) -> list[SpendingRow]:
    """Return what the turn of a message is billed for in the files of some days (UTC); for threads.

    Raises:
        NewerFormat, StoreError: as ``report``.
    """
    return [
        row
        for day in days
        for row in _rows(folder / f"{day.isoformat()}.jsonl", day)
        if (row.key, row.id) == (key, message_id)
    ]


def _ranked(name: str, found: dict[str, Sums]) -> list[dict[str, Any]]:
    def rank(item: tuple[str, Sums]) -> tuple[float, int, str]:
        usage = item[1].usage
        return -usage.cost_usd, -usage.prompt - usage.completion, item[0]

    # Lines of earlier versions name no model.
    return [{name: who or None, **sums.as_dict()} for who, sums in sorted(found.items(), key=rank)]


def _rows(path: Path, day: date) -> Iterator[SpendingRow]:
    try:
        with path.open("rb") as file:
            for raw in file:
                row = read_line(raw, day)
                if isinstance(row, SpendingRow):
                    yield row
    except FileNotFoundError:
        return
    except OSError as error:
        raise StoreError(
            f"the usage records cannot be read: {error.strerror}", hint=f"check {path}"
        ) from error
