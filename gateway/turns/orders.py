"""What is asked of the gateway itself while a turn runs: acted on and answered out of line."""

from __future__ import annotations

from collections.abc import Callable
from datetime import datetime

from channels.message import Inbound
from gateway.queue.mailbox import Mailbox
from gateway.turns.approvals import Approvals
from gateway.turns.aside import Aside
from gateway.turns.events import Spawn
from gateway.turns.lanes import Lanes
from gateway.turns.statuses import Statuses
from gateway.turns.stops import Stops
from session.store.store import Store
from session.turn.commands import DECIDING, OUT_OF_LINE, Command, Commands


class Orders:
    """``/stop``, ``/status`` and the word that a turn waits for, as letters and as they come over control.

    ``approvals`` hears of the word, and of a ``/new`` that wants no more of the turn.
    """

    def __init__(
        self,
        lanes: Lanes,
        store: Store,
        mailbox: Mailbox,
        chat_commands: Commands,
        *,
        clock: Callable[[], datetime],
        spawn: Spawn,
    ) -> None:
        self.aside = Aside(store=store, mailbox=mailbox, clock=clock, spawn=spawn)
        self.approvals: Approvals | None = None
        self.stop = Stops(lanes=lanes, aside=self.aside).stop
        self.look = Statuses(lanes=lanes, aside=self.aside, chat_commands=chat_commands).look

    def received(self, inbound: Inbound, command: Command | None) -> None:
        """Act on a letter that has come into its lane, whatever stands before it there."""
        name = command.name if command is not None else ""
        if name == "stop":
            self.stop(inbound.key, inbound.id, asked=inbound)
        elif name == "status":
            self.look(inbound)
        elif name in DECIDING and self.approvals is not None:
            self.approvals.press(inbound)
        elif name == "new" and self.approvals is not None:
            self.approvals.anew(inbound)

    async def answered(self, inbound: Inbound, command: Command | None) -> bool:
        """Say, at the turn of a letter, whether its answer is out already."""
        return command is not None and command.name in OUT_OF_LINE and await self.aside.take(inbound)
