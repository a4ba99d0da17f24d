"""What a search finds and how soon; of 100,000 messages the index: its size, its making, what turns feel.

Quality is measured on LoCoMo where ``LOCOMO`` names a folder of it: one JSON file for each conversation,
with ``sessions`` (``n``, ``at``, ``turns`` of ``id``, ``speaker``, ``text``), ``speakers`` and ``questions``
(``question``, ``evidence``). It is no part of the product. ``python -m bench.recall FOLDER`` measures that.
"""

from __future__ import annotations

import asyncio
import json
import os
import random
import sys
import time
from collections.abc import Iterator, Sequence
from contextlib import suppress
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

from bench.application import run as run_loop
from bench.place import folder
from bench.row import Row, median, quantile, table
from session.context.scopes import Scope, Scopes
from session.memory.scope_resolver import ScopeResolver
from session.recall.recall import Recall
from session.store.store import Store
from session.transcript.archive import name_of
from session.transcript.key import SessionKey
from session.transcript.line import dump, make_line, naive, stamp
from tests.session.store_place import archives_in

ADA = SessionKey("web:ada")
START = datetime(2026, 1, 1, tzinfo=UTC)
MESSAGES, SESSIONS, WORDS, VOCABULARY = 100_000, 100, 20, 20_000
QUESTIONS = 200
WITHIN_S, DELAY_MS, QUERY_MS, SIZE = 20.0, 50.0, 5.0, 1.5
LOOKS_S = 0.001


@dataclass
class Place:
    """The searches of one workspace."""

    store: Store
    recall: Recall

    scope: Scope

    async def ask(self, text: str, *, limit: int = 10) -> list[Any]:
        return (await self.recall.search(self.scope, ADA, text, limit=limit, within_s=None)).hits


def place(workspace: Path) -> Place:
    store = Store(workspace, zone=UTC)
    scopes = Scopes(workspace, kind="chat")
    scope_resolver = ScopeResolver(scopes, store=store)
    return Place(store, Recall(scope_resolver, store=store, quiet_s=0), scopes.named("chats/web_ada"))


def ended(workspace: Path, number: int, lines: Sequence[dict[str, Any]]) -> None:
    """Write an ended session."""
    at = START + timedelta(days=number)
    session_id = f"01HZZZZZZZZZZZZZZZZZZZ{number:04d}"
    head = {
        "_type": "metadata",
        "key": ADA,
        "created_at": naive(at),
        "updated_at": naive(at),
        "metadata": {"session_id": session_id, "chat": "direct"},
        "last_consolidated": 0,
    }
    path = workspace / "sessions/archive/web_ada" / name_of(at, session_id)
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_bytes(b"".join(dump(line) + b"\n" for line in (head, *lines)))


def run() -> list[Row]:
    """Measure quality where the data is given, then size and time on made-up talk."""
    data = os.environ.get("LOCOMO")
    return [*(quality(Path(data)) if data else ()), *_size_and_time()]


# -- what is found ---------------------------------------------------------------------------------


def quality(data: Path) -> list[Row]:
    """Search for each question of each conversation, by its words alone."""
    scores = [score for path in sorted(data.glob("*.json")) for score in _scores(path)]
    sessions, turns, ranks, took, sizes = zip(*scores, strict=True)
    what = {"what": f"LoCoMo, {len(scores)} questions; without any model"}
    return [
        _at_least("evidence in the first five sessions", 100 * sum(sessions) / len(scores), 92, "%", what),
        _at_least("evidence in the first five messages", 100 * sum(turns) / len(scores), 68, "%", {}),
        _at_least("mean reciprocal rank of sessions", sum(ranks) / len(scores), 0.82, "", {}),
        _at_most("a search in 600 messages", 1e3 * median(took), QUERY_MS, "ms", {}),
        _at_most("index of 600 messages by their text", max(sizes), SIZE, "", {"what": "the worst of all"}),
    ]


def _scores(path: Path) -> Iterator[tuple[bool, bool, float, float, float]]:
    talk = json.loads(path.read_text())
    person = talk["speakers"][0] if isinstance(talk["speakers"], list) else talk["speakers"]["a"]
    with folder() as workspace:
        places: dict[tuple[str, int], str] = {}
        for session in talk["sessions"]:
            lines = []
            for number, turn in enumerate(session["turns"], 1):
                role = "user" if turn["speaker"] == person else "assistant"
                sender = {"id": "1", "name": person} if role == "user" and "--named" in sys.argv else None
                lines.append(make_line(role, turn["text"], _iso(str(session["at"])), sender=sender))
                places[f"{session['n']:04d}", number] = turn["id"]
            ended(workspace, session["n"], lines)
        found = run_loop(lambda: _search_all(workspace, talk["questions"]))
        size = _index_bytes(workspace) / _text_bytes(workspace)
    for evidence, hits, took in found:
        turns = [places[hit.session_id[-4:], hit.seq] for hit in hits]
        sessions = list(dict.fromkeys(turn.partition(":")[0] for turn in turns))
        proven = {turn.partition(":")[0] for turn in evidence}
        first = next((rank for rank, each in enumerate(sessions[:10], 1) if each in proven), 0)
        yield (
            not proven.isdisjoint(sessions[:5]),
            not evidence.isdisjoint(turns[:5]),
            1 / first if first else 0.0,
            took,
            size,
        )


def _iso(at: str) -> str:
    """Write LoCoMo's times as transcripts do: 1:56 pm on 8 May, 2023."""
    with suppress(ValueError):
        return stamp(datetime.strptime(at, "%I:%M %p on %d %B, %Y").replace(tzinfo=UTC), UTC)
    return at


async def _search_all(
    workspace: Path, questions: Sequence[dict[str, Any]]
) -> list[tuple[set[str], list[Any], float]]:
    here = place(workspace)
    await here.ask("warm")
    found = []
    for each in questions:
        if each["evidence"]:
            hits = await here.ask(each["question"], limit=100)
            began = time.perf_counter()
            await here.ask(each["question"])
            found.append((set(each["evidence"]), hits, time.perf_counter() - began))
    await here.recall.aclose()
    await here.store.aclose()
    return found


# -- size and time ---------------------------------------------------------------------------------


def _size_and_time() -> list[Row]:
    words = Words()
    with folder() as workspace:
        for number in range(SESSIONS):
            ended(workspace, number, list(words.talk(MESSAGES // SESSIONS)))
        whole_s, alone_ms, beside_ms, took, cpu_ms = run_loop(lambda: _index_and_ask(workspace, words))
        size = _index_bytes(workspace) / _text_bytes(workspace)
    what = {"what": f"{MESSAGES:,} messages of {WORDS} words in {SESSIONS} ended sessions"}
    p90, p99 = (1e3 * quantile(took, part) for part in (0.9, 0.99))
    notes = {"what": f"10 hits; p90 {p90:.1f} ms, p99 {p99:.1f} ms; {cpu_ms:.1f} ms of CPU each"}
    return [
        _at_most("100,000 messages indexed", whole_s, WITHIN_S, "s", what),
        _at_most(
            "what the loop feels of it at worst",
            beside_ms - alone_ms,
            DELAY_MS,
            "ms",
            {"what": f"the latest wake-up beside it, {alone_ms:.1f} ms apart from it"},
        ),
        _at_most("a search in 100,000 messages", 1e3 * median(took), QUERY_MS, "ms", notes),
        _at_most("index of 100,000 messages by their text", size, SIZE, "", {}),
    ]


async def _index_and_ask(workspace: Path, words: Words) -> tuple[float, float, float, list[float], float]:
    here = place(workspace)
    done = asyncio.Event()
    asyncio.get_running_loop().call_later(2, done.set)
    alone = await lateness(done)
    done = asyncio.Event()
    late = asyncio.ensure_future(lateness(done))
    keeping = asyncio.ensure_future(here.recall.run())
    began = time.perf_counter()
    here.recall.note(ADA)
    while not await here.recall.is_up(here.scope, ADA):
        await asyncio.sleep(0.1)
    whole = time.perf_counter() - began
    done.set()
    beside = await late
    keeping.cancel()
    took = []
    questions = [words.question() for _ in range(QUESTIONS)]
    cpu = time.process_time()
    for question in questions:
        at = time.perf_counter()
        await here.ask(question)
        took.append(time.perf_counter() - at)
    cpu_ms = 1e3 * (time.process_time() - cpu) / QUESTIONS
    await here.recall.aclose()
    await here.store.aclose()
    return whole, alone, beside, took, cpu_ms


async def lateness(done: asyncio.Event) -> float:
    """Return by how many ms a wake-up came too late at worst."""
    worst = 0.0
    while not done.is_set():
        began = time.perf_counter()
        await asyncio.sleep(LOOKS_S)
        worst = max(worst, time.perf_counter() - began - LOOKS_S)
    return worst * 1e3


class Words:
    """Talk in made-up words, each as frequent as its place in a list allows."""

    def __init__(self) -> None:
        self._dice = random.Random(7)
        self._words = ["".join(self._dice.choices("bdfgklmnprstaeiou", k=6)) for _ in range(VOCABULARY)]
        self._weights = [1 / (place + 20) for place in range(VOCABULARY)]

    def some(self, count: int) -> list[str]:
        return self._dice.choices(self._words, self._weights, k=count)

    def question(self) -> str:
        return " ".join(self.some(6))

    def talk(self, count: int) -> Iterator[dict[str, Any]]:
        for number in range(count):
            at = stamp(START + timedelta(seconds=number), UTC)
            yield make_line("user" if number % 2 == 0 else "assistant", " ".join(self.some(WORDS)), at)


def _index_bytes(workspace: Path) -> int:
    return sum(path.stat().st_size for path in (workspace / "state/recall").rglob("*.db"))


def _text_bytes(workspace: Path) -> int:
    lines = [
        json.loads(line)
        for path in archives_in(Store(workspace, zone=UTC))
        for line in path.read_bytes().splitlines()[1:]
    ]
    return sum(len(line["content"].encode()) for line in lines)


def _at_most(name: str, ours: float, limit: float, unit: str, notes: dict[str, Any]) -> Row:
    return Row(name, ours, limit, unit, "limit", ours / limit, at_most=1, notes=notes)


def _at_least(name: str, ours: float, limit: float, unit: str, notes: dict[str, Any]) -> Row:
    return Row(name, ours, limit, unit, "limit", ours / limit, at_least=1, notes=notes)


if __name__ == "__main__":
    print(table(quality(Path(sys.argv[1])) if len(sys.argv) > 1 else _size_and_time()))
