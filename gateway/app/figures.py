"""Reads from Settings what bounds letters, turns, and memory with its calls of the model."""

from __future__ import annotations

from channels.tables import Platform
from gateway.config.presets import effective_history
from gateway.config.settings import Settings
from gateway.turns.batching import QueueRules
from gateway.turns.worker import DispatchRules
from session.context.relevance import Relevance
from session.memory.memory_rules import MemoryRules
from session.memory.versions import VersionRules
from session.transcript.history import HistoryWindow
from session.turn.turn import TurnLimits


def memory_rules(settings: Settings) -> MemoryRules:
    """Read from the configuration what bounds memory and its background calls."""
    return MemoryRules(
        window=settings.memory.window,
        max_bytes=settings.memory.max_kb * 1024,
        small_model=settings.model.small,
        calls_per_hour=settings.limits.background_calls_per_hour,
        calls_per_day=settings.limits.background_calls_per_day,
        versions=VersionRules(settings.memory.versions, settings.memory.version_days),
    )


def turn_limits(settings: Settings) -> TurnLimits:
    """Bound the turns as the configuration and its preset say."""
    history = effective_history(settings)
    return TurnLimits(
        turn_timeout_s=settings.limits.turn_timeout_s,
        max_tool_rounds=settings.model.max_tool_rounds,
        max_output_tokens=settings.model.max_output_tokens,
        full_tool_results=history.full_tool_results,
        changing_parts=history.changing_parts,
        streams=settings.model.stream == "always",
        window=HistoryWindow(history.last, history.budget_tokens) if history.mode == "last" else None,
        summary_role="assistant" if settings.compaction.preset == "budget" else "user",
        relevance=Relevance(
            candidates=history.candidates,
            always=history.exchanges_always,
            most=history.max_messages,
            threshold=history.relevance,
        )
        if history.mode == "relevant"
        else None,
    )


def letter_rules(settings: Settings) -> DispatchRules:
    """Read what decides over letters."""
    limits = settings.limits
    return DispatchRules(
        concurrent_turns=limits.concurrent_turns,
        attempts=limits.attempts,
        model_tries=limits.model_tries,
        outage_hours=limits.outage_hours,
        pending_per_chat=limits.pending_per_chat,
        flood_per_chat=limits.flood_per_chat,
        idle_hours=settings.session.idle_hours,
        queue=queue_rules(settings),
    )


def queue_rules(settings: Settings) -> QueueRules:
    """Read what a message does that comes while others wait or run, by channel."""
    tables = ((name, getattr(settings.channels, name)) for name in type(settings.channels).model_fields)
    own = {
        name: table.queue_mode for name, table in tables if isinstance(table, Platform) and table.queue_mode
    }
    return QueueRules(settings.limits.queue_mode, own, settings.limits.collect_s)
