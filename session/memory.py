"""Moves what matters from old messages into MEMORY.md and HISTORY.md.

The order in which one stretch of messages is stored, each step durable before the next::

    answer ──▶ state/memory/<scope>.json ──▶ HISTORY.md ──▶ MEMORY.md ──▶ last_consolidated ──▶ state cleared

After a crash at any point the stored answer is put through again from the start: HISTORY.md knows the stretch
by its mark, MEMORY.md by what it was before and shall be. The model is not asked again.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from datetime import UTC, datetime, timedelta, tzinfo
from pathlib import Path

import structlog

from session import summary
from session.budget import Budget
from session.compaction import nearest_cut
from session.desk import Desk, Desks, Failure, Stored, content_digest
from session.disk import Seen, seen
from session.errors import (
    BadAnswer,
    ContextTooLong,
    ModelError,
    ModelRefused,
    NewerFormat,
    NotNow,
    SessionError,
    StoreError,
)
from session.models import Answer, Model, Prompt, Purse
from session.notes import MEMORY, Mark, Notes
from session.scopes import Scope, Scopes
from session.store import Store
from session.stretch import Stretch, Stretches

log = structlog.get_logger("memory")

TRIES = 3  # failures in a row after which the messages are kept as they are
BACK_OFF_S = (60.0, 600.0)  # after the first and the second failure
EDITED_S = 30.0
MIN_CHARS = 2_000  # of a request's conversation, below which no smaller one is tried
CACHED = 1_000


@dataclass(frozen=True, slots=True)
class MemoryRules:
    """The figures of ``[memory]`` and ``[limits]`` that bound consolidation.

    ``max_chars`` is the longest stretch of conversation in one request; what is longer goes in several.
    """

    window: int = 100
    max_bytes: int = 32 * 1024
    small_model: str = ""
    calls_per_hour: int = 60
    calls_per_day: int = 500
    max_chars: int = 160_000


@dataclass(frozen=True, slots=True)
class Done:
    """What a consolidation did: messages moved, those of them kept raw, calls of the model, its scope."""

    messages: int = 0
    raw: int = 0
    calls: int = 0
    scope: Scope | None = None


class Memory:
    """The notes of all scopes: read by turns, written by consolidation.

    Args:
        notes: opens the two files of a scope's folder.
        purse: pays for the calls; None: they cost nothing.
    """

    def __init__(
        self,
        scopes: Scopes,
        *,
        store: Store,
        model: Model,
        rules: MemoryRules,
        zone: tzinfo,
        clock: Callable[[], datetime] = lambda: datetime.now(UTC),
        notes: Callable[[Path], Notes] = Notes,
        purse: Purse | None = None,
    ) -> None:
        state = scopes.workspace / "state"
        self.scopes = scopes
        self.model = model
        self.rules = rules
        self.clock = clock
        self.stretches = Stretches(store)
        self.budget = Budget(
            state / "budget.json",
            per_hour=rules.calls_per_hour,
            per_day=rules.calls_per_day,
            clock=clock,
            purse=purse,
        )
        self._purse = purse
        self.totals = {"messages": 0, "raw": 0, "failures": 0}
        self.zone = zone
        self._notes = notes
        self.desks = Desks(state / "memory", clock=clock)
        self._cache: dict[Path, tuple[Seen | None, str]] = {}

    async def ask(self, key: str, prompt: Prompt) -> Answer:
        """Ask the model for the background of a conversation, after ``budget.take``; its cost counts at once.

        Raises:
            ModelError: as of ``Model.ask``.
        """
        answer = await self.model.ask(prompt)
        if self._purse is not None and answer.usage is not None:
            self._purse.pay(key, answer.usage)
        return answer

    async def text(self, scope: Scope) -> str:
        """Return MEMORY.md of a scope, read when it has changed; empty where none can be read."""
        path = scope.memory / MEMORY
        now = _seen(path)
        known = self._cache.pop(path, None)
        if known is None or known[0] != now:
            known = (now, await asyncio.to_thread(self._read, scope))
        self._cache[path] = known  # the newest stand last
        while len(self._cache) > CACHED:
            del self._cache[next(iter(self._cache))]
        return known[1]

    def _read(self, scope: Scope) -> str:
        try:
            return self._notes(scope.memory).memory().decode("utf-8", "replace")
        except StoreError as error:  # a turn goes on without its notes, consolidation does not
            log.warning("memory.unreadable", scope=scope.name, error=str(error), hint=error.hint)
            return ""

    async def scope_of(self, key: str) -> Scope:
        """Return the scope of a conversation, as its stored messages tell it."""
        stem, group = await self.stretches.is_group(key)
        return self.scopes.of(key, stem=stem, group=group)

    async def consolidate(self, key: str, *, session_id: str | None = None, asked: bool = False) -> Done:
        """Move what is due of one session into memory; on return it is in the files, or nothing was due.

        Args:
            key: the conversation.
            session_id: an ended session of it, which goes in whole; None means the active one, of which the
                newest ``window // 2`` messages stay.
            asked: a person waits for it: neither window, back-off nor the number of calls hold it up.

        Raises:
            NotNow: it has to wait: back-off, budget, cost, another process, or MEMORY.md is being edited.
            ModelAway: the model cannot be reached.
            StoreError: the disk refused; what was answered is kept and goes on from there.
        """
        if self.model.plain:
            raise SessionError("no language model is configured", hint="set model.name in the configuration")
        first = await self.stretches.load(key, session_id)
        if first is None:
            return Done()
        scope = self._scope(first)
        async with self.desks.open(scope.name) as desk:
            work = _Work(self, desk, self._notes(scope.memory), asked)
            await work.put_through()
            return replace(await work.run(key, session_id), scope=scope)

    async def settle(self) -> None:
        """Put through what earlier processes left on their desks; an answer about what is gone is dropped.

        Raises:
            NewerFormat: a newer version wrote one.
        """
        for name in await self.desks.waiting():
            try:
                async with self.desks.open(name) as desk:
                    await _Work(self, desk, self._notes(self.scopes.named(name).memory), False).put_through()
            except NotNow:
                continue  # another process is at it
            except NewerFormat:
                raise
            except SessionError as error:
                log.warning("memory.unsettled", scope=name, error=str(error), hint=error.hint)

    def due(self, stretch: Stretch, *, asked: bool) -> int:
        """Return how many messages of a stretch may go: all of an ended session, else up to a legal cut."""
        count = len(stretch.lines)
        if stretch.ended:
            return count
        if count < self.rules.window and not asked:
            return 0
        target = count - self.rules.window // 2
        return nearest_cut(stretch.lines, target) if target > 0 else 0

    def now(self) -> datetime:
        """Return the time in the user's zone."""
        return self.clock().astimezone(self.zone)

    def _scope(self, stretch: Stretch) -> Scope:
        return self.scopes.of(stretch.key, stem=stretch.stem, group=stretch.group)


class _Work:
    """One consolidation, while the desk of its scope is ours."""

    def __init__(self, memory: Memory, desk: Desk, notes: Notes, asked: bool) -> None:
        self._memory = memory
        self._desk = desk
        self._notes = notes
        self._asked = asked
        self._done = Done()

    async def run(self, key: str, session_id: str | None) -> Done:
        """Consolidate what is due now, piece by piece; messages that come meanwhile wait for another."""
        stretch = await self._memory.stretches.load(key, session_id)
        if stretch is None:
            return self._done
        end = stretch.start + self._memory.due(stretch, asked=self._asked)
        edits = 0
        while stretch is not None and stretch.start < end:
            before, stored = stretch.start, await self._piece(stretch, end)
            edits += not stored
            if edits >= TRIES:
                raise self._edited()
            stretch = await self._memory.stretches.load(key, stretch.session_id)
            if stored and stretch is not None and stretch.start <= before:
                raise StoreError("last_consolidated did not move", hint="does another program write here?")
        return self._done

    async def put_through(self) -> bool:
        """Store the answer that lies on the desk in the files, all of it or what a crash left to do.

        Returns:
            False where MEMORY.md was edited since: the model has to be asked again.
        """
        answer, stretches = self._desk.answer, self._memory.stretches
        if answer is None:
            return True
        fresh: bool | None = None
        if await stretches.holds(answer.key, answer.mark):
            fresh = await stretches.while_there(answer.key, answer.session_id, lambda: self._to_files(answer))
        if fresh:
            await stretches.move_pointer(answer.key, answer.mark)
            self._desk.forget(answer.session_id, self._memory.clock())
        if fresh is None:
            log.info("memory.dropped", key=answer.key, session=answer.session_id)  # cleared meanwhile
        self._desk.answer = None
        await self._desk.save()
        return fresh is not False

    def _to_files(self, answer: Stored) -> bool:
        """Write HISTORY.md, then MEMORY.md; False where somebody edited that since the answer was made."""
        notes = self._notes
        notes.add_history(answer.entry, answer.mark)
        if answer.memory is None:
            return True
        found = notes.memory()
        if content_digest(found) == answer.base:
            notes.write_memory(answer.memory)
            return True
        return found == answer.memory.encode("utf-8", "replace")

    async def _piece(self, stretch: Stretch, end: int) -> bool:
        """Consolidate the first piece of the stretch that fits into one request; False after an edit."""
        now = self._memory.clock()
        failure = self._desk.failure(stretch.session_id, stretch.start)
        if failure.until > now.timestamp() and not self._asked:
            until = datetime.fromtimestamp(failure.until, UTC)
            raise NotNow("the last try failed", reason="failed", until=until)
        lines = stretch.lines[: end - stretch.start]
        limit, recorded = self._memory.rules.max_chars, await self._recorded(stretch)
        while True:
            mark = recorded
            if mark is None:
                mark = await asyncio.to_thread(self._cut, stretch, lines, limit)
            try:
                answer = await self._answer(stretch, mark)
            except ContextTooLong as error:
                limit //= 2
                if limit >= MIN_CHARS and recorded is None:
                    continue
                answer = await self._failed(stretch, mark, error)
            except (BadAnswer, ModelRefused) as error:
                answer = await self._failed(stretch, mark, error)
            return await self._store(answer)

    def _cut(self, stretch: Stretch, lines: Sequence[summary.Line], limit: int) -> Mark:
        return stretch.mark(summary.chunk_end(lines, zone=self._memory.zone, max_chars=limit))

    async def _recorded(self, stretch: Stretch) -> Mark | None:
        """Find a paragraph of HISTORY.md that stands for the messages from the stretch's start on."""

        def look() -> Mark | None:
            return next(
                (
                    mark
                    for mark in self._notes.marks()
                    if mark.session_id == stretch.session_id
                    and mark.start == stretch.start < mark.stop <= stretch.start + len(stretch.lines)
                    and mark == stretch.mark(mark.stop - mark.start)
                ),
                None,
            )

        return await asyncio.to_thread(look)

    async def _answer(self, stretch: Stretch, mark: Mark) -> Stored:
        """Ask the model until MEMORY.md is the same before and after the call; not at all about silence."""
        memory = self._memory
        rules, zone = memory.rules, memory.zone
        spoken = summary.sendable(stretch.lines, start=mark.start, stop=mark.stop)
        for _ in range(TRIES):
            base = await asyncio.to_thread(self._notes.memory)
            text = base.decode("utf-8", "replace")
            prompt = summary.prompt(
                spoken, memory=text, zone=zone, max_bytes=rules.max_bytes, model=rules.small_model
            )
            if prompt is None:
                return _stored(stretch, mark)
            await memory.budget.take(unasked=not self._asked)
            self._done = replace(self._done, calls=self._done.calls + 1)
            answer = await memory.ask(stretch.key, prompt)
            update = summary.read(answer, memory=text, max_bytes=rules.max_bytes, now=memory.now())
            if await asyncio.to_thread(self._notes.memory) == base:
                return _stored(stretch, mark, update=update, base=content_digest(base))
        raise self._edited()

    def _edited(self) -> NotNow:
        until = self._memory.clock() + timedelta(seconds=EDITED_S)
        return NotNow(
            "MEMORY.md is being edited", reason="edited", until=until, hint="close it and try again"
        )

    async def _failed(self, stretch: Stretch, mark: Mark, error: ModelError) -> Stored:
        """Count a failure; after the third in a row return what is kept of the messages themselves.

        Raises:
            NotNow: it was the first or the second; the next try comes later.
        """
        memory, desk = self._memory, self._desk
        memory.totals["failures"] += 1
        count = desk.failure(stretch.session_id, stretch.start).count + 1
        log.warning("memory.failed", key=stretch.key, tries=count, error=str(error))
        if count >= TRIES:
            lines = summary.sendable(stretch.lines, start=mark.start, stop=mark.stop)
            entry = summary.raw_entry(lines, count=mark.stop - mark.start, zone=memory.zone, now=memory.now())
            return _stored(stretch, mark, raw=entry)
        until = memory.clock() + timedelta(seconds=BACK_OFF_S[count - 1])
        desk.failures[stretch.session_id] = Failure(stretch.start, count, until.timestamp())
        await desk.save()
        raise NotNow(f"the model's answer cannot be used: {error}", reason="failed", until=until) from error

    async def _store(self, answer: Stored) -> bool:
        memory, count = self._memory, answer.stop - answer.start
        raw = count if answer.entry and answer.memory is None else 0
        self._desk.answer = answer
        await self._desk.save()
        if not await self.put_through():
            return False
        self._done = replace(self._done, messages=self._done.messages + count, raw=self._done.raw + raw)
        memory.totals["messages"] += count
        memory.totals["raw"] += raw
        log.info("memory.consolidated", key=answer.key, session=answer.session_id, messages=count, raw=raw)
        return True


def _seen(path: Path) -> Seen | None:
    try:
        return seen(path)
    except OSError:
        return None


def _stored(
    stretch: Stretch,
    mark: Mark,
    *,
    update: summary.Update | None = None,
    base: str = "",
    raw: str = "",
) -> Stored:
    return Stored(
        key=stretch.key,
        session_id=mark.session_id,
        start=mark.start,
        stop=mark.stop,
        digest=mark.digest,
        entry=update.history_entry if update is not None else raw,
        memory=update.memory_update if update is not None else None,
        base=base,
    )
