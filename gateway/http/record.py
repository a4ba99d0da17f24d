"""What transcript and journal say of a chat: how a message ended, and what the chat was told."""

from __future__ import annotations

import asyncio
from collections.abc import Mapping

from gateway.http.outcome import Outcome
from session.commands import STOPPED
from session.journal import Told
from session.key import SessionKey
from session.store import Store

MANY = 200  # replies that are read in a thread
_SAID: Mapping[str, str] = {
    "parked": "This message is set aside, and the operator can see it.",
    "cleared": "The conversation was deleted before this message was answered.",
    "withdrawn": "This message was withdrawn.",
    "archived": "The conversation ended before this message was answered.",
}


class Record:
    """Reads what is stored of chats; it owns no key and writes nothing."""

    def __init__(self, store: Store) -> None:
        self._store = store

    async def outcome(self, key: str, message_id: str) -> Outcome | None:
        """Return how the message ended; None while it has not, or where nobody remembers it."""
        session = await self._store.look(SessionKey(key))
        exchange = session.find(message_id)
        if exchange is not None and exchange.final is not None:
            line = session.line(exchange.final)
            if line.get("stopped"):
                return Outcome("notice", STOPPED)
            return Outcome("reply", str(line.get("content") or ""))
        known = session.journal.known(message_id)
        if known is None:
            return None
        if known.kind == "command" or (known.kind == "archived" and known.text):
            return Outcome("reply", known.text)
        return Outcome("notice", known.text or _SAID.get(known.kind, "This message got no answer."))

    async def text_of(self, key: str, message_id: str) -> str | None:
        """Return the text under which this id is stored; None where the active session has no such line."""
        session = await self._store.look(SessionKey(key))
        exchange = session.find(message_id)
        if exchange is None:
            return None
        line = session.line(exchange.start)
        content = line.get("content")
        return content if line.get("role") == "user" and isinstance(content, str) else None

    async def told(self, key: str, after: int) -> list[Told]:
        """List the replies and notices with a seq above ``after``, in order."""
        session = await self._store.look(SessionKey(key))
        if session.seq - after > MANY:
            return await asyncio.to_thread(session.told, after)
        return session.told(after)

    async def last_seq(self, key: str) -> int:
        """Count what the chat was told so far."""
        return (await self._store.look(SessionKey(key))).seq
