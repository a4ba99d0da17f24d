"""What requests cost by LiteLLM's price map, and what one may cost before it is made."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from typing import Any

import structlog

from session.models.model import Embedder, Model, Need, Prices, PricesTexts, Prompt
from session.models.tokens import estimate, estimate_messages, estimate_tools

log = structlog.get_logger("spending")


# They serve models on one's own machine. Whatever else has a price of 0 in LiteLLM's map has none.
_AT_HOME = frozenset({"ollama", "ollama_chat", "llamafile", "lm_studio", "lemonade", "docker_model_runner"})


def dollars(library: Any, model: str, **counts: Any) -> float | None:
    """Price tokens by LiteLLM's map; None for a model that has no price there.

    Args:
        library: LiteLLM.
        model: as LiteLLM writes it.
        counts: ``usage_object``, else ``prompt_tokens`` and ``completion_tokens``; not all of them 0.
    """
    if model.partition("/")[0] in _AT_HOME:
        return 0.0
    try:
        return float(sum(library.cost_per_token(model=model, **counts))) or None
    except Exception:  # noqa: BLE001 - LiteLLM raises a bare Exception for a model without a price
        return None


class Pricing:
    """Says what requests may take; a model without a price is told in the log, once."""

    def __init__(self) -> None:
        self._unpriced: set[str] = set()

    async def need(self, model: Model, prompt: Prompt, tokens: int) -> Need:
        """Price a request; ``tokens`` is what it has as far as somebody knows better than by estimate."""
        # A model's library may have to be loaded.
        need = await asyncio.to_thread(_need, model, prompt, tokens)
        self._told(prompt.model or model.name, need)
        return need

    async def need_of_texts(self, embedder: Embedder, texts: Sequence[str]) -> Need:
        """Price a request for vectors."""
        need = await asyncio.to_thread(_need_of_texts, embedder, texts)
        self._told(embedder.name, need)
        return need

    def _told(self, name: str, need: Need) -> None:
        if need.cost_usd is None and name not in self._unpriced:
            self._unpriced.add(name)
            hint = "LiteLLM has no price for this model; only limits.tokens_per_day can cap it"
            log.warning("usage.no_price", model=name, hint=hint)


def _need_of_texts(embedder: Embedder, texts: Sequence[str]) -> Need:
    tokens = sum(map(estimate, texts))
    return embedder.most(tokens) if isinstance(embedder, PricesTexts) else Need(tokens, None)


def _need(model: Model, prompt: Prompt, tokens: int) -> Need:
    if model.plain:
        return Need()
    sent = max(estimate_messages(prompt.messages) + estimate_tools(prompt.tools), tokens)
    if isinstance(model, Prices):
        return model.most(prompt, sent)
    return Need(sent + (prompt.max_tokens or 0), None)
