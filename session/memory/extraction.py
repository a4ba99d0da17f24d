"""Draws facts from a session once nobody has written for a while, each stretch of activity once.

The order in which a run is stored, each step durable before the next::

    answer ──▶ facts.jsonl ──▶ looked_at in state/memory/<scope>.json

The ids of the facts follow from the session and the message up to which it was looked at. So a run that
died between the two steps is found in the file, and the model is not asked again.
"""

from __future__ import annotations

import asyncio
import hashlib
from collections.abc import Awaitable, Callable, Collection, Mapping, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import structlog
from ulid import ULID

from session.context.quoted import is_quoted
from session.context.scopes import Scope
from session.disk.layout import Layout
from session.errors import BadAnswer, ContextTooLong, ModelRefused, NotNow, SessionError, loggable
from session.memory import facts_prompt
from session.memory.consolidation import BACK_OFF_S, MIN_CHARS, TRIES, MemoryNotes
from session.memory.facts import Drawn, Fact
from session.memory.known_facts import KnownFacts
from session.memory.provenance import Sources
from session.memory.scope_state import Failure, ScopeState
from session.store import archived
from session.store.listing import said_since
from session.store.session import View
from session.store.store import Store
from session.transcript.key import SessionKey
from session.transcript.loading import load
from session.transcript.transcript import Transcript, decode, read_time

log = structlog.get_logger("facts")

LIMIT_S = 30.0
# So many of a session's last messages are looked at, tool results among them.
MOST_LINES = 1_000
# After a start the sessions are looked through in which something was said since, so many at most.
LOOKED_FOR_DAYS, MOST_LOOKED_FOR = 3, 500
_BASE_BYTES = 9


@dataclass(frozen=True, slots=True)
class FactRules:
    """The figures of ``[facts]``."""

    idle_s: float = 300.0
    max_turns: int = 10
    confidence: float = 0.7


@dataclass(frozen=True, slots=True)
class _End:
    """The last messages of a session: ``lines`` from ``start`` on, ``count`` in all."""

    session_id: str
    start: int
    lines: Sequence[Mapping[str, Any]]

    @property
    def count(self) -> int:
        return self.start + len(self.lines)

    def at(self, index: int) -> datetime:
        """Return when a message was written; one without a time counts as written with the session."""
        line = self.lines[index - self.start]
        found = read_time(line.get("timestamp") or line.get("created_at"))
        return found or ULID.from_str(self.session_id).datetime


class FactExtraction:
    """Draws the facts of sessions, one at a time for each scope, over all processes.

    Args:
        memory: asks the model within the budget, and has the locks of the scopes.
        known: the facts that there are.
        store: the conversations.
        scope_of: returns what a session of a conversation may see.
    """

    def __init__(
        self,
        memory: MemoryNotes,
        known: KnownFacts,
        *,
        store: Store,
        scope_of: Callable[[str, str], Awaitable[Scope]],
        rules: FactRules,
        limit_s: float = LIMIT_S,
    ) -> None:
        self._memory = memory
        self._known = known
        self._store = store
        self._scope_of = scope_of
        self.rules = rules
        self._limit_s = limit_s
        self.totals = {"facts": 0, "failures": 0}

    def is_due(self, session: View) -> bool:
        """Say whether a session is long enough, seen from outside."""
        return len(session) >= facts_prompt.MIN_MESSAGES

    async def neglected(self, but: Collection[str]) -> list[tuple[str, str, datetime]]:
        """List the active sessions, by key and ULID, that hold something which nobody looked at, and when to.

        A process that dies right after the first turn of a stretch leaves no timer behind. ``but`` are
        sessions that have one. Looked at are those in which something was said in the last days.
        """
        clock, found = self._memory.clock, list[tuple[str, str, datetime]]()
        since_ns = (clock() - timedelta(days=LOOKED_FOR_DAYS)).timestamp() * 1e9
        for path in await asyncio.to_thread(said_since, self._store.layout, since_ns, MOST_LOOKED_FOR):
            try:
                counted = await asyncio.to_thread(_count, self._store.layout, path)
                if counted is None or counted[1] in but or counted[2] < facts_prompt.MIN_MESSAGES:
                    continue
                key, session_id, count = counted
                scope = await self._scope_of(key, session_id)
                if await self._memory.scope_states.looked_at(scope.name, session_id) < count:
                    found.append((key, session_id, await self.idle_at(key, session_id) or clock()))
            except (SessionError, OSError) as error:
                # One that cannot be read now is looked at after its next turn.
                log.warning("facts.not_looked_for", file=path.name, error=str(error))
        return found

    async def idle_at(self, key: str, session_id: str) -> datetime | None:
        """Return when a session will have been idle long enough; None where it is gone, or has been."""
        end = await self._end(key, session_id)
        return self._idle_at(end) if end is not None else None

    async def extract(self, key: str, session_id: str) -> datetime | None:
        """Draw facts from what nobody looked at yet; on return they are stored, or there were none.

        Returns:
            When to come again, since people still write; None where all was looked at.

        Raises:
            NotNow: it has to wait: back-off, budget, cost, or another process.
            ModelAway: the model cannot be reached.
            StoreError: the disk refused.
        """
        later = await self.idle_at(key, session_id)
        if later is not None:
            return later
        scope = await self._scope_of(key, session_id)
        async with self._memory.scope_states.open(scope.name) as scope_state:
            # Read under the scope's lock: another process may have looked at it meanwhile.
            end = await self._end(key, session_id)
            if end is None:
                return None
            if (later := self._idle_at(end)) is not None:
                return later
            await self._look(key, scope, scope_state, end)
        return None

    async def _look(self, key: str, scope: Scope, scope_state: ScopeState, end: _End) -> None:
        upto = await self._looked_at(key, scope, scope_state, end)
        said = facts_prompt.material(end.lines, start=end.start, upto=upto, max_turns=self.rules.max_turns)
        if not facts_prompt.is_worth_it(said):
            # What is too short now is looked at whole once more was said.
            return
        all_found, known = await self._ask(key, scope, scope_state, said, upto, f"facts:{end.session_id}")
        found = facts_prompt.surest(all_found)
        more = len(found) < len(all_found)
        # Comparing the words of long results takes a while.
        sources = await asyncio.to_thread(Sources.of, end.lines, group=scope.group)
        drawn = self._drawn(key, end, found, sources, known, more=more)
        add = self._known.file(scope).add
        stored = await self._memory.unconsolidated.while_there(key, end.session_id, lambda: add(drawn))
        if stored is None:
            # The session was cleared meanwhile: nothing of it is kept.
            log.info("facts.dropped", key=key, session=end.session_id)
            return
        self.totals["facts"] += len(stored)
        log.info("facts.drawn", key=key, session=end.session_id, facts=len(stored), known=len(known))
        if not more:
            # With more than fit into one extraction the same messages are looked at again by the next one.
            scope_state.note_looked_at(key, end.session_id, end.lines, end.count)
        await scope_state.save()

    async def _looked_at(self, key: str, scope: Scope, scope_state: ScopeState, end: _End) -> int:
        """Return how many messages were looked at, also where the process died before it said so."""
        upto = scope_state.looked_up_to(key, end.session_id, end.lines, end.start)
        ids = {fact.id[:-2] for fact in await self._known.facts(scope)}
        for count in range(end.count, max(upto, end.start), -1):
            if str(_id(end, count, 0))[:-2] in ids:
                return count
        return upto

    async def _ask(
        self,
        key: str,
        scope: Scope,
        scope_state: ScopeState,
        said: Sequence[facts_prompt.Said],
        upto: int,
        subject: str,
    ) -> tuple[list[facts_prompt.Found], list[Fact]]:
        """Ask for new facts; none where the model failed for the third time."""
        memory = self._memory.of(scope.agent)
        failure = scope_state.failure(subject, upto)
        if failure.until > memory.clock().timestamp():
            until = datetime.fromtimestamp(failure.until, UTC)
            raise NotNow("the last attempt failed", reason="failed", until=until)
        text = "\n".join(one.text for one in said)
        known = await self._known.among(scope, text, facts_prompt.MOST_KNOWN)
        limit = memory.rules.max_chars
        while True:
            prompt = facts_prompt.prompt(said, known, max_chars=limit, model=memory.rules.small_model)
            await memory.budget.take()
            try:
                async with asyncio.timeout(self._limit_s):
                    answer = await memory.ask(key, prompt)
                found = facts_prompt.read(answer, said=said, known=known, confidence=self.rules.confidence)
            except ContextTooLong as error:
                limit //= 2
                if limit < MIN_CHARS:
                    return await self._failed(scope_state, subject, upto, error), known
            except (BadAnswer, ModelRefused) as error:
                return await self._failed(scope_state, subject, upto, error), known
            except TimeoutError:
                slow = BadAnswer(f"no answer within {self._limit_s:g} s")
                return await self._failed(scope_state, subject, upto, slow), known
            else:
                scope_state.forget(subject, memory.clock())
                return found, known

    async def _failed(
        self, scope_state: ScopeState, subject: str, upto: int, error: Exception
    ) -> list[facts_prompt.Found]:
        """Count a failure, over restarts; after the third these messages go without.

        Raises:
            NotNow: it was the first or the second; the next try comes later.
        """
        clock = self._memory.clock
        count = scope_state.failure(subject, upto).count + 1
        self.totals["failures"] += 1
        log.warning("facts.failed", subject=subject, tries=count, error=loggable(error))
        if count >= TRIES:
            scope_state.forget(subject, clock())
            return []
        until = clock() + timedelta(seconds=BACK_OFF_S[count - 1])
        scope_state.failures[subject] = Failure(upto, count, until.timestamp())
        await scope_state.save()
        why = f"the model's answer cannot be used: {loggable(error)}"
        raise NotNow(why, reason="failed", until=until) from error

    def _drawn(
        self,
        key: str,
        end: _End,
        found: Sequence[facts_prompt.Found],
        sources: Sources,
        known: Sequence[Fact],
        *,
        more: bool,
    ) -> list[Drawn]:
        now = self._memory.now().isoformat(timespec="seconds")
        own = {fact.id for fact in known if not is_quoted(fact.source)}
        marks = [_source(one, sources) for one in found]
        # After a crash an id says that its messages were looked at, which is not so where more is to come.
        part = "\n".join(one.text for one in found) if more else ""
        return [
            Drawn(
                Fact(
                    id=str(_id(end, end.count, number, part=part)),
                    text=one.text,
                    category=one.category,
                    confidence=one.confidence,
                    key=key,
                    message_id=one.message_id,
                    created_at=now,
                    source=mark or None,
                ),
                # What a page or a file says stands beside what a person said, and not in its place.
                None if is_quoted(mark) and one.replaces in own else one.replaces,
            )
            for number, (one, mark) in enumerate(zip(found, marks, strict=True))
        ]

    def _idle_at(self, end: _End) -> datetime | None:
        """Return when the session will have been idle long enough; None where it has been."""
        now, idle = self._memory.clock(), timedelta(seconds=self.rules.idle_s)
        left = idle - (now - end.at(end.count - 1))
        # A time far ahead is of a clock that was set back since: it would hold the facts up for as long.
        return now + left if timedelta(0) < left <= 2 * idle else None

    async def _end(self, key: str, session_id: str) -> _End | None:
        """Read the last messages of a session, active or ended; None where it has none, or is gone."""
        view = await self._store.look(SessionKey(key))

        def read() -> _End | None:
            transcript: Transcript | None = view.transcript
            if view.session_id != session_id:
                found = archived.find(self._store.layout, view.stem, session_id)
                transcript = found[1] if found is not None else None
            if transcript is None or not transcript.messages:
                return None
            start = max(len(transcript.messages) - MOST_LINES, 0)
            return _End(session_id, start, [decode(raw) for raw in transcript.messages[start:]])

        return await asyncio.to_thread(read)


def _source(one: facts_prompt.Found, sources: Sources) -> str:
    """Return whose words a fact is: a tool's that it was taken from, else who said its message."""
    mark = sources.mark_of(one.text)
    return mark if is_quoted(mark) else one.mark or mark


def _count(layout: Layout, path: Path) -> tuple[str, str, int] | None:
    """Return key, ULID and number of messages of an active session; None where it is gone."""
    found = load(path, path.stem, layout.index(path.stem))
    if found is None:
        return None
    transcript = found[0]
    return transcript.key, transcript.session_id, len(transcript.messages)


def _id(end: _End, count: int, number: int, *, part: str = "") -> ULID:
    """Name a fact by the session, the number of its messages that were looked at, and its place.

    ``part`` is the text of the facts that were taken where there were more.
    """
    digest = hashlib.sha256(f"{end.session_id}:{count}{part}".encode()).digest()[:_BASE_BYTES]
    at_ms = min(max(int(end.at(count - 1).timestamp() * 1000), 0), 2**48 - 1)
    return ULID.from_bytes(at_ms.to_bytes(6, "big") + digest + bytes([number]))
