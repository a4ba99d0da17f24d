"""Puts what was found by its words into another order by its meaning, where there is an embedding model."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import Final

from session.context.embeddings import Embeddings
from session.context.relevance import comparable
from session.models.model import CostMeter, Meter, OwnMeter, Payer
from session.recall.finding import Found, Hit
from session.store.derived import Passage

# So many are compared, the best by their words.
COMPARED: Final = 40


class Nearness:
    """Compares what was found with the question.

    Args:
        embeddings: compares texts.
        cost_meter: pays for that; None: it costs nothing.
    """

    def __init__(self, embeddings: Embeddings, *, cost_meter: CostMeter | None = None) -> None:
        self._embeddings = embeddings
        self._cost_meter = cost_meter

    async def ranked(self, payer: Payer, stem: str, question: str, found: Sequence[Found]) -> list[Hit]:
        """Return the hits, the best first; in the order of their words where the model says nothing now.

        Args:
            payer: the conversation that asks, and who asks in it.
            stem: its file. Vectors of notes are kept under it, those of messages under their own.
            question: what was looked for.
            found: the best by their words first.
        """
        hits = [each.hit for each in found]
        # What is found alone has no other order.
        if len(hits) < 2:
            return hits
        passages = [
            Passage(each.stem or stem, comparable(each.text), each.still) for each in found[:COMPARED]
        ]
        meter = OwnMeter(self._cost_meter, payer) if self._cost_meter is not None else Meter()
        cosines = await self._embeddings.nearness(stem, comparable(question), passages, meter)
        if cosines is None:
            return hits
        scores = fused([hit.score for hit in hits], cosines)
        order = sorted(range(len(hits)), key=lambda at: -scores[at])
        return [replace(hits[at], score=round(scores[at], 3)) for at in order]


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
