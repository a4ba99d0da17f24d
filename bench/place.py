"""The session side alone, without a queue: a store, turns, and transcripts of any length to run them on."""

from __future__ import annotations

import os
import shutil
import tempfile
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager, contextmanager
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import orjson

from session.models.model import Answer, Echo, Model, OnDelta, PartKind, Prompt
from session.store.store import Session, Store
from session.tools import Toolbox
from session.transcript.key import SessionKey
from session.turn.turn import Reply, Request, StopSwitch, TurnContext, TurnLimits, Turns

# What a daemon gives the conversations that were used lately: ``session.cache_mb``.
CACHE_BYTES = 256 * 2**20
TEXT = "A message of ordinary length, as people write it, with a word or two of détail in it. "


@contextmanager
def one_core() -> Iterator[None]:
    """Keep this process and those that it starts on one core, where the system can."""
    if not hasattr(os, "sched_setaffinity"):
        yield
        return
    cores = os.sched_getaffinity(0)
    os.sched_setaffinity(0, {max(cores)})
    try:
        yield
    finally:
        os.sched_setaffinity(0, cores)


@contextmanager
def folder() -> Iterator[Path]:
    """A temporary folder for one measurement."""
    path = Path(tempfile.mkdtemp(prefix="chat-gateway-bench-"))
    try:
        yield path
    finally:
        shutil.rmtree(path, ignore_errors=True)


class Instant:
    """A model in this process that answers at once but is a full one: its history is built."""

    name = "instant"
    plain = False

    def takes(self, part: PartKind) -> bool:
        """Take nothing but text."""
        return False

    async def ask(self, prompt: Prompt, on_delta: OnDelta | None = None) -> Answer:
        """Answer with the last message."""
        return Answer(f"echo: {prompt.messages[-1]['content']}")


class Place:
    """A store with turns over it."""

    def __init__(
        self, workspace: Path, model: Model | None = None, *, cache_bytes: int = CACHE_BYTES
    ) -> None:
        self.workspace = workspace
        self.store = Store(workspace, zone=UTC, cache_bytes=cache_bytes)
        self.turns = Turns(
            model=model or Echo(),
            toolbox=Toolbox([]),
            limits=TurnLimits(),
            zone=UTC,
            clock=lambda: datetime.now(UTC),
            turn_context=self._surroundings,
        )

    async def _surroundings(self, session: Session, request: Request) -> TurnContext:
        return TurnContext(parts=(), files=self.workspace / "files", tools=())

    async def turn(self, key: SessionKey, id: str, text: str) -> Reply:
        """Run one turn as the worker does: open, run, close."""
        async with self.store.open(key) as session:
            return await self.turns.run(session, Request(id=id, key=key, text=text), stop=StopSwitch())


@asynccontextmanager
async def place(
    workspace: Path, model: Model | None = None, *, cache_bytes: int = CACHE_BYTES
) -> AsyncIterator[Place]:
    """Open a place and end its threads."""
    made = Place(workspace, model, cache_bytes=cache_bytes)
    yield made
    await made.store.aclose()


def transcript(workspace: Path, key: SessionKey, messages: int, *, consolidated: int = 0) -> Path:
    """Write a transcript of exchanges with a tool chain in every fourth, as a nanobot would have it."""
    began = datetime(2026, 1, 1, 10)
    path = workspace / "sessions" / f"{key.replace(':', '_')}.jsonl"
    path.parent.mkdir(parents=True, exist_ok=True)
    head = {
        "_type": "metadata",
        "key": key,
        "created_at": began.isoformat(timespec="microseconds"),
        "updated_at": began.isoformat(timespec="microseconds"),
        "metadata": {},
        "last_consolidated": consolidated,
    }
    lines: list[dict[str, Any]] = []
    number = 0
    while len(lines) < messages:
        lines += _exchange(number, began + timedelta(seconds=90 * number))
        number += 1
    path.write_bytes(b"".join(orjson.dumps(line) + b"\n" for line in [head, *lines[:messages]]))
    return path


def _exchange(number: int, at: datetime) -> list[dict[str, Any]]:
    stamp = at.isoformat(timespec="microseconds")
    lines: list[dict[str, Any]] = [{"role": "user", "content": f"{number}: {TEXT}"}]
    if number % 4 == 0:
        call: dict[str, Any] = {"id": f"call_{number}", "type": "function"}
        call["function"] = {"name": "list_dir", "arguments": '{"path": "."}'}
        lines.append({"role": "assistant", "content": None, "tool_calls": [call]})
        lines.append({"role": "tool", "content": TEXT * 3, "tool_call_id": call["id"], "name": "list_dir"})
    lines.append({"role": "assistant", "content": f"Answer {number}: {TEXT * 2}"})
    return [{**line, "timestamp": stamp} for line in lines]


def bytes_written() -> int:
    """How many bytes this process has handed to write calls so far, of all files."""
    for line in Path("/proc/self/io").read_text().splitlines():
        name, _, value = line.partition(": ")
        if name == "wchar":
            return int(value)
    raise OSError("/proc/self/io has no wchar")
