"""What transcript and journal say of a chat: how a message ended, and what the chat was told."""

from __future__ import annotations

import asyncio
from collections.abc import Mapping
from dataclasses import dataclass

from gateway.service.outcome import Outcome
from gateway.turns.outcomes import CLEARED_SAID
from session.store.store import Store
from session.transcript.journal import Known, Told
from session.transcript.key import SessionKey
from session.turn.commands import STOPPED

# From so many replies on they are read in a thread, since other chats would wait for the loop.
MANY = 200
_SAID: Mapping[str, str] = {
    "parked": "This message is set aside, and the operator can see it.",
    "cleared": CLEARED_SAID,
    "withdrawn": "This message was withdrawn.",
    "archived": "The conversation ended before this message was answered.",
}


@dataclass(frozen=True, slots=True)
class MessageStanding:
    """What is known of a message: the text it is stored with, and how it ended."""

    text: str | None
    outcome: Outcome | None


class Record:
    """Reads what is stored of chats; it owns no key and writes nothing."""

    def __init__(self, store: Store) -> None:
        self._store = store

    async def standing(self, key: str, message_id: str) -> MessageStanding:
        """Return what is known of a message."""
        session = await self._store.look(SessionKey(key))
        exchange = session.find(message_id)
        if exchange is None:
            return MessageStanding(None, _outcome_of(session.journal.known(message_id)))
        line = session.line(exchange.start)
        content = line.get("typed", line.get("content"))
        text = content if line.get("role") == "user" and isinstance(content, str) else None
        if exchange.final is None:
            return MessageStanding(text, _outcome_of(session.journal.known(message_id)))
        final = session.line(exchange.final)
        if final.get("stopped"):
            known = session.journal.known(message_id)
            told = known.text if known is not None and known.kind == "notice" else ""
            if final.get("interrupted") and not told:
                # It is answered together with the message that stopped it.
                return MessageStanding(text, None)
            return MessageStanding(text, Outcome("notice", told or STOPPED))
        return MessageStanding(text, Outcome("reply", str(final.get("content") or "")))

    async def usage(self, key: str, message_id: str) -> tuple[int, int]:
        """Sum up the prompt and completion tokens of the turn that answered a message; 0 where none did."""
        return (await self._store.look(SessionKey(key))).spent(message_id)

    async def told(self, key: str, after: int) -> list[Told]:
        """List the replies and notices with a seq above ``after``, in order."""
        session = await self._store.look(SessionKey(key))
        if session.seq - after > MANY:
            return await asyncio.to_thread(session.told, after)
        return session.told(after)

    async def last_seq(self, key: str) -> int:
        """Count what the chat was told so far."""
        return (await self._store.look(SessionKey(key))).seq


def _outcome_of(known: Known | None) -> Outcome | None:
    if known is None:
        return None
    if known.kind == "command" or (known.kind == "archived" and known.text):
        return Outcome("reply", known.text)
    return Outcome("notice", known.text or _SAID.get(known.kind, "This message got no answer."))
