"""What a compaction preset sets where the configuration does not say otherwise."""

from __future__ import annotations

from dataclasses import fields, replace

from gateway.config.settings import History, Settings
from session.compaction.rules import Numbers, numbers_of


def effective_compaction(settings: Settings) -> Numbers:
    """Return the preset's numbers, each replaced by the one that the configuration sets."""
    given = {
        field.name: value
        for field in fields(Numbers)
        if (value := getattr(settings.compaction, field.name)) is not None
    }
    return replace(numbers_of(settings.compaction.preset), **given)


def effective_history(settings: Settings) -> History:
    """Return ``[history]`` with the preset's ``mode`` and ``changing_parts`` where they were not set."""
    by_preset: dict[str, str] = {}
    if settings.compaction.preset == "annabelle":
        by_preset = {"mode": "relevant", "changing_parts": "system"}
    elif settings.compaction.preset == "budget":
        by_preset = {"mode": "last"}
    history = settings.history
    return history.model_copy(
        update={name: value for name, value in by_preset.items() if name not in history.model_fields_set}
    )
