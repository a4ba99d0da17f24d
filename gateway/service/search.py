"""Searches what was said in all chats: scope by scope, the newest chats first, a bounded time a request."""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from functools import partial
from itertools import accumulate
from pathlib import Path
from typing import TYPE_CHECKING, Any

import durable
from gateway.errors import MailboxDown
from session.context.scopes import Reader, Scope, Scopes, is_job
from session.disk.threads import start_thread
from session.errors import StoreError
from session.memory.scope_resolver import ScopeResolver
from session.recall.words import Sieve
from session.store.listing import SessionRow
from session.transcript.agent import named

if TYPE_CHECKING:
    from gateway.app.wiring_session import SessionServices
    from gateway.service.chats import ChatService

WITHIN_S = 1.0
# A chat whose index is still being made, or whose files are large, does not keep the others from being
# searched.
OF_SCOPE_S = 0.3
# So many chats are sifted at once, in one thread.
SIFTED = 250
REMEMBERED = ("MEMORY.md", "HISTORY.md", "facts.jsonl")

Rows = Sequence[SessionRow]
# Those of one chat: first that of its next message, then those of the agents that it was with before.
Drawn = Sequence[Scope]


@dataclass(eq=False, slots=True)
class _Chats:
    """The chats of a scope, and scopes of their former agents that no chat has now; ``key`` spoke last."""

    key: str
    scopes: list[Scope]
    count: int = 0
    transcripts: list[Path] = field(default_factory=list)

    def files(self) -> Iterator[Path]:
        """Yield the files in which the words of the scopes stand."""
        yield from (scope.memory / name for scope in self.scopes for name in REMEMBERED)
        yield from self.transcripts


class Search:
    """Searches the chats of one application by recall.

    To ask the index of a chat takes milliseconds, and to make one longer: of thousands of chats only those
    are asked whose files hold the beginning of a word at all.
    """

    def __init__(self, chats: ChatService) -> None:
        self._chats = chats
        # To draw the scopes of a chat takes a look at its files: they are kept, with the sessions by which
        # they were drawn.
        self._known: Mapping[str, tuple[Rows, Drawn]] = {}

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
            raise MailboxDown("the gateway is still starting")
        scopes, whole = await self._scopes(services)
        looked = _Looked(services, text, limit, whole=whole)
        # Before each scope stand so many chats, before the end all of them.
        before = [0, *accumulate(chats.count for chats in scopes)]
        sieve = Sieve(text)
        until = durable.monotonic() + within_s
        at = begun = bisect_right(before, start) - 1
        while at < len(scopes) and (durable.monotonic() < until or at == begun):
            some = scopes[at : max(bisect_right(before, before[at] + SIFTED) - 1, at + 1)]
            left = await start_thread(partial(_sifted, some, sieve, until), name="search")
            done = len(some)
            for chats in left:
                # At least one scope is searched, or no request would come further.
                if durable.monotonic() >= until and looked.count:
                    done = some.index(chats)
                    break
                await looked.at(chats)
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

    async def _scopes(self, services: SessionServices) -> tuple[list[_Chats], bool]:
        """Return the chats by scope, that in which somebody spoke last first, and whether they are all."""
        sessions: dict[str, list[SessionRow]] = {}
        for row in await services.store.rows():
            if ":" in row.key:
                sessions.setdefault(row.key, []).append(row)
        drawn = await self._drawn(services.scope_resolver, sessions)
        found: dict[str, _Chats] = {}
        for key, rows in sessions.items():
            if key in drawn:
                now = drawn[key][0]
                chats = found.setdefault(now.name, _Chats(key, [now]))
                chats.count += 1
                chats.transcripts += [row.path for row in rows]
        _add_former(found, sessions, drawn)
        return list(found.values()), len(drawn) == len(sessions)

    async def _drawn(self, scope_resolver: ScopeResolver, sessions: Mapping[str, Rows]) -> dict[str, Drawn]:
        """Return the scopes of each chat; one whose files cannot be read has none."""
        drawn = await start_thread(partial(_unshared, sessions, scope_resolver.scopes), name="search")
        kept: dict[str, tuple[Rows, Drawn]] = {}
        for key, rows in sessions.items():
            if key in drawn:
                continue
            known = self._known.get(key)
            if known is not None and known[0] == rows:
                drawn[key] = known[1]
            else:
                with suppress(StoreError):
                    drawn[key] = [
                        await scope_resolver.of_key(key),
                        *[await scope_resolver.of_key(key, agent=agent) for agent in _former(key, rows)],
                    ]
            # That of a job goes by what is known of other chats, without a session it goes by the journal.
            if key in drawn and not is_job(key) and any(row.active for row in rows):
                kept[key] = (rows, drawn[key])
        self._known = kept
        return drawn


class _Looked:
    """What was found so far, in the scopes that were searched."""

    def __init__(self, services: SessionServices, text: str, limit: int, *, whole: bool) -> None:
        self._services = services
        self._text = text
        self._limit = limit
        self._hits: dict[tuple[object, ...], dict[str, Any]] = {}
        self.count = 0
        self.whole = whole

    async def at(self, chats: _Chats) -> None:
        """Search the scopes of some chats."""
        self.count += 1
        for scope in chats.scopes:
            try:
                found = await self._services.recall.search(
                    scope, chats.key, self._text, limit=self._limit, within_s=OF_SCOPE_S
                )
            except StoreError:
                self.whole = False
                continue
            self.whole = self.whole and found.all
            for hit in found.hits:
                self._hits.setdefault((hit.kind, hit.key, hit.session_id, hit.seq, hit.text), hit.as_dict())

    def best(self) -> list[dict[str, Any]]:
        """Return the hits, best first; of those alike that of the chat that spoke last."""
        return sorted(self._hits.values(), key=lambda hit: -hit["score"])[: self._limit]


def _add_former(
    found: Mapping[str, _Chats], sessions: Mapping[str, Rows], drawn: Mapping[str, Drawn]
) -> None:
    """Add what chats said with agents that they had before, in scopes that may be those of others now."""
    places = dict(found)
    for key, (now, *former) in drawn.items():
        for scope in former:
            if scope.name == now.name:
                continue
            chats = places.get(scope.name)
            if chats is None:
                chats = places[scope.name] = found[now.name]
                chats.scopes.append(scope)
            elif chats is not found[now.name]:
                chats.transcripts += [row.path for row in sessions[key]]


def _former(key: str, rows: Rows) -> list[str]:
    """Return with which agents the ended sessions of a chat were, but for the one that it has now."""
    # Those of a job go by the chats that it answered in each.
    if is_job(key):
        return []
    now = {named(row.agent) for row in rows if row.active}
    return [agent for agent in dict.fromkeys(named(row.agent) for row in rows) if agent not in now]


def _unshared(sessions: Mapping[str, Rows], scopes: Scopes) -> dict[str, Drawn]:
    """Return the scopes of the chats that share theirs with no other, whoever reads along."""
    found: dict[str, Drawn] = {}
    for key, rows in sessions.items():
        active = next((row for row in rows if row.active), None)
        # Whom a job answers, and which agent was chosen for the next session, no row says.
        if is_job(key) or (active is None and scopes.agents.kinds):
            continue
        agents = [named(active.agent) if active is not None else "", *_former(key, rows)]
        direct, group = Reader(key, "direct"), Reader(key, "group")
        drawn = [scopes.of(direct, stem=rows[0].stem, agent=agent) for agent in agents]
        names = [scopes.of(group, stem=rows[0].stem, agent=agent).name for agent in agents]
        if names == [scope.name for scope in drawn]:
            found[key] = drawn
    return found


def _sifted(scopes: Sequence[_Chats], sieve: Sieve, until: float) -> list[_Chats]:
    """Return the scopes of which a file may hold what is looked for, or that are not sifted in time."""
    return [chats for chats in scopes if sieve.lets_all_pass or _any_may_hold(chats, sieve, until)]


def _any_may_hold(chats: _Chats, sieve: Sieve, until: float) -> bool:
    until = min(until, durable.monotonic() + OF_SCOPE_S)
    return any(_may_hold(path, sieve) or durable.monotonic() >= until for path in chats.files())


def _may_hold(path: Path, sieve: Sieve) -> bool:
    try:
        return sieve.may_hold(path.read_bytes())
    except FileNotFoundError:
        return False
    except OSError:
        # Why it cannot be read is for the search itself to say.
        return True
