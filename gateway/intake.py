"""The first hand-over: an accepted message is durable in the inbound box before its source lets go of it."""

from __future__ import annotations

import orjson
from ulid import ULID

from channels.message import Inbound
from gateway.mailbox import INBOUND, Mailbox, Post
from session import commands
from session.key import slot_of


class Intake:
    """Puts what adapters, HTTP and the terminal accept into the inbound box."""

    def __init__(self, mailbox: Mailbox) -> None:
        self._mailbox = mailbox

    async def accept(self, inbound: Inbound) -> None:
        """Return once the message is durable; a ``/stop`` is also told out of line.

        Raises:
            MailboxDown: not confirmed; accept the same message again.
        """
        await self._mailbox.put(Post(INBOUND, inbound.key, inbound.id, inbound.to_bytes()))
        command = None if inbound.kind == "edit" else commands.parse(inbound.text)
        if command is not None and command.name == "stop":
            await self.stop(inbound.key, inbound.id)

    async def stop(self, key: str, message_id: str = "") -> None:
        """Ask whichever daemon runs a turn of ``key`` to stop it."""
        body = {"v": 1, "id": message_id or f"stop:{ULID()}", "do": "stop", "key": key}
        await self._mailbox.tell("control", slot_of(key), orjson.dumps(body))
