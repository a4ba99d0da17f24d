"""Builds from Settings what keeps conversations within their model's window."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from dataclasses import asdict

import durable
from gateway.config.presets import effective_compaction, effective_history
from gateway.config.settings import Settings
from session.compaction.compactions import Compactions
from session.compaction.compactor import Compactor
from session.compaction.rules import CompactionRules
from session.models.model import CostMeter, Model
from session.models.windows import window_of
from session.transcript.line import stamp


def build_compactions(
    settings: Settings,
    model: Model,
    *,
    take: Callable[[], Awaitable[None]],
    cost_meter: CostMeter,
    left: Callable[[str, str], Awaitable[bool]],
) -> Compactions:
    """Build it; the model's window is looked up when it is first needed.

    Args:
        settings: the configuration.
        model: writes the summaries.
        take: counts a model call of the background.
        cost_meter: pays for what is no turn's.
        left: makes the consolidation of an ended session durable (key and ULID).
    """
    known: dict[int, CompactionRules] = {}
    named_window = getattr(model, "named_window", lambda: 0)

    async def rules() -> CompactionRules:
        window = named_window()
        if window not in known:
            known[window] = await compaction_rules(settings, model, window)
        return known[window]

    return Compactions(
        Compactor(model, small=settings.model.small, take=take, cost_meter=cost_meter),
        rules=rules,
        left=left,
        now=lambda: stamp(durable.now(), settings.zone),
    )


async def compaction_rules(settings: Settings, model: Model, named_window: int = 0) -> CompactionRules:
    """Read from the configuration and its preset when conversations are compacted; look up the windows.

    ``named_window`` is the window as the model's server names it, 0 where it never did.
    """
    ask = getattr(model, "context_window", None)
    window = await window_of(
        settings.model.name, configured=settings.model.context_window or named_window, ask=ask
    )
    small = settings.model.small
    history = effective_history(settings)
    return CompactionRules(
        window=window,
        summary_window=await window_of(small, ask=ask) if small else 0,
        max_output_tokens=settings.model.max_output_tokens,
        history_messages=history.last,
        history_tokens=history.budget_tokens,
        **asdict(effective_compaction(settings)),
    )
