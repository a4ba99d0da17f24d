"""What a compaction preset sets where the configuration does not say otherwise."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, fields, replace
from types import MappingProxyType
from typing import Literal

from gateway.settings import History, Settings

Preset = Literal["overlay", "archive", "annabelle", "budget", "off"]


@dataclass(frozen=True, slots=True)
class CompactionNumbers:
    """The numbers in force. Which of them a preset looks at is the preset's own affair.

    In force, ``reserve_tokens`` and ``keep_recent_tokens`` are at most a quarter of the model's window.
    """

    preset: Preset = "overlay"
    threshold: float = 0.8
    reserve_tokens: int = 16_384
    keep_recent_tokens: int = 20_000
    keep_recent_turns: int = 5
    max_chars: int = 20_000
    min_turns: int = 8
    cooldown_s: float = 120.0
    timeout_s: float = 30.0
    chars_per_token: float = 4.0


_BY_PRESET: Mapping[Preset, CompactionNumbers] = MappingProxyType(
    {
        "overlay": CompactionNumbers(),
        "archive": CompactionNumbers(
            preset="archive", keep_recent_tokens=0, keep_recent_turns=0, chars_per_token=3.5
        ),
        "annabelle": CompactionNumbers(preset="annabelle"),
        "budget": CompactionNumbers(preset="budget"),
        "off": CompactionNumbers(preset="off"),
    }
)


def effective_compaction(settings: Settings) -> CompactionNumbers:
    """Return the preset's numbers, each replaced by the one that the configuration sets."""
    given = {
        field.name: value
        for field in fields(CompactionNumbers)
        if field.name != "preset" and (value := getattr(settings.compaction, field.name)) is not None
    }
    return replace(_BY_PRESET[settings.compaction.preset], **given)


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
