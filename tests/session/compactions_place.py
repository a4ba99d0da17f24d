"""A conversation kept within its window, on real files: a model that talks, and sums up what it sees."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator, Callable, Mapping
from contextlib import asynccontextmanager
from dataclasses import replace
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from session.compaction.compactions import Compactions
from session.compaction.compactor import Compactor
from session.compaction.rules import CompactionRules
from session.context.context import ChangingParts
from session.errors import ContextTooLong, ModelAway
from session.models.model import Answer, OnDelta, PartKind, Prompt, ToolCall, ToolSpec, Usage
from session.models.spending import Meter
from session.models.tokens import estimate_messages
from session.store.store import Session, Store
from session.tools import Toolbox, ToolPlace
from session.transcript.history import HistoryWindow, SummaryRole
from session.transcript.key import SessionKey
from session.transcript.line import make_line
from session.turn.turn import Reply, Request, StopSwitch, TurnContext, TurnLimits, Turns
from tests.session.compaction_talk import RULES, STRUCTURED, facts_of, filled
from tests.support.clock import Clock

KEY = SessionKey("cli:ada")
AWAY = ModelAway("503", cause="unreachable")
PRESETS = ("overlay", "budget", "archive", "annabelle")
QUICK = {"annabelle": {"max_chars": 4_000, "min_turns": 3, "cooldown_s": 0.0}}


def call(n: int) -> list[ToolCall]:
    return [ToolCall(f"c{n}", "look", f'{{"n": "{n:04}"}}')]


class Talker:
    """Answers each message at length; a request for a summary gets one that holds every fact it shows."""

    name = "talker"
    plain = False

    def __init__(self) -> None:
        self.prompts: list[Prompt] = []
        self.summaries: list[Prompt] = []
        # Of each answer.
        self.tokens = 150
        # What the provider takes of a request.
        self.takes_tokens = 10**9
        self.refuses: Callable[[Prompt], Exception | None] = lambda prompt: None
        self.sums_up: Callable[[Prompt], Any] = lambda prompt: None
        self.calls: list[list[ToolCall]] = []
        self.summing = asyncio.Event()
        # A summary waits for this one, an answer for the other.
        self.hold: asyncio.Event | None = None
        self.answers: asyncio.Event | None = None
        self.asked = asyncio.Event()
        self._facts = 5_000

    def takes(self, part: PartKind) -> bool:
        return False

    async def ask(self, prompt: Prompt, on_delta: OnDelta | None = None) -> Answer:
        if str(prompt.messages[-1].get("content")).startswith("<conversation>"):
            return await self._sum_up(prompt)
        self.prompts.append(prompt)
        self.asked.set()
        if self.answers is not None:
            await self.answers.wait()
        if estimate_messages(prompt.messages) > self.takes_tokens:
            raise ContextTooLong("too long")
        if (refusal := self.refuses(prompt)) is not None:
            raise refusal
        spent = Usage(estimate_messages(prompt.messages), 10)
        if self.calls:
            return Answer("", tool_calls=self.calls.pop(0), finish="tool_calls", usage=spent)
        self._facts += 1
        return Answer(filled(f"fact-{self._facts};", self.tokens), usage=spent)

    async def _sum_up(self, prompt: Prompt) -> Answer:
        self.summaries.append(prompt)
        self.summing.set()
        if self.hold is not None:
            await self.hold.wait()
        other = self.sums_up(prompt)
        if isinstance(other, Exception):
            raise other
        if isinstance(other, Answer):
            return other
        return Answer(
            f"{STRUCTURED}\n{' '.join(facts_of(json.dumps(prompt.messages)))}", usage=Usage(100, 20)
        )


class Look:
    """A tool whose result is long."""

    repeatable = True
    tokens = 300

    @property
    def spec(self) -> ToolSpec:
        return ToolSpec("look", "looks", {"type": "object"})

    async def run(self, arguments: Mapping[str, Any], place: ToolPlace) -> str:
        return filled(f"fact-{arguments['n']};", self.tokens)


class Chat:
    """One conversation whose turns run as in a daemon."""

    def __init__(self, folder: Path, rules: CompactionRules, *, model: Talker | None = None) -> None:
        self.folder = folder
        self.rules = rules
        self.model = model or Talker()
        self.store = Store(folder, zone=UTC)
        self.left: list[str] = []
        self.leaving = asyncio.Event()
        # What an ended session owes to memory waits for it.
        self.leaves: asyncio.Event | None = None
        self.left_fails: list[Exception] = []
        self.clock = Clock(datetime.now(UTC))
        self.compactor = Compactor(self.model, clock=self.clock.monotonic)
        self.compactions = Compactions(
            self.compactor,
            rules=self.rules_now,
            left=self.note_left,
            now=lambda: self.turns.now(),
            clock=self.clock,
        )
        self.turns = Turns(
            model=self.model,
            toolbox=Toolbox([Look()]),
            limits=limits(rules),
            zone=UTC,
            clock=self.clock,
            turn_context=self._around,
            compactions=self.compactions,
        )
        self.count = 0
        self.key = KEY

    async def rules_now(self) -> CompactionRules:
        return self.rules

    async def note_left(self, key: str, session_id: str) -> bool:
        self.leaving.set()
        if self.leaves is not None:
            await self.leaves.wait()
        if self.left_fails:
            raise self.left_fails.pop()
        self.left.append(session_id)
        return True

    async def _around(self, session: Session, request: Request) -> TurnContext:
        return TurnContext(parts=(), files=self.folder / "files", tools=("look",))

    async def say(
        self, text: str = "", *, settle: bool = True, stop: StopSwitch | None = None, id: str = ""
    ) -> Reply:
        """Run a turn, and let what it began behind it come to its end."""
        self.count += 1
        fact = filled(f"fact-{self.count:04};", 20)
        asked = Request(id=id or f"m{self.count}", key=self.key, text=text or fact)
        async with self.store.open(self.key) as session:
            reply = await self.turns.run(session, asked, stop=stop or StopSwitch(), meter=Meter())
        if settle:
            await self.compactions.settled(self.key)
        return reply

    def behind(self) -> bool:
        """Say whether a compaction runs or waits behind the last turn."""
        return any(task.get_name() == f"compaction {self.key}" for task in asyncio.all_tasks())

    async def until_it_sums_up(self, summaries: int = 1) -> asyncio.Event:
        """Talk until so many summaries are asked for behind turns; they wait for what is returned."""
        hold = self.model.hold = self.model.hold or asyncio.Event()
        while len(self.model.summaries) < summaries:
            await self.say(settle=False)
            # One more turn might wait for the compaction that has begun behind this one.
            async with asyncio.timeout(30):
                while self.behind() and len(self.model.summaries) < summaries:
                    await asyncio.sleep(0)
        return hold

    async def record(self, kind: str, text: str = "", **fields: Any) -> None:
        """Append a record of ours."""
        async with self.store.open(KEY) as session:
            await session.append([make_line("system", text, self.turns.now(), kind=kind, **fields)])

    async def lines(self) -> list[dict[str, Any]]:
        return (await self.store.look(self.key)).lines()

    async def kinds(self) -> list[str]:
        return [str(line["kind"]) for line in await self.lines() if "kind" in line]

    def told(self) -> str:
        """What the model was sent last, as one text."""
        return json.dumps([*self.model.prompts[-1].messages])


def limits(rules: CompactionRules) -> TurnLimits:
    window = HistoryWindow(rules.history_messages, rules.history_tokens) if rules.preset == "budget" else None
    role: SummaryRole = "assistant" if rules.preset == "budget" else "user"
    changing: ChangingParts = "system" if rules.preset == "annabelle" else "end"
    return TurnLimits(
        full_tool_results=1_000,
        window=window,
        summary_role=role,
        changing_parts=changing,
        max_output_tokens=100,
    )


@asynccontextmanager
async def chat(
    folder: Path, preset: str = "overlay", *, model: Talker | None = None, **numbers: Any
) -> AsyncIterator[Chat]:
    """Open a conversation under a preset's rules, changed by ``numbers``, with its background."""
    fixed = {"summary_window": 100_000, "max_output_tokens": 100, "reserve_tokens": 500, "timeout_s": 300.0}
    rules = replace(RULES[preset], **fixed | numbers)
    place = Chat(folder, rules, model=model)
    async with asyncio.TaskGroup() as group:
        background = group.create_task(place.compactions.run())
        await asyncio.sleep(0)
        yield place
        background.cancel()
    await place.store.aclose()
