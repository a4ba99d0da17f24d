"""Writers in a crowd on a slow disk: who was told that he had no turn tries again, as a person would."""

from __future__ import annotations

import time
from collections.abc import Callable

from channels.errors import ChannelError


def until_unlocked(change: Callable[[], object], *, within_s: float = 60.0) -> None:
    """Make a change, however often its lock is refused: nothing was written then."""
    until_s = time.monotonic() + within_s
    while True:
        try:
            change()
        except ChannelError as error:
            if "held by another process" not in str(error) or time.monotonic() > until_s:
                raise
        else:
            return
