"""Ranks what was found by its words, by what was said around it and in its session; pure.

The weights were chosen on five conversations of LoCoMo (Maharana et al. 2024) and tested on no others.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass
from typing import Final

# One text in the index. Of a session neighbours differ by one, two sessions by more than two.
Row = int
GAP: Final = 3

BEFORE, AFTER, TWO_AWAY = 0.7, 0.6, 0.3
SESSION, SESSION_FADES, SESSION_ROWS = 0.5, 0.5, 8
SPEAKER, QUESTION = 1.2, 0.8
OTHER_FORM = 0.6
# A name that stands in more of all rows than this is one of those who talk: it tells little of what is asked.
COMMON_NAME, NAME = 0.03, 0.25
# Notes and facts stand alone, with nothing around them that could speak for them.
ALONE = 1.6


@dataclass(frozen=True, slots=True)
class Traits:
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
    ranked = [
        (row, _score(row, whole.get(row, 0.0), scores, of, asked=asked, session=sessions.get(of.group, 0.0)))
        for row, of in traits.items()
    ]
    return sorted(ranked, key=lambda each: (-each[1], -each[0]))


def _score(
    row: Row,
    own: float,
    scores: Sequence[Mapping[Row, float]],
    of: Traits,
    *,
    asked: Collection[int],
    session: float,
) -> float:
    if of.alone:
        return own * ALONE
    score = sum([_of_word(row, of_word.get) for of_word in scores]) + SESSION * session
    if len(asked) == 1 and of.speaker in asked:
        score *= SPEAKER
    return score * QUESTION if of.question else score


def _of_word(row: Row, get: Callable[[Row, float], float]) -> float:
    """Return what a word is worth to a row that holds it, or that stands beside one which does.

    The best counts alone: a name that everybody repeats says no more than once.
    """
    return max(
        get(row, 0.0),
        BEFORE * get(row - 1, 0.0),
        AFTER * get(row + 1, 0.0),
        TWO_AWAY * max(get(row - 2, 0.0), get(row + 2, 0.0)),
    )


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
