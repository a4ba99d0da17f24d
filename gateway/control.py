"""What reaches a daemon out of line: stop a turn, watch some slots."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import orjson
import structlog

from gateway.events import Events
from gateway.mailbox import Mailbox
from session.key import SLOTS

log = structlog.get_logger("control")

MAX_WATCH_S = 3600.0


class Control:
    """Listens on ``chat.control`` and acts on what concerns this daemon.

    Args:
        stop: called with key and the id of the asking message; acts where a turn of the key runs here.
    """

    def __init__(
        self, *, mailbox: Mailbox, events: Events, stop: Callable[[str, str], object] | None
    ) -> None:
        self._mailbox = mailbox
        self._events = events
        self._stop = stop

    async def run(self) -> None:
        """Act until cancelled; what cannot be read is logged and left."""
        async with self._mailbox.listen("control") as bodies:
            async for body in bodies:
                try:
                    self._act(orjson.loads(body))
                except (orjson.JSONDecodeError, TypeError, ValueError, KeyError, AttributeError) as error:
                    log.warning("control.unreadable", error=type(error).__name__)

    def _act(self, order: dict[str, Any]) -> None:
        match order["do"]:
            case "stop" if self._stop is not None:
                self._stop(str(order["key"]), str(order.get("id") or ""))
            case "watch":
                slots = order["slots"]
                wanted = None if slots == "all" else [int(slot) for slot in slots]
                if wanted is not None and not all(0 <= slot < SLOTS for slot in wanted):
                    raise ValueError("slot out of range")
                self._events.watch(wanted, min(float(order["for_s"]), MAX_WATCH_S))
