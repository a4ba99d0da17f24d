"""The first hand-over: an accepted message is durable in the inbound box before its source lets go of it."""

from __future__ import annotations

from collections.abc import Callable, Mapping

import durable
from channels.message import Inbound
from gateway.queue.mailbox import INBOUND, Mailbox, Post
from gateway.turns import outcomes
from gateway.turns.control_order import OWN, StatusOrder, StopOrder
from session.transcript.key import slot_of


class Intake:
    """Puts what adapters, HTTP and the terminal accept into the inbound box.

    ``received`` hears of each message before, and returns the headers that its letter gets.
    """

    def __init__(
        self, mailbox: Mailbox, *, received: Callable[[Inbound], Mapping[str, str]] = lambda inbound: {}
    ) -> None:
        self._mailbox = mailbox
        self._received = received

    async def accept(self, inbound: Inbound) -> None:
        """Return once the message is durable; a ``/stop`` and a ``/status`` are also told out of line.

        Raises:
            MailboxDown: not confirmed; accept the same message again.
        """
        # An order out of line may reach nobody: what is durable is answered in any case.
        headers = self._received(inbound)
        await self._mailbox.put(Post(INBOUND, inbound.key, inbound.id, inbound.to_bytes(), headers))
        command = outcomes.command(inbound)
        if command is not None and command.name == "stop":
            await self.stop(inbound.key, inbound.id, letter=inbound)
        elif command is not None and command.name == "status":
            await self._look(inbound)

    async def _look(self, inbound: Inbound) -> None:
        """Let whichever daemon has the lane of the chat answer, though the letter waits behind others."""
        order = StatusOrder(id=inbound.id, key=inbound.key, letter=inbound)
        await self._mailbox.tell("control", slot_of(inbound.key), order.to_bytes())

    async def stop(self, key: str, message_id: str = "", *, letter: Inbound | None = None) -> None:
        """Ask whichever daemon runs a turn of ``key`` to stop it; ``letter`` is what asks for it."""
        order = StopOrder(id=message_id or f"{OWN}{durable.new_id()}", key=key, letter=letter)
        await self._mailbox.tell("control", slot_of(key), order.to_bytes())
