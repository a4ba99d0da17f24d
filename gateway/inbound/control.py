"""What reaches a daemon out of line: stop a turn, say how a chat stands, watch some slots."""

from __future__ import annotations

import structlog

from channels.errors import Unreadable
from gateway.dispatch.commands import Orders
from gateway.dispatch.control_order import ControlOrder, StatusOrder, StopOrder, WatchOrder, read_order
from gateway.dispatch.events import Events
from gateway.queue.mailbox import Mailbox

log = structlog.get_logger("control")

MAX_WATCH_S = 3600.0


class Control:
    """Listens on ``chat.control`` and acts on what concerns this daemon.

    Args:
        orders: where turns run in this process.
    """

    def __init__(self, *, mailbox: Mailbox, events: Events, orders: Orders | None) -> None:
        self._mailbox = mailbox
        self._events = events
        self._orders = orders

    async def run(self) -> None:
        """Act until cancelled; what cannot be read is logged and left."""
        async with self._mailbox.listen("control") as bodies:
            async for body in bodies:
                try:
                    self._act(read_order(body))
                except Unreadable as error:
                    log.warning("control.unreadable", error=str(error))
                except Exception:
                    # One order ends here: the next one may be the stop of a chat.
                    log.exception("control.crashed")

    def _act(self, order: ControlOrder | None) -> None:
        match order:
            case StopOrder() if self._orders is not None:
                asked = order.letter
                if asked is not None and (asked.key, asked.id) != (order.key, order.id):
                    asked = None
                self._orders.stop(order.key, order.id, asked=asked, only=order.only or "")
            case StatusOrder() if self._orders is not None:
                self._orders.look(order.letter)
            case WatchOrder():
                slots = None if order.slots == "all" else order.slots
                for_s = min(order.for_s, MAX_WATCH_S)
                self._events.watch(slots, for_s, channel=order.channel, reads=order.reads is not False)
                if order.draft is not None:
                    self._events.draft(order.draft)
