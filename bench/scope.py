"""A scope of 10,000 facts and 100 MB of ended sessions: a search of the model, and what a request is told.

All of it is put together as a gateway does it. The parts of a request are measured over turns with different
messages; the first one, which reads the facts, apart from them.
"""

from __future__ import annotations

import asyncio
import gc
import json
import time
from datetime import UTC
from pathlib import Path
from typing import Any

from bench.application import run as run_loop
from bench.application import settings
from bench.place import folder
from bench.recall import ADA, Words, ended, lateness
from bench.row import Row, median, quantile
from gateway.app.wiring_session import SessionServices
from session.context.request import Request, TurnContext, place_of
from session.recall.recall import MemorySearch
from session.store.store import Session
from session.tools import ToolPlace
from session.transcript.key import SessionKey
from session.transcript.line import make_line, stamp

BOB = SessionKey("web:bob")
FACTS, SESSIONS, MEGABYTES = 10_000, 200, 100
# A question, and an answer of usual length.
ASKED, ANSWERED = 15, 120
SEARCHES, TURNS, WARM = 150, 60, 5
SEARCH_MS, PARTS_MS, DELAY_MS = 50.0, 10.0, 50.0


def run() -> list[Row]:
    """Measure both."""
    words = Words()
    with folder() as workspace:
        messages = _fill(workspace, words)
        config = {"model__name": "openai/none", "model__api_key": "none"}
        found, parts, first_ms, late_ms = run_loop(
            lambda: _measured(SessionServices(settings(workspace, **config), status=lambda *_: []), words)
        )
    what = f"{FACTS:,} facts, {messages:,} messages of {MEGABYTES} MB in {SESSIONS} ended sessions"
    return [
        _row("memory_search", found, SEARCH_MS, f"{what}; 8 hits with a neighbour on each side"),
        _row("all parts of a request", parts, PARTS_MS, "scope, notes, facts and the others, off the loop"),
        Row(
            "what the loop feels of the first reading of the facts",
            late_ms,
            DELAY_MS,
            "ms",
            "limit",
            late_ms / DELAY_MS,
            at_most=1,
            notes={
                "what": f"the latest wake-up beside the first request, whose parts take {first_ms:.0f} ms"
            },
        ),
    ]


def _row(name: str, took: list[float], limit: float, what: str) -> Row:
    """Judge the slowest but one of ten."""
    p50, p90 = (1e3 * each for each in (median(took), quantile(took, 0.9)))
    notes = {"what": what, "p50": f"{p50:.1f} ms", "p90": f"{p90:.1f} ms"}
    return Row(name, p90, limit, "ms", "limit", p90 / limit, at_most=1, notes=notes)


def _fill(workspace: Path, words: Words) -> int:
    """Write the scope; return how many messages it has."""
    count = 0
    at = "2026-01-01T10:00:00.000000+00:00"
    for number in range(SESSIONS):
        lines: list[dict[str, Any]] = []
        size = 0
        while size < MEGABYTES * 1_000_000 // SESSIONS:
            user = len(lines) % 2 == 0
            text = " ".join(words.some(ASKED if user else ANSWERED))
            lines.append(make_line("user" if user else "assistant", text, at, message_id=f"m{count}"))
            size += len(text) + 120
            count += 1
        ended(workspace, number, lines)
    memory = workspace / "memory/chats/web_ada"
    memory.mkdir(parents=True)
    (memory / "MEMORY.md").write_text("".join(f"- {' '.join(words.some(12))}\n" for _ in range(200)))
    facts = (
        {
            "id": f"01HZZZZZZZZZZZZZZZZZZ{number:05d}",
            "text": " ".join(words.some(12)),
            "category": "preference",
            "confidence": 0.9,
            "key": ADA,
            "message_id": f"m{number}",
            "created_at": at,
            "replaced_by": None,
            "source": None,
        }
        for number in range(FACTS)
    )
    (memory / "facts.jsonl").write_text("".join(json.dumps(fact) + "\n" for fact in facts))
    return count


async def _measured(services: SessionServices, words: Words) -> tuple[list[float], list[float], float, float]:
    gc.freeze()
    async with services.store.open(BOB) as session:
        await _parts(services, session, words, 0)
    async with services.store.open(ADA) as session:
        done = asyncio.Event()
        late = asyncio.ensure_future(lateness(done))
        _, first = await _parts(services, session, words, 0)
        done.set()
        late_ms = await late
        parts = []
        for number in range(1, TURNS + WARM):
            at = stamp(services.store.clock(), UTC)
            await session.append([make_line("user", words.question(), at, message_id=f"n{number}")])
            context, took = await _parts(services, session, words, number)
            parts.append(took)
        request = Request("search", ADA, "")
        place = place_of(session, request, files=context.files, scope=context.scope, group=context.group)
        found = await _searches(services, place, words)
    await services.aclose()
    return found, parts[WARM:], 1e3 * first, late_ms


async def _parts(
    services: SessionServices, session: Session, words: Words, number: int
) -> tuple[TurnContext, float]:
    request = Request(f"n{number}", session.key, words.question())
    began = time.perf_counter()
    context = await services.turns.turn_context(session, request)
    return context, time.perf_counter() - began


async def _searches(services: SessionServices, place: ToolPlace, words: Words) -> list[float]:
    tool = MemorySearch(services.recall, services.scopes, zone=UTC)
    scope = services.scopes.named(place.scope)
    await services.recall.search(scope, place.key, "all", limit=1, within_s=None)
    took = []
    for _ in range(SEARCHES + WARM):
        began = time.perf_counter()
        await tool.run({"query": words.question(), "neighbours": 1}, place)
        took.append(time.perf_counter() - began)
    return took[WARM:]
