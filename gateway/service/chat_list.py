"""The chats of a workspace as a page lists them: one row a key, with its last word and its lane."""

from __future__ import annotations

from collections.abc import Iterable
from typing import TYPE_CHECKING, Any

import durable
from gateway.app.status import own_lanes
from gateway.service.pages import page
from session.disk.threads import start_thread
from session.store.listing import SessionRow

if TYPE_CHECKING:
    from gateway.service.chats import ChatService

# A file may be written after it was looked at and in the same tick of its file system's clock.
OVERLAP_NS = 2_000_000_000


class ChatList:
    """Lists the chats of one application."""

    def __init__(self, chats: ChatService) -> None:
        self._chats = chats

    async def rows(self, since: int | None, limit: int | None, cursor: str | None) -> dict[str, Any]:
        """List the chats, those with the newest message first.

        Args:
            since: only chats of which a file changed since then, the ``now`` of an answer before; None: all.
            limit: at most so many of them; None: all.
            cursor: the ``next`` of the page before.

        Returns:
            ``chats``, ``next``, ``count`` (how many there are in all) and ``now``.

        Raises:
            BadCursor: the cursor is none of ours.
        """
        now = durable.wall_ns()
        sessions = await self._chats.store.rows()
        floor = None if since is None else since * 1_000_000 - OVERLAP_NS
        found = await start_thread(lambda: _by_key(sessions, floor, limit, cursor), name="chats")
        return {**found, "now": now // 1_000_000}

    def lanes(self) -> list[dict[str, Any]]:
        """List what runs and waits in this process, as ``status`` does."""
        return own_lanes(self._chats.application)


def _by_key(
    sessions: Iterable[SessionRow], floor: int | None, limit: int | None, cursor: str | None
) -> dict[str, Any]:
    """Join the sessions of each key into a row: the active one's, else that of the one that spoke last.

    ``sessions``: the newest message first, an order that the rows keep.
    """
    by_key: dict[str, list[SessionRow]] = {}
    for row in sessions:
        by_key.setdefault(row.key, []).append(row)
    wanted = [
        rows for rows in by_key.values() if floor is None or any(row.changed_ns >= floor for row in rows)
    ]
    found, following = page(
        wanted, lambda rows: rows[0].place, limit=limit or len(by_key), cursor=cursor, descending=True
    )
    chats = [_row(next((row for row in rows if row.active), rows[0]), len(rows)) for rows in found]
    return {"chats": chats, "next": following, "count": len(by_key)}


def _row(row: SessionRow, sessions: int) -> dict[str, Any]:
    return {
        "key": row.key,
        "id": row.id,
        "name": row.name,
        "active": row.active,
        "last_message_at": row.last_message_at or None,
        "message_count": row.message_count,
        "sessions": sessions,
        "source": row.source,
        "last_role": row.last_role,
        "last_text": row.last_text,
    }
