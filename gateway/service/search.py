"""Searches what was said in all chats: scope by scope, the newest chats first, a bounded time a request."""

from __future__ import annotations

import time
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

from gateway.errors import MailboxDown
from session.errors import StoreError

if TYPE_CHECKING:
    from gateway.service.chats import ChatService

WITHIN_S = 1.0
# A chat whose index is still being made does not keep the others from being searched.
OF_SCOPE_S = 0.3


class Search:
    """Searches the chats of one application by recall."""

    def __init__(self, chats: ChatService) -> None:
        self._chats = chats

    async def search(
        self, text: str, *, limit: int, start: int, within_s: float = WITHIN_S
    ) -> dict[str, Any]:
        """Find what holds words of ``text`` in the chats from the ``start``-th on, the best first.

        Returns:
            ``hits`` as recall has them; ``searched`` of ``chats``; ``next``, the ``start`` that goes on where
            the time ran out, None at the end; ``all``, False where an index was not whole yet.
        """
        services = self._chats.application.services
        if services is None:
            raise MailboxDown("the session side is not open yet")
        keys = await self._keys()
        until = time.monotonic() + within_s
        hits: list[dict[str, Any]] = []
        names: set[str] = set()
        whole, at = True, min(start, len(keys))
        # People whose chats share a scope are searched once, at the first of these.
        for key in keys[:at]:
            names.add((await services.circles.of_key(key)).name)
        while at < len(keys) and (time.monotonic() < until or at == start):
            key = keys[at]
            at += 1
            scope = await services.circles.of_key(key)
            if scope.name in names:
                continue
            names.add(scope.name)
            try:
                found = await services.recall.search(scope, key, text, limit=limit, within_s=OF_SCOPE_S)
            except StoreError:
                whole = False
                continue
            whole = whole and found.all
            hits += [hit.as_dict() for hit in found.hits]
        hits.sort(key=lambda hit: -hit["score"])
        following = at if at < len(keys) else None
        return {
            "hits": hits[:limit],
            "searched": at,
            "chats": len(keys),
            "next": following,
            "all": whole,
        }

    async def _keys(self) -> Sequence[str]:
        """Return the keys of all chats, the one that spoke last first."""
        return list(dict.fromkeys(row.key for row in await self._chats.store.rows() if ":" in row.key))
