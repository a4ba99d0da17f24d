"""Ranks what was found by its words, by what was said around it and in its session; pure.

The weights were chosen on five conversations of LoCoMo (Maharana et al. 2024) and tested on no others;
``DAY`` on three of them. The mean reciprocal rank on the two others went from 0.823 to 0.849 in the planned
run; 0.855 is of a second look, after which a bonus for phrases was removed.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Collection, Mapping, Sequence
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

    Args:
        scores: for each word of the question, how well the rows that hold it do.
        traits: of all rows that may be returned.
        asked: the speakers whom the question names.
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
    """Sum up the best rows of each session, each counting half as much as the one before."""
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
