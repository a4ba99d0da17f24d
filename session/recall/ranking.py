"""Looks words up in FTS5 in bounded time, and ranks what they find by what was said around it.

The weights were chosen on five conversations of LoCoMo (Maharana et al. 2024) and tested on no others;
``DAY`` on three of them. The mean reciprocal rank on the two others went from 0.823 to 0.849 in the planned
run; 0.855 is of a second look, after which a bonus for phrases was removed.
"""

from __future__ import annotations

import sqlite3
from bisect import bisect_right
from collections import defaultdict
from collections.abc import Collection, Mapping, Sequence
from itertools import islice
from math import log
from typing import Final, NamedTuple

# One text in the index. Of a session neighbours differ by one, two sessions by more than two.
Row = int
GAP: Final = 3

BEFORE, AFTER, TWO_AWAY = 0.7, 0.6, 0.3
# A row counts for itself, for the one behind it, for the one before it, and for those two away.
_NEAR: Final = ((0, 1.0), (1, BEFORE), (-1, AFTER), (2, TWO_AWAY), (-2, TWO_AWAY))
SESSION, SESSION_FADES, SESSION_ROWS = 0.5, 0.5, 8
SPEAKER, QUESTION = 1.2, 0.8
OTHER_FORM = 0.6
# A date in the question counts as a word in all that was said then, so many times as much.
DAY = 2.0
# A name that stands in more of all rows than this is one of those who talk: it tells little of what is asked.
COMMON_NAME, NAME = 0.03, 0.25
# Notes and facts stand alone, with nothing around them that could speak for them.
ALONE = 1.6


class Traits(NamedTuple):
    """What is known of a row beside its words.

    ``group`` is the session that it was said in; ``alone`` says that it is a note or a fact; ``question``
    that it is a short question.
    """

    group: int
    speaker: int = 0
    question: bool = False
    alone: bool = False


def rank(
    scores: Sequence[Mapping[Row, float]], traits: Mapping[Row, Traits], asked: Collection[int] = ()
) -> list[tuple[Row, float]]:
    """Order rows, the best first, each with its score.

    ``scores`` say for each word of the question how well the rows that hold it do; ``traits`` are of all rows
    that may be returned; ``asked`` are the speakers whom the question names.
    """
    whole: defaultdict[Row, float] = defaultdict(float)
    for of_word in scores:
        for row, score in of_word.items():
            whole[row] += score
    sessions = _of_sessions(whole, traits)
    around = _around(traits, scores)
    ranked = [
        (row, _score(whole.get(row, 0.0), around[row], of, asked=asked, session=sessions.get(of.group, 0.0)))
        for row, of in traits.items()
    ]
    return sorted(ranked, key=lambda each: (-each[1], -each[0]))


def _score(own: float, around: float, of: Traits, *, asked: Collection[int], session: float) -> float:
    if of.alone:
        return own * ALONE
    score = around + SESSION * session
    if len(asked) == 1 and of.speaker in asked:
        score *= SPEAKER
    return score * QUESTION if of.question else score


def _around(rows: Collection[Row], scores: Sequence[Mapping[Row, float]]) -> dict[Row, float]:
    """Sum up for each row what the words are worth to it, held by itself or by one which stands beside it.

    Of a word the best counts alone: a name that everybody repeats says no more than once.
    """
    sums = dict.fromkeys(rows, 0.0)
    for of_word in scores:
        best: dict[Row, float] = {}
        for hit, score in of_word.items():
            for step, part in _NEAR:
                row = hit + step
                if row in sums and part * score > best.get(row, 0.0):
                    best[row] = part * score
        for row, score in best.items():
            sums[row] += score
    return sums


def _of_sessions(whole: Mapping[Row, float], traits: Mapping[Row, Traits]) -> dict[int, float]:
    rows: defaultdict[int, list[float]] = defaultdict(list)
    for row, score in whole.items():
        if row in traits:
            rows[traits[row].group].append(score)
    return {
        group: sum(
            score * SESSION_FADES**place
            for place, score in enumerate(sorted(found, reverse=True)[:SESSION_ROWS])
        )
        for group, found in rows.items()
    }


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
