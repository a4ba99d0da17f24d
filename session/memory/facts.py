"""``facts.jsonl`` of a scope: a fact a line, replaced whole; lines that are no facts stay as they are."""

from __future__ import annotations

import json
import os
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass
from functools import lru_cache
from math import isfinite
from pathlib import Path
from typing import Any

from session.disk.layout import read_file, seen
from session.disk.state import locked, replace_file
from session.errors import StoreError
from session.memory.likeness import repeats, same

FACTS = "facts.jsonl"
CATEGORIES = ("preference", "background", "pattern", "project", "contact", "decision")


@dataclass(frozen=True, slots=True)
class Fact:
    """One fact: its ULID, the text, how sure it is (0 to 1), and the message that it came from.

    ``created_at`` is an ISO time with its offset; ``replaced_by`` the id of the fact that holds instead.
    """

    id: str
    text: str
    category: str
    confidence: float
    key: str
    message_id: str | None
    created_at: str
    replaced_by: str | None = None

    def as_dict(self) -> dict[str, Any]:
        """Return the row of file, command line and API."""
        return asdict(self)


@dataclass(frozen=True, slots=True)
class Drawn:
    """A fact that was drawn from a conversation, and the id of the known one that it contradicts."""

    fact: Fact
    replaces: str | None = None


@dataclass(frozen=True, slots=True)
class _Row:
    raw: bytes
    fact: Fact | None


class FactsFile:
    """The facts of one folder, for any number of writers over all processes; for threads.

    Args:
        folder: the scope's folder of memory.
        lock: the file whose lock is held while this one is replaced.
    """

    def __init__(self, folder: Path, *, lock: Path) -> None:
        self.path = folder / FACTS
        self._lock = lock

    def facts(self) -> list[Fact]:
        """Read all facts, replaced ones among them, in the order in which they were stored.

        Raises:
            StoreError: the file cannot be read, or is no regular file.
        """
        return [row.fact for row in self._rows() if row.fact is not None]

    def add(self, drawn: Sequence[Drawn]) -> list[Fact]:
        """Store what is new, and let it replace what it contradicts; doing it twice changes nothing.

        Returns:
            The facts that were stored: those that are there already, or say nothing new, are not.

        Raises:
            StoreError: the disk refused; the file is as it was.
        """
        with locked(self._lock):
            rows = self._rows()
            fresh, replaced = merged([row.fact for row in rows if row.fact is not None], drawn)
            if fresh or replaced:
                kept = [_renewed(row, replaced) for row in rows]
                self._write([*kept, *map(_line, fresh)])
        return fresh

    def remove(self, id_: str) -> Fact | None:
        """Remove a fact for good, and the former ones that it replaced; None where there is none of this id.

        Raises:
            StoreError: the disk refused; the file is as it was.
        """
        with locked(self._lock):
            rows = self._rows()
            facts = [row.fact for row in rows if row.fact is not None]
            found = next((fact for fact in facts if fact.id == id_), None)
            if found is not None:
                gone = _with_former(facts, id_)
                self._write([row.raw for row in rows if row.fact is None or row.fact.id not in gone])
        return found

    def _rows(self) -> list[_Row]:
        if seen(self.path) is None:
            return []
        if not self.path.is_file():
            raise StoreError(f"{FACTS} is no regular file", hint=f"look at {self.path}")
        data = read_file(self.path)
        lines = data[0].split(b"\n") if data is not None else []
        return [_Row(line, read_fact(line)) for line in lines if line.strip(b" \t\r\0")]

    def _write(self, lines: Iterable[bytes]) -> None:
        # A link that the operator made stays one: the file that it points to is replaced.
        replace_file(Path(os.path.realpath(self.path)), b"".join(line + b"\n" for line in lines))


def active(facts: Iterable[Fact]) -> list[Fact]:
    """List the facts that hold: those that no other one replaced."""
    return [fact for fact in facts if fact.replaced_by is None]


def merged(known: Sequence[Fact], drawn: Sequence[Drawn]) -> tuple[list[Fact], dict[str, str]]:
    """Decide what of ``drawn`` is stored.

    Returns:
        The new facts, and which known ids are replaced by which. Exact and near repeats are not new; one
        that contradicts a known fact is compared with the others alone.
    """
    ids = {fact.id for fact in known}
    holding = {fact.id: fact for fact in active(known)}
    fresh: list[Fact] = []
    replaced: dict[str, str] = {}
    for each in drawn:
        fact, former = each.fact, holding.get(each.replaces or "")
        if fact.id in ids or (former is not None and same(fact.text, former.text)):
            continue
        others = (other for other in holding.values() if other is not former)
        repeated = next((other for other in others if repeats(fact.text, other.text)), None)
        if repeated is None:
            fresh.append(fact)
            holding[fact.id] = fact
        if former is not None:
            replaced[former.id] = fact.id if repeated is None else repeated.id
            del holding[former.id]
    return fresh, replaced


# A file of many facts is read again whenever one is added.
@lru_cache(maxsize=20_000)
def read_fact(line: bytes) -> Fact | None:
    """Read a line of the file; None for what is no fact."""
    try:
        row = json.loads(line.decode())
    except (ValueError, RecursionError):
        return None
    if not isinstance(row, Mapping):
        return None
    id_, text = row.get("id"), row.get("text")
    if not (isinstance(id_, str) and id_ and isinstance(text, str) and text.strip()):
        return None
    message_id, replaced_by = row.get("message_id"), row.get("replaced_by")
    return Fact(
        id=_written(id_),
        text=" ".join(_written(text).split()),
        category=_written(row.get("category")),
        confidence=_number(row.get("confidence")),
        key=_written(row.get("key")),
        message_id=_written(message_id) or None,
        created_at=_written(row.get("created_at")),
        replaced_by=_written(replaced_by) or None,
    )


def _written(value: object) -> str:
    """Return a text that can be written as UTF-8, which JSON does not promise; empty for what is none."""
    return value.encode("utf-8", "replace").decode() if isinstance(value, str) else ""


def _number(value: object) -> float:
    try:
        number = float(value) if isinstance(value, int | float) else 0.0
    except OverflowError:
        return 0.0
    return number if isfinite(number) else 0.0


def _line(fact: Fact) -> bytes:
    return json.dumps(fact.as_dict(), ensure_ascii=False).encode("utf-8", "replace")


def _renewed(row: _Row, replaced: Mapping[str, str]) -> bytes:
    """Return the row's line, with the fact that replaces it named; what else it holds stays in it."""
    if row.fact is None or row.fact.id not in replaced:
        return row.raw
    content = json.loads(row.raw.decode())
    changed = {**content, "replaced_by": replaced[row.fact.id]}
    return json.dumps(changed, ensure_ascii=False).encode("utf-8", "replace")


def _with_former(facts: Sequence[Fact], id_: str) -> set[str]:
    gone = {id_}
    while more := {fact.id for fact in facts if fact.replaced_by in gone} - gone:
        gone |= more
    return gone
