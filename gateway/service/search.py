"""Searches what was said in all chats: scope by scope, the newest chats first, a bounded time a request."""

from __future__ import annotations

import time
from bisect import bisect_right
from collections.abc import Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from functools import partial
from itertools import accumulate
from pathlib import Path
from typing import TYPE_CHECKING, Any
from weakref import WeakKeyDictionary

from gateway.errors import MailboxDown
from session.context.scopes import Reader, Scope, Scopes, is_job
from session.disk.threads import start_thread
from session.errors import StoreError
from session.memory.circles import Circles
from session.recall.sieve import Sieve
from session.store.listing import SessionRow
from session.transcript.agent import named

if TYPE_CHECKING:
    from gateway.app.sessions import SessionServices
    from gateway.service.chats import ChatService

WITHIN_S = 1.0
# A chat whose index is still being made, or whose files are large, does not keep the others from being
# searched.
OF_SCOPE_S = 0.3
# So many chats are sifted at once, in one thread.
SIFTED = 250
REMEMBERED = ("MEMORY.md", "HISTORY.md", "facts.jsonl")

Rows = Sequence[SessionRow]
# To draw the scope of a chat takes a look at its files: it is kept, with the sessions by which it was drawn.
_DRAWN: WeakKeyDictionary[Circles, Mapping[str, tuple[Rows, Scope]]] = WeakKeyDictionary()


@dataclass(eq=False, slots=True)
class _Chats:
    """The chats of a scope; ``key`` is the one that spoke last, ``memory`` the folder of their notes."""

    key: str
    memory: Path
    count: int = 0
    transcripts: list[Path] = field(default_factory=list)

    def files(self) -> Iterator[Path]:
        """Yield the files in which the words of the scope stand."""
        yield from (self.memory / name for name in REMEMBERED)
        yield from self.transcripts


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

        Chats that share a scope stand together, and are searched at once: a request that goes on finds
        nothing again.

        Returns:
            ``hits`` as recall has them; ``searched`` of ``chats``; ``next``, the ``start`` that goes on where
            the time ran out, None at the end; ``all``, False where an index was not whole yet.
        """
        services = self._chats.application.services
        if services is None:
            raise MailboxDown("the session side is not open yet")
        scopes, whole = await _scopes(services)
        looked = _Looked(services, text, limit, whole=whole)
        # Before each scope stand so many chats, before the end all of them.
        before = [0, *accumulate(chats.count for chats in scopes)]
        sieve = Sieve(text)
        until = time.monotonic() + within_s
        at = begun = bisect_right(before, start) - 1
        while at < len(scopes) and (time.monotonic() < until or at == begun):
            some = scopes[at : max(bisect_right(before, before[at] + SIFTED) - 1, at + 1)]
            left = await start_thread(partial(_sifted, some, sieve, until), name="search")
            done = len(some)
            for chats in left:
                # At least one scope is searched, or no request would come further.
                if time.monotonic() >= until and looked.count:
                    done = some.index(chats)
                    break
                await looked.at(chats.key)
            at += done
            if done < len(some):
                break
        return {
            "hits": looked.best(),
            "searched": before[at],
            "chats": before[-1],
            "next": before[at] if at < len(scopes) else None,
            "all": looked.whole,
        }


class _Looked:
    """What was found so far, in the scopes that were searched."""

    def __init__(self, services: SessionServices, text: str, limit: int, *, whole: bool) -> None:
        self._services = services
        self._text = text
        self._limit = limit
        self._hits: dict[tuple[object, ...], dict[str, Any]] = {}
        self.count = 0
        self.whole = whole

    async def at(self, key: str) -> None:
        """Search the scope of a chat."""
        self.count += 1
        try:
            scope = await self._services.circles.of_key(key)
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


async def _scopes(services: SessionServices) -> tuple[list[_Chats], bool]:
    """Return the chats by their scopes, that in which somebody spoke last first, and whether they are all."""
    sessions: dict[str, list[SessionRow]] = {}
    for row in await services.store.rows():
        if ":" in row.key:
            sessions.setdefault(row.key, []).append(row)
    drawn = await _drawn(services.circles, sessions)
    found: dict[str, _Chats] = {}
    for key, rows in sessions.items():
        if (scope := drawn.get(key)) is not None:
            chats = found.setdefault(scope.name, _Chats(key, scope.memory))
            chats.count += 1
            chats.transcripts += [row.path for row in rows]
    return list(found.values()), len(drawn) == len(sessions)


async def _drawn(circles: Circles, sessions: Mapping[str, Rows]) -> dict[str, Scope]:
    """Return the scope of each chat; one whose files cannot be read has none."""
    drawn = await start_thread(partial(_unshared, sessions, circles.scopes), name="search")
    known = _DRAWN.get(circles, {})
    kept: dict[str, tuple[Rows, Scope]] = {}
    for key, rows in sessions.items():
        if key in drawn:
            continue
        former = known.get(key)
        if former is not None and former[0] == rows:
            drawn[key] = former[1]
        else:
            with suppress(StoreError):
                drawn[key] = await circles.of_key(key)
        # That of a job goes by what is known of other chats, without a session it goes by the journal.
        if key in drawn and not is_job(key) and any(row.active for row in rows):
            kept[key] = (rows, drawn[key])
    _DRAWN[circles] = kept
    return drawn


def _unshared(sessions: Mapping[str, Rows], scopes: Scopes) -> dict[str, Scope]:
    """Return the scopes of the chats that share theirs with no other, whoever reads along."""
    found: dict[str, Scope] = {}
    for key, rows in sessions.items():
        active = next((row for row in rows if row.active), None)
        # Whom a job answers, and which agent was chosen for the next session, no row says.
        if is_job(key) or (active is None and scopes.agents.kinds):
            continue
        agent = named(active.agent) if active is not None else ""
        stem = rows[0].stem
        direct = scopes.of(Reader(key, "direct"), stem=stem, agent=agent)
        if direct.name == scopes.of(Reader(key, "group"), stem=stem, agent=agent).name:
            found[key] = direct
    return found


def _sifted(scopes: Sequence[_Chats], sieve: Sieve, until: float) -> list[_Chats]:
    """Return the scopes of which a file may hold what is looked for, or that are not sifted in time."""
    return [chats for chats in scopes if sieve.lets_all_pass or _any_may_hold(chats, sieve, until)]


def _any_may_hold(chats: _Chats, sieve: Sieve, until: float) -> bool:
    until = min(until, time.monotonic() + OF_SCOPE_S)
    return any(_may_hold(path, sieve) or time.monotonic() >= until for path in chats.files())


def _may_hold(path: Path, sieve: Sieve) -> bool:
    try:
        return sieve.may_hold(path.read_bytes())
    except FileNotFoundError:
        return False
    except OSError:
        # Why it cannot be read is for the search itself to say.
        return True
