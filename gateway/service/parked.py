"""The parked letters as rows, to look at, put back or drop: for the API, and for the command line."""

from __future__ import annotations

import base64
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

from gateway.app.wiring_broker import files_named
from gateway.errors import GatewayError
from gateway.queue.mailbox import INBOUND, Mailbox, Parked
from session.transcript.key import SessionKey

if TYPE_CHECKING:
    from gateway.dispatch.open_letters import OpenLetters
    from session.store.store import Store


class NotParked(GatewayError):
    """No parked letter has this id."""


class ParkedTwice(GatewayError):
    """Several chats have a parked letter of this id."""


class ParkedLetters:
    """The parked letters of one mailbox.

    Args:
        store: where the key of a letter that is put back forgets that it was parked.
        letters: those of lanes that may be parking one just now.
    """

    def __init__(self, mailbox: Mailbox, store: Store, *, letters: OpenLetters | None = None) -> None:
        self._mailbox = mailbox
        self._store = store
        self._letters = letters

    async def parked(self, *, files: bool = False) -> list[dict[str, Any]]:
        """List them without their bodies, oldest first; with ``files`` each with those that it names."""
        parked = await self._mailbox.parked()
        return [row(one) | ({"files": files_named(one.body)} if files else {}) for one in parked]

    async def parked_one(self, message_id: str, key: str | None) -> dict[str, Any]:
        """Show one with its body: as text where it is UTF-8, else in base64."""
        meant = await self._choose(message_id, key)
        try:
            return row(meant) | {"body": meant.body.decode()}
        except UnicodeDecodeError:
            return row(meant) | {"body_base64": base64.b64encode(meant.body).decode()}

    async def retry(self, message_id: str, key: str | None) -> dict[str, Any]:
        """Put one back at the end of its queue; it runs as if it had never been tried."""
        await self._parked_whole(message_id, key)
        meant = await self._choose(message_id, key)
        if meant.box == INBOUND and meant.key is not None:
            async with self._store.open(SessionKey(meant.key)) as session:
                await session.journal.unpark(meant.id)
        return row(_there(await self._mailbox.replay(message_id, key=key), message_id))

    async def drop(self, message_id: str, key: str | None) -> dict[str, Any]:
        """Remove one for good."""
        await self._parked_whole(message_id, key)
        await self._choose(message_id, key)
        return row(_there(await self._mailbox.drop(message_id, key=key), message_id))

    async def _parked_whole(self, message_id: str, key: str | None) -> None:
        # What is put back while it is being parked would be taken out of its queue with what is parked.
        if self._letters is not None:
            await self._letters.parked_whole(message_id, key)

    async def _choose(self, message_id: str, key: str | None) -> Parked:
        return choose(await self._mailbox.parked(), message_id, key)


def row(parked: Parked) -> dict[str, Any]:
    """Show a parked letter without its body."""
    return {
        "id": parked.id,
        "box": "inbound" if parked.box == INBOUND else "outbound",
        "key": parked.key,
        "reason": parked.reason,
        "from": parked.origin,
        "attempts": parked.attempts,
        "parked_at": parked.parked_at.isoformat(),
    }


def choose(parked: Sequence[Parked], message_id: str, key: str | None) -> Parked:
    """Find the one letter that is meant.

    Raises:
        NotParked, ParkedTwice: there is not exactly one chat that has it.
    """
    found = [one for one in parked if one.id == message_id and (key is None or one.key == key)]
    if len({one.key for one in found}) > 1:
        keys = ", ".join(str(one.key) for one in found)
        raise ParkedTwice(
            f"several chats have a parked message {message_id}", hint=f"choose one with --key: {keys}"
        )
    return _there(found[0] if found else None, message_id)


def _there(parked: Parked | None, message_id: str) -> Parked:
    if parked is None:
        raise NotParked(f"no message {message_id} is parked", hint="chat-gateway parked list")
    return parked
