"""Searches what was said in all chats: scope by scope, the newest chats first, a bounded time a request."""

from __future__ import annotations

import time
from collections.abc import Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

from gateway.errors import MailboxDown
from session.disk.threads import start_thread
from session.errors import StoreError
from session.recall.sieve import Sieve

if TYPE_CHECKING:
    from gateway.service.chats import ChatService

WITHIN_S = 1.0
# A chat whose index is still being made does not keep the others from being searched.
OF_SCOPE_S = 0.3
# So many chats are sifted at once, in one thread.
SIFTED = 250
REMEMBERED = ("MEMORY.md", "HISTORY.md", "facts.jsonl")

Files = Mapping[str, Sequence[Path]]


class Search:
    """Searches the chats of one application by recall.

    To ask the index of a chat takes milliseconds, and to make one longer: of thousands of chats only those
    are asked whose files hold the beginning of a word at all.
    """

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
        files = await self._files()
        keys, sieve = list(files), Sieve(text)
        until = time.monotonic() + within_s
        looked = _Looked(self._chats, text, limit)
        at = min(start, len(keys))
        while at < len(keys) and (time.monotonic() < until or at == start):
            some = keys[at : at + SIFTED]
            left = await start_thread(partial(_sifted, some, files, sieve), name="search")
            done = len(some)
            for key in left:
                # At least one chat is searched, or no request would come further.
                if time.monotonic() >= until and looked.count:
                    done = some.index(key)
                    break
                await looked.at(key)
            at += done
            if done < len(some):
                break
        return {
            "hits": looked.best(),
            "searched": at,
            "chats": len(keys),
            "next": at if at < len(keys) else None,
            "all": looked.whole,
        }

    async def _files(self) -> Files:
        """Return the files in which the words of each chat stand, the chat that spoke last first."""
        found: dict[str, list[Path]] = {}
        folder = self._chats.application.settings.workspace / "memory" / "chats"
        for row in await self._chats.store.rows():
            if ":" not in row.key:
                continue
            if row.key not in found:
                found[row.key] = [folder / row.stem / name for name in REMEMBERED]
            found[row.key].append(row.path)
        return found


class _Looked:
    """What was found so far, in the scopes that were searched."""

    def __init__(self, chats: ChatService, text: str, limit: int) -> None:
        if chats.application.services is None:
            raise MailboxDown("the session side is not open yet")
        self._services = chats.application.services
        self._text = text
        self._limit = limit
        self._scopes: set[str] = set()
        self._hits: dict[tuple[object, ...], dict[str, Any]] = {}
        self.count = 0
        self.whole = True

    async def at(self, key: str) -> None:
        """Search the scope of a chat, once."""
        self.count += 1
        scope = await self._services.circles.of_key(key)
        if scope.name in self._scopes:
            return
        self._scopes.add(scope.name)
        try:
            found = await self._services.recall.search(
                scope, key, self._text, limit=self._limit, within_s=OF_SCOPE_S
            )
        except StoreError:
            self.whole = False
            return
        self.whole = self.whole and found.all
        for hit in found.hits:
            self._hits.setdefault((hit.kind, hit.key, hit.session_id, hit.seq, hit.text), hit.as_dict())

    def best(self) -> list[dict[str, Any]]:
        """Return the hits, best first; of those alike that of the chat that spoke last."""
        return sorted(self._hits.values(), key=lambda hit: -hit["score"])[: self._limit]


def _sifted(keys: Sequence[str], files: Files, sieve: Sieve) -> list[str]:
    """Return the chats of which a file may hold what is looked for."""
    return [key for key in keys if sieve.lets_all_pass or any(_may_hold(path, sieve) for path in files[key])]


def _may_hold(path: Path, sieve: Sieve) -> bool:
    try:
        return sieve.may_hold(path.read_bytes())
    except FileNotFoundError:
        return False
    except OSError:
        # Why it cannot be read is for the search itself to say.
        return True
