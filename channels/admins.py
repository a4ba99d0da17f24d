"""Remembers for some minutes who administers a group, so that not every message asks the platform."""

from __future__ import annotations

from collections.abc import Callable
from typing import Final

import durable

_FOR_S: Final = 300.0
_MAX_KNOWN: Final = 1_000


class KnownAdmins:
    """The platform's newest answers of the last five minutes, in memory.

    Args:
        clock: monotonic seconds.
    """

    def __init__(self, clock: Callable[[], float]) -> None:
        self._clock = clock
        self._known: durable.BoundedDict[tuple[str, str], tuple[float, bool]] = durable.BoundedDict(
            _MAX_KNOWN
        )

    def known(self, chat: str, person: str) -> bool | None:
        """Say whether a person administers a chat; None where the platform has to be asked."""
        until, is_admin = self._known.get((chat, person), (0.0, False))
        return is_admin if self._clock() < until else None

    def note(self, chat: str, person: str, is_admin: bool) -> None:
        """Remember what the platform answered."""
        self._known[chat, person] = (self._clock() + _FOR_S, is_admin)
