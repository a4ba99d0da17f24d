"""Moves what matters from old messages into MEMORY.md and HISTORY.md.

The order in which one run of unconsolidated messages is stored, each step durable before the next::

    answer ──▶ state/memory/<scope>.json ──▶ HISTORY.md ──▶ MEMORY.md ──▶ last_consolidated ──▶ state cleared

After a crash at any point the stored answer is put through again from the start: HISTORY.md knows it
by its mark, MEMORY.md by what it was before and shall be. The model is not asked again.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Sequence
from copy import copy
from dataclasses import replace
from datetime import datetime, timedelta, tzinfo
from pathlib import Path

import structlog

import durable
from durable import BoundedDict
from session.compaction.cuts import nearest_cut
from session.context.scopes import CHATS, Scope, Scopes
from session.disk.layout import Seen, seen
from session.errors import (
    BadAnswer,
    ContextTooLong,
    ModelError,
    ModelRefused,
    NewerFormat,
    NotNow,
    SessionError,
    StoreError,
    loggable,
)
from session.memory.budget import Budget
from session.memory.note_taking import (
    NOTES,
    Line,
    MemoryRules,
    Taken,
    check_shortened,
    chunk_end,
    lost_headings,
    notes_prompt,
    raw_entry,
    read_notes,
    sendable,
    shortening_prompt,
    size_bytes,
)
from session.memory.notes import MEMORY, Mark, Notes
from session.memory.scope_resolver import ScopeResolver
from session.memory.scope_state import TRIES, Done, ScopeState, ScopeStates, Stored, content_digest
from session.memory.text_similarity import Sources
from session.memory.unconsolidated import Unconsolidated, UnconsolidatedReader
from session.models.model import Answer, Model, Prompt, text_of
from session.models.spending import Spending
from session.store.store import Store

log = structlog.get_logger("memory")

EDITED_S = 30.0
# With less conversation than this no smaller request is tried.
MIN_CHARS = 2_000
# So much text is compared within a few milliseconds.
SHORT_CHARS = 8_000
CACHED = 1_000


class MemoryNotes:
    """The notes of all scopes: read by turns, written by consolidation.

    ``cost_meter`` pays for the calls; None: they cost nothing.
    """

    def __init__(
        self,
        scopes: Scopes,
        *,
        store: Store,
        model: Model,
        rules: MemoryRules,
        zone: tzinfo,
        clock: Callable[[], datetime] = durable.now,
        cost_meter: Spending | None = None,
    ) -> None:
        state = scopes.workspace / "state"
        self.scopes = scopes
        self.scope_resolver = ScopeResolver(scopes, store=store)
        self.model = model
        self.rules = rules
        self.clock = clock
        self.unconsolidated = UnconsolidatedReader(store)
        hour, day = rules.calls_per_hour, rules.calls_per_day
        self.budget = Budget(store.state, per_hour=hour, per_day=day, clock=clock, cost_meter=cost_meter)
        self._cost_meter = cost_meter
        counted = ("messages", "raw", "failures", "merged", "unmerged", "headings_lost")
        self.totals = dict.fromkeys(counted, 0)
        self.zone = zone
        self.scope_states = ScopeStates(state / "memory", clock=clock)
        self._cache: BoundedDict[Path, tuple[Seen | None, str]] = BoundedDict(CACHED)
        self._agents: dict[str, MemoryNotes] = {}

    def add(self, agent: str, model: Model, rules: MemoryRules) -> MemoryNotes:
        """Let another agent's notes be taken by a model and figures of its own; all else is shared."""
        notes = self._agents[agent] = copy(self)
        notes.model, notes.rules = model, rules
        return notes

    def of(self, agent: str) -> MemoryNotes:
        """Return what takes the notes of an agent; of one that is not configured, what does the default's."""
        return self._agents.get(agent, self)

    async def of_session(self, key: str, session_id: str | None) -> MemoryNotes:
        """Return what takes the notes of a session of a conversation, None: the active one."""
        return self.of(await self.scope_resolver.agent_of(key, session_id)) if self._agents else self

    def notes(self, scope: Scope) -> Notes:
        """Return the files of a scope, for threads."""
        return Notes(scope.memory, self.rules.versions, clock=self.clock)

    async def ask(self, key: str, prompt: Prompt) -> Answer:
        """Ask the model for the background of a conversation, after ``budget.take``; its cost counts at once.

        Raises:
            ModelError, NotNow: as of ``Model.ask``, or it would go over a cap.
        """
        if self._cost_meter is None:
            return await self.model.ask(prompt)
        async with self._cost_meter.request(key, self.model, prompt) as count:
            count((answer := await self.model.ask(prompt)).usage)
        return answer

    async def text(self, scope: Scope) -> str:
        """Return MEMORY.md of a scope, read when it has changed; empty where none can be read."""
        path = scope.memory / MEMORY
        now = _seen(path)
        known = self._cache.use(path)
        if known is None or known[0] != now:
            known = self._cache[path] = (now, await asyncio.to_thread(self._read, scope))
        return known[1]

    def _read(self, scope: Scope) -> str:
        try:
            return self.notes(scope).memory().decode("utf-8", "replace")
        except StoreError as error:
            # A turn goes on without its notes; a consolidation does not.
            log.warning("memory.unreadable", scope=scope.name, error=str(error), hint=error.hint)
            return ""

    async def scope_of(self, key: str, session_id: str | None = None) -> Scope:
        """Return the scope of a session of a conversation, by what its sessions know of the chat."""
        return await self.scope_resolver.of_session(key, session_id)

    async def consolidate(self, key: str, *, session_id: str | None = None, asked: bool = False) -> Done:
        """Move what is due of one session into memory; on return it is in the files, or nothing was due.

        ``session_id`` names an ended session, which goes in whole; None means the active one, of which the
        newest ``window // 2`` messages stay. ``asked``: a person waits for it, so neither window, back-off
        nor the number of calls hold it up.

        Raises:
            NotNow: it has to wait: back-off, budget, cost, another process, or MEMORY.md is being edited.
            ModelAway: the model cannot be reached.
            StoreError: the disk refused; what was answered is kept and goes on from there.
        """
        notes = await self.of_session(key, session_id)
        if notes.model.plain:
            raise SessionError("no language model is configured", hint="set model.name in the configuration")
        first = await self.unconsolidated.load(key, session_id)
        if first is None:
            return Done()
        scope = await self.scope_resolver.of_past(first)
        async with self.scope_states.open(scope.name) as scope_state:
            work = _Work(notes, scope_state, scope, asked)
            await work.put_through()
            return replace(await work.run(key, session_id), scope=scope)

    async def settle(self) -> None:
        """Put through the answers that earlier processes left; one about what is gone is dropped.

        Raises:
            NewerFormat: a newer version wrote one.
        """
        for name in await self.scope_states.waiting():
            try:
                async with self.scope_states.open(name) as scope_state:
                    await _Work(self, scope_state, self.scopes.named(name), False).put_through()
            except NotNow:
                # Another process is at work on this scope, or on the conversation of the answer.
                continue
            except NewerFormat:
                raise
            except SessionError as error:
                log.warning("memory.unsettled", scope=name, error=str(error), hint=error.hint)

    def due(self, unconsolidated: Unconsolidated, *, asked: bool) -> int:
        """Return how many unconsolidated messages may go: all of an ended session, else up to a legal cut."""
        count = len(unconsolidated.lines)
        if unconsolidated.ended:
            return count
        if count < self.rules.window and not asked:
            return 0
        target = count - self.rules.window // 2
        return nearest_cut(unconsolidated.lines, target) if target > 0 else 0

    def now(self) -> datetime:
        """Return the time in the user's zone."""
        return self.clock().astimezone(self.zone)


class _Work:
    """One consolidation, while the state of its scope is ours."""

    def __init__(self, memory: MemoryNotes, scope_state: ScopeState, scope: Scope, asked: bool) -> None:
        self._memory = memory
        self._scope = scope
        self._scope_state = scope_state
        self._notes = memory.notes(scope)
        self._asked = asked
        self._done = Done()

    async def run(self, key: str, session_id: str | None) -> Done:
        """Consolidate what is due, piece by piece; what comes or is reopened meanwhile waits for another."""
        unconsolidated = await self._memory.unconsolidated.load(key, session_id)
        if unconsolidated is None:
            return self._done
        end = unconsolidated.start + self._memory.due(unconsolidated, asked=self._asked)
        edits, had_ended = 0, unconsolidated.ended
        while unconsolidated is not None and unconsolidated.waits(end, had_ended=had_ended):
            before, stored = unconsolidated.start, await self._piece(unconsolidated, end)
            edits += not stored
            if edits >= TRIES:
                raise self._edited()
            unconsolidated = await self._memory.unconsolidated.load(key, unconsolidated.session_id)
            if stored and unconsolidated is not None and unconsolidated.start <= before:
                raise StoreError(
                    "last_consolidated did not move",
                    hint="check whether another program writes to this workspace",
                )
        return self._done

    async def put_through(self) -> bool:
        """Store the answer of the scope's state in the files, all of it or what a crash left to do.

        Returns False where MEMORY.md was edited since: the model has to be asked again.
        """
        answer, reader = self._scope_state.answer, self._memory.unconsolidated
        if answer is None:
            return True
        fresh: bool | None = None
        if await reader.holds(answer.key, answer.mark):
            # A paragraph names its chat where the scope is not that chat's own.
            own = self._scope.own == CHATS + await reader.stem(answer.key)
            mark = replace(answer.mark, chat="" if own else answer.key)
            fresh = await reader.while_there(
                answer.key, answer.session_id, lambda: self._to_files(answer, mark)
            )
        if fresh:
            # The pointer moves last: a crash before it finds the paragraph by its mark.
            await reader.move_pointer(answer.key, answer.mark, had_ended=answer.ended, asked=self._asked)
            self._scope_state.forget(answer.session_id, self._memory.clock())
        if fresh is None:
            # The messages were cleared meanwhile: nothing of them is kept.
            log.info("memory.dropped", key=answer.key, session=answer.session_id)
        self._scope_state.answer = None
        await self._scope_state.save()
        return fresh is not False

    def _to_files(self, answer: Stored, mark: Mark) -> bool:
        """Write HISTORY.md, then MEMORY.md; False where somebody edited that since the answer was made."""
        notes = self._notes
        notes.add_history(answer.entry, mark)
        if answer.memory is None:
            return True
        found = notes.memory()
        if content_digest(found) == answer.base:
            notes.write_memory(answer.memory, "merge" if answer.merged else "consolidation")
            return True
        return found == answer.memory.encode("utf-8", "replace")

    async def _piece(self, unconsolidated: Unconsolidated, end: int) -> bool:
        """Consolidate the first of these messages, as many as fit into one request; False after an edit."""
        now = self._memory.clock()
        if not self._asked:
            self._scope_state.check_rest(unconsolidated.session_id, unconsolidated.start, now)
        lines = unconsolidated.lines[: end - unconsolidated.start]
        limit, recorded = self._memory.rules.max_chars, await self._recorded(unconsolidated)
        while True:
            mark = recorded
            if mark is None:
                zone = self._memory.zone
                end = await asyncio.to_thread(chunk_end, lines, zone=zone, max_chars=limit)
                mark = await asyncio.to_thread(unconsolidated.mark, end)
            try:
                answer = await self._answer(unconsolidated, mark)
            except ContextTooLong as error:
                limit //= 2
                if limit >= MIN_CHARS and recorded is None:
                    continue
                answer = await self._failed(unconsolidated, mark, error)
            except (BadAnswer, ModelRefused) as error:
                answer = await self._failed(unconsolidated, mark, error)
            return await self._store(replace(answer, ended=unconsolidated.ended))

    async def _recorded(self, unconsolidated: Unconsolidated) -> Mark | None:
        """Find a paragraph of HISTORY.md that stands for these messages, from their first on."""
        end = unconsolidated.start + len(unconsolidated.lines)

        def look() -> Mark | None:
            for mark in self._notes.marks():
                begins = (mark.session_id, mark.start) == (unconsolidated.session_id, unconsolidated.start)
                count = mark.stop - mark.start
                if begins and mark.start < mark.stop <= end and mark == unconsolidated.mark(count):
                    return mark
            return None

        return await asyncio.to_thread(look)

    async def _answer(self, unconsolidated: Unconsolidated, mark: Mark) -> Stored:
        """Ask the model until MEMORY.md is the same before and after the call; not at all about silence."""
        spoken = sendable(unconsolidated.lines, start=mark.start, stop=mark.stop)
        for _ in range(TRIES):
            base = await asyncio.to_thread(self._notes.memory)
            taken = await self._taken(unconsolidated.key, spoken, base.decode("utf-8", "replace"))
            if taken is None:
                return Stored.of(unconsolidated.key, mark)
            # A person may have edited the notes while the model thought: it is asked again about those.
            if await asyncio.to_thread(self._notes.memory) == base:
                return Stored.of(
                    unconsolidated.key,
                    mark,
                    entry=taken.entry,
                    memory=taken.memory,
                    base=content_digest(base),
                    merged=taken.merged,
                )
        raise self._edited()

    async def _ask(self, key: str, prompt: Prompt) -> Answer:
        await self._memory.budget.take(unasked=not self._asked)
        self._done = replace(self._done, calls=self._done.calls + 1)
        return await self._memory.ask(key, prompt)

    async def _taken(self, key: str, spoken: Sequence[Line], former: str) -> Taken | None:
        """Ask for the notes of some messages, marked; None where these say nothing at all.

        Raises:
            NotNow: there is no budget.
            BadAnswer: the answer is of no use, or too long and cannot be shortened.
            ModelError: as of ``Model.ask``.
        """
        memory, rules = self._memory, self._memory.rules
        prompt = notes_prompt(
            spoken, memory=former, zone=memory.zone, max_bytes=rules.max_bytes, model=rules.small_model
        )
        if prompt is None:
            return None
        taken = read_notes(await self._ask(key, prompt), max_bytes=rules.max_bytes, now=memory.now())

        def marked() -> tuple[Sources, str, str]:
            sources = Sources.of(spoken, group=self._scope.group)
            entry = sources.marked(taken.entry, fallback=False)
            return sources, entry, sources.marked(taken.memory, former=former)

        chars = len(former) + len(taken.memory) + sum(len(str(line)) for line in spoken)
        # Comparing the words of long results takes a while. What is short is done at once: until the answer
        # is stored, a crash costs the request again.
        sources, entry, text = marked() if chars < SHORT_CHARS else await asyncio.to_thread(marked)
        over = size_bytes(text) > max(rules.max_bytes, size_bytes(former))
        if over:
            text = await self._shortened(key, text, sources)
        if lost := lost_headings(former, text):
            memory.totals["headings_lost"] += len(lost)
            log.warning("memory.headings_lost", key=key, headings=len(lost))
        return Taken(entry, text, over)

    async def _shortened(self, key: str, text: str, sources: Sources) -> str:
        """Have MEMORY.md shortened, once.

        Raises:
            BadAnswer: what came back cannot stand for it; nothing is changed.
        """
        rules, totals = self._memory.rules, self._memory.totals
        try:
            prompt = shortening_prompt(text, what=NOTES, max_bytes=rules.max_bytes, model=rules.small_model)
            shorter = text_of(await self._ask(key, prompt)) + "\n"
            shorter = await asyncio.to_thread(sources.marked, shorter, former=text)
            check_shortened(shorter, text, max_bytes=rules.max_bytes)
        except ModelError as error:
            totals["unmerged"] += 1
            log.warning("memory.unmerged", key=key, bytes=size_bytes(text), error=loggable(error))
            if not isinstance(error, BadAnswer):
                raise
            raise BadAnswer(
                f"MEMORY.md would grow to {size_bytes(text)} bytes, over its cap of "
                f"{rules.max_bytes}, and could not be shortened: {error}"
            ) from error
        totals["merged"] += 1
        log.info("memory.merged", key=key, bytes=size_bytes(shorter))
        return shorter

    def _edited(self) -> NotNow:
        until, hint = self._memory.clock() + timedelta(seconds=EDITED_S), "close the editor and try again"
        return NotNow("MEMORY.md is being edited", reason="edited", until=until, hint=hint)

    async def _failed(self, unconsolidated: Unconsolidated, mark: Mark, error: ModelError) -> Stored:
        memory, state = self._memory, self._scope_state
        memory.totals["failures"] += 1
        session_id, start = unconsolidated.session_id, unconsolidated.start
        tries = state.failure(session_id, start).count + 1
        log.warning("memory.failed", key=unconsolidated.key, tries=tries, error=loggable(error))
        await state.count_failure(session_id, start, error, memory.clock())
        lines = sendable(unconsolidated.lines, start=mark.start, stop=mark.stop)
        entry = raw_entry(lines, count=mark.stop - mark.start, zone=memory.zone, now=memory.now())
        return Stored.of(unconsolidated.key, mark, entry=entry)

    async def _store(self, answer: Stored) -> bool:
        memory, count = self._memory, answer.stop - answer.start
        raw = count if answer.entry and answer.memory is None else 0
        # On disk before a file is touched: after a crash the model is not asked again.
        self._scope_state.answer = answer
        await self._scope_state.save()
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
