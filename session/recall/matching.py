"""Looks words up in FTS5, in a time that does not grow with how common they are."""

from __future__ import annotations

import sqlite3
from bisect import bisect_right
from collections.abc import Collection, Sequence
from itertools import islice
from math import log

from session.recall.ranking import DAY, Row

# Of each word so many rows are looked at, the best of them.
MOST_ROWS = 400
# Of all words together about so many rows are ranked, the rarest first, which takes a millisecond or two; in
# a small index all are. Common words then count where a rare one stands: with 1,000 rows less was found in
# five conversations of LoCoMo put together (the evidence in the first five for 66.4 % instead of 67.4 %).
RANKED_ROWS = 400
# The rarest of all is ranked up to here, its newest rows.
RAREST_ROWS = 1_000
SMALL_ROWS = 1_500
# A word is counted up to here; beyond it is as common as can be.
COUNTED_ROWS = 20_000


def matching(file: sqlite3.Connection, expressions: Sequence[str]) -> list[dict[Row, float]]:
    """Return for each word the rows that hold it, with how well, in a few milliseconds.

    Words are ranked while their rows are few; a common one counts where a rare one stands, too.
    """
    (rows,) = file.execute("SELECT coalesce(sum(rows), 0) FROM sources").fetchone()
    if rows <= SMALL_ROWS:
        found = [_ranked(file, each) for each in expressions]
    else:
        found = _within_bounds(file, expressions, rows)
    for number, of_word in enumerate(found):
        # The best rows of a word alone may lack those in which it stands with another.
        others = [
            expressions[at] for at, each in enumerate(found) if at != number and 0 < len(each) < MOST_ROWS
        ]
        if len(of_word) == MOST_ROWS and others:
            weight = _weight(rows, _count(file, expressions[number]))
            for row in _beside(file, expressions[number], others):
                of_word.setdefault(row, weight)
    return found


def said_on(file: sqlite3.Connection, days: Sequence[str], held: Collection[Row]) -> dict[Row, float]:
    """Return rows said on days (patterns for LIKE), of ``held`` all and the newest others, with one score."""
    like = " OR ".join(["day LIKE ?"] * len(days))
    spans = file.execute(f"SELECT first, last FROM days WHERE {like} ORDER BY first", days).fetchall()  # noqa: S608 - only ?
    firsts = [first for first, _ in spans]
    said = {row for row in held if (at := bisect_right(firsts, row)) and row <= spans[at - 1][1]}
    said.update(
        islice((row for first, last in reversed(spans) for row in range(last, first - 1, -1)), RANKED_ROWS)
    )
    (rows,) = file.execute("SELECT coalesce(sum(rows), 0) FROM sources").fetchone()
    return dict.fromkeys(said, DAY * _weight(rows, sum(last - first + 1 for first, last in spans)))


def _within_bounds(file: sqlite3.Connection, expressions: Sequence[str], rows: int) -> list[dict[Row, float]]:
    counts = [_count(file, each) for each in expressions]
    found: list[dict[Row, float]] = [{} for _ in expressions]
    left, rare = RANKED_ROWS, list[str]()
    for number in sorted(range(len(expressions)), key=counts.__getitem__):
        each, count = expressions[number], counts[number]
        if count <= left or not rare:
            found[number] = _ranked(file, each, since=_newest(file, each) if count > RAREST_ROWS else 0)
            rare += [each] if count else []
            left -= min(count, left)
        else:
            found[number] = dict.fromkeys(_beside(file, each, rare), _weight(rows, count))
    return found


def _ranked(file: sqlite3.Connection, expression: str, *, since: Row = 0) -> dict[Row, float]:
    found = file.execute(
        "SELECT rowid, -bm25(texts) FROM texts WHERE texts MATCH ? AND rowid > ? ORDER BY rank LIMIT ?",
        (expression, since, MOST_ROWS),
    )
    # A word that stands in more than half of all rows has a score below zero.
    return {row: max(score, 1e-6) for row, score in found}


def _beside(file: sqlite3.Connection, expression: str, rare: Sequence[str]) -> list[Row]:
    both = f"{expression} AND ({' OR '.join(rare)})"
    found = file.execute("SELECT rowid FROM texts WHERE texts MATCH ? LIMIT ?", (both, RAREST_ROWS))
    return [row for (row,) in found]


def _newest(file: sqlite3.Connection, expression: str) -> Row:
    """Return the row behind which the newest stand that can be ranked in a moment."""
    found = file.execute(
        "SELECT rowid FROM texts WHERE texts MATCH ? ORDER BY rowid DESC LIMIT 1 OFFSET ?",
        (expression, RAREST_ROWS),
    ).fetchone()
    return int(found[0]) if found is not None else 0


def _count(file: sqlite3.Connection, expression: str) -> int:
    found = file.execute(
        "SELECT count(*) FROM (SELECT 1 FROM texts WHERE texts MATCH ? LIMIT ?)", (expression, COUNTED_ROWS)
    ).fetchone()
    return int(found[0])


def _weight(rows: int, count: int) -> float:
    """Return what a word is worth in a text of usual length, as BM25 has it."""
    return max(log((rows - count + 0.5) / (count + 0.5)), 1e-6)
