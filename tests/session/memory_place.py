"""A workspace with a memory, a model that says what a test wants, and a clock that a test drives."""

from __future__ import annotations

import asyncio
import json
import re
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any, Literal

from session.background.job_files import JobFiles
from session.background.jobs import Background
from session.context.scopes import Scope, Scopes
from session.memory.consolidation import MemoryNotes
from session.memory.fact_extraction import FactExtraction, FactRules
from session.memory.fact_store import FactStore
from session.memory.note_taking import MemoryRules
from session.memory.scope_resolver import remember_chat_kind
from session.models.caps import Caps
from session.models.model import Answer, OnDelta, Prompt, ToolCall
from session.models.spending import Spending
from session.store.store import Store
from session.transcript.key import SessionKey
from session.transcript.line import make_line, stamp
from tests.session.spending_place import spending_in
from tests.support import clock

ADA = SessionKey("telegram:1")
BOB = SessionKey("telegram:2")
START = datetime(2026, 1, 31, 9, 15, tzinfo=UTC)
# What stands behind each paragraph of HISTORY.md.
MARK = re.compile(r"<!-- session ([0-9A-Z]{26}) messages (\d+)-(\d+) [0-9a-f]{8} -->")

Step = Answer | Exception | Callable[[Prompt], Any]


class Clock(clock.Clock):
    """The clock of the tests, which stands at the first message of ``talk`` until it is moved."""

    def __init__(self) -> None:
        super().__init__(START)

    advance = clock.Clock.forward


class Scripted:
    """A model that does the steps in order, then always takes proper notes."""

    name = "scripted"
    plain = False

    def __init__(self, *steps: Step) -> None:
        self.steps = list(steps)
        self.seen: list[Prompt] = []
        # Requests for a summary or a name, which are no steps.
        self.prose: list[Prompt] = []
        self.wrote: list[Step] = []
        # Requests for facts, which are no steps either.
        self.extractions: list[Prompt] = []
        self.drew: list[Step] = []
        self._changed = asyncio.Condition()

    async def ask(self, prompt: Prompt, on_delta: OnDelta | None = None) -> Answer:
        if prompt.force_tool == "save_facts":
            self.extractions.append(prompt)
            return await self._done(self.drew.pop(0) if self.drew else noted(), prompt)
        if not prompt.force_tool:
            self.prose.append(prompt)
            return await self._done(self.wrote.pop(0) if self.wrote else Answer("They talked."), prompt)
        self.seen.append(prompt)
        async with self._changed:
            self._changed.notify_all()
        step: Any = (
            self.steps.pop(0) if self.steps else saved(f"Talk {len(self.seen)}.", f"- fact {len(self.seen)}")
        )
        return await self._done(step, prompt)

    async def _done(self, step: Any, prompt: Prompt) -> Answer:
        if isinstance(step, Exception):
            raise step
        if callable(step):
            step = step(prompt)
            if asyncio.iscoroutine(step):
                step = await step
        assert isinstance(step, Answer)
        return step

    async def asked(self, times: int) -> None:
        """Wait until it was asked that many times."""
        async with self._changed:
            await self._changed.wait_for(lambda: len(self.seen) >= times)

    def text(self, call: int) -> str:
        """What the user message of a call said."""
        return str(self.seen[call].messages[-1]["content"])


def spending_of(clock: Clock, *, per_day_usd: float = 0.0) -> Spending:
    """Count what this process pays."""
    return spending_in(clock=clock, caps=Caps(cost_per_day_usd=per_day_usd))


def saved(entry: Any = "They talked.", memory: Any = "- a fact", **more: Any) -> Answer:
    """An answer that calls save_memory."""
    fields = {"history_entry": entry, "memory_update": memory, **more}
    return called(json.dumps({name: value for name, value in fields.items() if value is not ...}))


def noted(*facts: Any) -> Answer:
    """An answer that calls save_facts."""
    return called(json.dumps({"facts": facts}), "save_facts")


def fact(text: Any = "Ada likes tea.", message: Any = 1, **more: Any) -> dict[str, Any]:
    """One item of such a call."""
    return {"text": text, "category": "preference", "confidence": 0.95, "message": message, **more}


def called(arguments: str, name: str = "save_memory") -> Answer:
    """An answer that calls a tool with these arguments."""
    return Answer("", [ToolCall("call_1", name, arguments)], finish="tool_calls")


def user(text: str = "hello") -> dict[str, Any]:
    return make_line("user", text, "2026-01-31T09:00:00")


def talk(count: int, *, start: int = 0, **fields: Any) -> list[dict[str, Any]]:
    """User and assistant lines in turn, numbered."""
    return [
        make_line(
            "user" if number % 2 == 0 else "assistant",
            f"message {number}",
            stamp(START + timedelta(minutes=number), UTC),
            **(fields if number % 2 == 0 else {}),
        )
        for number in range(start, start + count)
    ]


@dataclass
class Workspace:
    """One workspace as one process sees it."""

    store: Store
    memory: MemoryNotes
    jobs: Background
    model: Scripted
    clock: Clock
    folder: Path
    known: FactStore
    extraction: FactExtraction

    async def said(self, key: SessionKey, lines: list[dict[str, Any]]) -> None:
        """Append lines, which come from the platform of the chat."""
        async with self.store.open(key) as session:
            await remember_chat_kind(
                session, "group" if any(line.get("group") for line in lines) else "direct"
            )
            await session.append(lines)

    async def turn(self, key: SessionKey, lines: list[dict[str, Any]]) -> None:
        """Append lines and tell the background, as the end of a turn does."""
        async with self.store.open(key) as session:
            await session.append(lines)
            self.jobs.turn_ended(session)

    async def new(self, key: SessionKey) -> bool:
        """Do what ``/new`` does."""
        async with self.store.open(key) as session:
            await session.end()
            return await self.jobs.ended(session)

    async def pointer(self, key: SessionKey) -> int:
        return (await self.store.look(key)).last_consolidated

    async def scope(self, key: SessionKey) -> Scope:
        return await self.memory.scope_of(key)

    async def read(self, name: str, key: SessionKey = ADA) -> str:
        path = (await self.scope(key)).memory / name
        return path.read_text() if path.exists() else ""


@asynccontextmanager
async def open_workspace(
    folder: Path,
    *steps: Step,
    kind: Literal["chat", "workspace"] = "chat",
    run: bool = False,
    clock: Clock | None = None,
    model: Any = None,
    spending: Spending | None = None,
    files: JobFiles | None = None,
    facts: FactRules | None = None,
    limit_s: float = 30.0,
    quiet_s: float = 0.0,
    **rules: Any,
) -> AsyncIterator[Workspace]:
    """Open a workspace; ``run`` lets its background work."""
    clock = clock or Clock()
    model = model or Scripted(*steps)
    store = Store(folder, zone=UTC, clock=clock)
    scopes = Scopes(folder, kind=kind)
    memory_rules = MemoryRules(**{"window": 10, **rules})
    memory = MemoryNotes(
        scopes, store=store, model=model, rules=memory_rules, zone=UTC, clock=clock, cost_meter=spending
    )
    files = files or JobFiles(folder / "state")
    known = FactStore(store, cost_meter=spending, versions=memory_rules.versions)
    extraction = FactExtraction(
        memory,
        known,
        store=store,
        scope_of=memory.scope_resolver.of_key,
        rules=facts or FactRules(),
        limit_s=limit_s,
    )
    drawn = extraction if facts is not None else None
    times: Any = {"clock": clock, "sleep": clock.sleep, "quiet_s": quiet_s}
    jobs = Background(memory, store=store, files=files, facts=drawn, **times)
    task = asyncio.ensure_future(jobs.run()) if run else None
    try:
        yield Workspace(store, memory, jobs, model, clock, folder, known, extraction)
    finally:
        if task is not None:
            task.cancel()
            await asyncio.wait((task,))
        await store.aclose()


def jobs_in(folder: Path) -> list[Path]:
    """The consolidations that wait."""
    found = (folder / "state/jobs").glob("*.json")
    return sorted(path for path in found if ".summary." not in path.name and ".facts." not in path.name)


def timers_in(folder: Path) -> list[Path]:
    """The extractions of facts that wait."""
    return sorted((folder / "state/jobs").glob("*.facts.json"))
