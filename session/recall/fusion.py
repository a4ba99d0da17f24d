"""Brings the order by words and the order by meaning together; pure.

A convex combination of both scores, each as a part of the best one, as Bruch, Gai and Ingber compare it ("An
Analysis of Fusion Functions for Hybrid Retrieval", ACM TOIS 2023): it is ahead of reciprocal rank fusion, and
has one number to choose. Scores of words begin at 0, cosines at -1 (their "theoretical min-max").
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

# What the meaning weighs; the words weigh the rest. On LoCoMo with all-MiniLM-L6-v2 it does best about here.
MEANING: Final = 0.5


def fused(words: Sequence[float], cosines: Sequence[float]) -> list[float]:
    """Return the scores of what was found, from 0 to 1.

    Args:
        words: how well each does by its words, all of them above 0.
        cosines: how near the first ones are to the question; those without count by their words alone, and
            so stay behind.
    """
    most, nearest = max(words, default=0.0), max(cosines, default=0.0) + 1
    scores = [(1 - MEANING) * own / most if most > 0 else 0.0 for own in words]
    for at, cosine in enumerate(cosines):
        scores[at] += MEANING * (cosine + 1) / nearest if nearest > 0 else 0.0
    return scores
