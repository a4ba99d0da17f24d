"""Turns on real files: a model that answers as a test lays out, and a tool that remembers its calls."""

from __future__ import annotations

import itertools
from collections.abc import AsyncIterator, Callable, Mapping, Sequence
from contextlib import asynccontextmanager
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

from session.models.model import Answer, OnDelta, Prompt, ToolCall, ToolSpec
from session.store.store import Session, Store
from session.tools import Toolbox, ToolPlace
from session.transcript.key import SessionKey
from session.turn.turn import Reply, Request, StopSwitch, TurnContext, TurnLimits, Turns

ADA = SessionKey("cli:ada")
START = datetime(2026, 3, 1, 12, tzinfo=UTC)


class Model:
    """Answers what the test lays out; each step is an answer, an error, or something to await first."""

    name = "scripted"
    plain = False

    def __init__(self, *steps: Answer | Exception | Callable[[], Any]) -> None:
        self.steps = list(steps)
        self.prompts: list[Prompt] = []
        self.seen_on_disk: list[list[str]] = []
        self.look: Callable[[], list[str]] = list

    async def ask(self, prompt: Prompt, on_delta: OnDelta | None = None) -> Answer:
        self.prompts.append(prompt)
        self.seen_on_disk.append(self.look())
        step = self.steps.pop(0)
        if callable(step):
            step = await step()
        if isinstance(step, Exception):
            raise step
        if on_delta is not None and step.text:
            on_delta(step.text)
        return step


class Counter:
    """A tool that remembers its calls."""

    def __init__(self, *, repeatable: bool) -> None:
        self.repeatable = repeatable
        self.calls: list[str] = []
        self.look: Callable[[], list[str]] = list
        self.seen_on_disk: list[list[str]] = []

    @property
    def spec(self) -> ToolSpec:
        return ToolSpec("count", "counts", {"type": "object", "properties": {"n": {"type": "string"}}})

    async def run(self, arguments: Mapping[str, Any], place: ToolPlace) -> str:
        self.seen_on_disk.append(self.look())
        self.calls.append(str(arguments.get("n")))
        return f"counted {arguments.get('n')}"


def call(n: str, id: str = "c1") -> Answer:
    return Answer("", tool_calls=[ToolCall(id, "count", f'{{"n": "{n}"}}')], finish="tool_calls")


def turns_of(
    model: Any, tools: Sequence[Any], files: Path, *, clock: Callable[[], datetime] | None = None, **more: Any
) -> Turns:
    """Turns with these tools on offer and nothing else in their requests, by the system's clock."""

    async def context(session: Session, request: Request) -> TurnContext:
        return TurnContext(parts=(), files=files, tools=tuple(tool.spec.name for tool in tools))

    return Turns(
        model=model,
        toolbox=Toolbox(tools),
        limits=more.pop("limits", TurnLimits()),
        zone=UTC,
        clock=clock or (lambda: datetime.now(UTC)),
        turn_context=context,
        **more,
    )


class TurnRig:
    def __init__(self, folder: Path, model: Model, tool: Counter, **limits: Any) -> None:
        self.store = Store(folder, zone=UTC)
        self.model = model
        self.tool = tool
        self._seconds = itertools.count()
        files = self.store.layout.workspace / "files"
        self.turns = turns_of(model, [tool], files, clock=self.now, limits=TurnLimits(**limits))
        model.look = tool.look = lambda: self.on_disk(folder)

    def now(self) -> datetime:
        """A second later at each look."""
        return START + timedelta(seconds=next(self._seconds))

    @staticmethod
    def on_disk(folder: Path) -> list[str]:
        path = folder / "sessions" / "cli_ada.jsonl"
        return [line["role"] for line in lines_in(path)] if path.exists() else []

    async def run(self, text: str = "hello", id: str = "m1", stop: StopSwitch | None = None) -> Reply:
        async with self.store.open(ADA) as session:
            return await self.turns.run(
                session, Request(id=id, key=ADA, text=text), stop=stop or StopSwitch()
            )

    async def lines(self) -> list[dict[str, Any]]:
        return (await self.store.look(ADA)).lines()

    async def stored(self, *lines: dict[str, Any]) -> None:
        async with self.store.open(ADA) as session:
            await session.append([{"message_id": "m1", "content": "", **line} for line in lines])


def lines_in(path: Path) -> list[dict[str, Any]]:
    import json

    return [json.loads(line) for line in path.read_bytes().split(b"\n")[1:] if line]


@asynccontextmanager
async def turn_rig(
    folder: Path, *steps: Any, repeatable: bool = True, **limits: Any
) -> AsyncIterator[TurnRig]:
    built = TurnRig(folder, Model(*steps), Counter(repeatable=repeatable), **limits)
    yield built
    await built.store.aclose()


def roles(lines: Sequence[Mapping[str, Any]]) -> list[str]:
    return [str(line["role"]) for line in lines]


CALLS = {
    "role": "assistant",
    "content": None,
    "tool_calls": [
        {"id": "c1", "type": "function", "function": {"name": "count", "arguments": '{"n": "1"}'}}
    ],
}
