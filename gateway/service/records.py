"""What transcript and journal say of a chat: how a message ended, and what the chat was told."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Mapping, Sequence
from dataclasses import dataclass

from gateway.dispatch.deduplication import CLEARED_SAID
from gateway.dispatch.events import LOCAL_CHANNELS
from gateway.outbound.local import where
from gateway.service.outcome import Outcome
from session.context.links import may_link, sends_files
from session.store.store import Store, View
from session.transcript.attachments import Attachment
from session.transcript.journal import Known, Told
from session.transcript.key import SessionKey, split
from session.turn.commands import STOPPED

# Lists the files that went out with the answer to a message, of which the text is given.
Enclosed = Callable[[View, str, str], Awaitable[Sequence[Attachment]]]
# From so many replies on they are read in a thread, since other chats would wait for the loop.
MANY = 200
_SAID: Mapping[str, str] = {
    "parked": "This message was not answered. The operator can see why.",
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
    """Reads what is stored of chats; it owns no key and writes nothing.

    Args:
        enclosed: None: no files are named.
    """

    def __init__(self, store: Store, enclosed: Enclosed | None = None) -> None:
        self._store = store
        self._enclosed = enclosed

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
        reply = str(final.get("content") or "")
        encloses = sends_files(final.get("tools_used")) or may_link(reply)
        files = await self._files(session, message_id, reply) if encloses else ""
        return MessageStanding(text, Outcome("reply", reply, files))

    async def _files(self, session: View, message_id: str, reply: str) -> str:
        """Name the files of a reply, as the notice of its delivery did that is not on record."""
        if self._enclosed is None or split(session.key)[0] not in LOCAL_CHANNELS:
            return ""
        sent = await self._enclosed(session, message_id, reply)
        return "\n".join(where(self._store.layout.workspace, file.ref, file.caption) for file in sent)

    async def usage(self, key: str, message_id: str) -> tuple[int, int]:
        """Sum up the prompt and completion tokens of the turn that answered a message; 0 where none did."""
        return (await self._store.look(SessionKey(key))).spent(message_id)

    async def was_cut(self, key: str, message_id: str) -> bool:
        """Say whether the answer to a message was cut at the model's limit of tokens."""
        session = await self._store.look(SessionKey(key))
        exchange = session.find(message_id)
        final = exchange.final if exchange is not None else None
        return final is not None and session.line(final).get("cut") is True

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
