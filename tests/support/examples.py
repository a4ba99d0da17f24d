"""How many examples a property draws: a quarter of them, always the same, except in `make chaos-all`."""

from __future__ import annotations

from typing import Any

from hypothesis import settings


def drawn(examples: int, **more: Any) -> settings:
    """Let a property draw so many new examples in `make chaos-all`; ``more``: other words of ``settings``."""
    return settings(max_examples=share_of(examples), **more)


def share_of(examples: int) -> int:
    """Say how many of so many examples are drawn by the profile that tests/conftest.py has loaded."""
    always_the_same = settings.get_current_profile_name() == "same"
    return max(1, examples // 4) if always_the_same else examples
