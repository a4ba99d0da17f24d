"""The figures that bound memory and its calls of the model."""

from __future__ import annotations

from dataclasses import dataclass, field

from session.memory.versions import VersionRules


@dataclass(frozen=True, slots=True)
class MemoryRules:
    """The figures of ``[memory]`` and ``[limits]`` that bound consolidation.

    ``max_chars`` is the most conversation in one request; what is longer goes in several.
    """

    window: int = 100
    max_bytes: int = 32 * 1024
    small_model: str = ""
    calls_per_hour: int = 60
    calls_per_day: int = 500
    max_chars: int = 160_000
    versions: VersionRules = field(default_factory=VersionRules)
