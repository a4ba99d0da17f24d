"""Counts what a turn costs, and keeps its requests within the caps on a day."""

from __future__ import annotations

from collections.abc import Sequence

from session.models.model import Embedder, Meter, Model, Payer, Prompt, Usage
from session.models.spending import Spending


def turn_meter(spending: Spending, payer: Payer) -> Meter:
    """Make the meter of a turn; without any cap it does nothing but count."""
    return Meter(_Reserved(spending, payer)) if spending.limited else Meter()


class _Reserved:
    def __init__(self, spending: Spending, payer: Payer) -> None:
        self._spending = spending
        self._payer = payer
        self._open = False

    async def reserve(self, model: Model, prompt: Prompt, tokens: int, spent: Usage) -> None:
        """Hold what a request may cost, once the requests of others that are in its way have ended."""
        if model.plain:
            return
        spending = self._spending
        need = await spending.pricing.need(model, prompt, tokens)
        self._open = True
        while (refusal := await spending.reserve(self._payer, need, spent)) is not None:
            if not refusal.passes:
                raise spending.over(refusal)
            await spending.room()

    async def reserve_texts(self, embedder: Embedder, texts: Sequence[str], spent: Usage) -> None:
        """Hold what vectors may cost: a turn goes on without them, and so waits for nobody."""
        need = await self._spending.pricing.need_of_texts(embedder, texts)
        self._open = True
        refusal = await self._spending.reserve(self._payer, need, spent)
        if refusal is not None:
            raise self._spending.over(refusal)

    def settle(self, spent: Usage) -> None:
        """Hold what the turn has cost, and no more."""
        if self._open:
            self._open = False
            self._spending.settle(self._payer, spent)
