"""A worker that has subagents: on a real queue and real stores, with a scripted model."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from datetime import UTC
from pathlib import Path
from typing import Any

from channels.message import Inbound
from gateway.dispatch.subagents import Spawning, Subagents
from gateway.dispatch.worker import DispatchRules
from gateway.queue.mailbox import Mailbox
from session.models.model import Answer, OnDelta, Prompt, ToolCall
from session.store.store import Session, Store
from session.subagents.records import Subagent, SubagentFiles
from session.subagents.tool import Spawn
from session.tools import Toolbox
from session.turn.commands import Commands
from session.turn.turn import Request, TurnContext, TurnLimits, Turns
from tests.contracts.models import Script
from tests.gateway.worker_rig import ADA, Rig


class SubagentRig(Rig):
    """The rig with subagents; ``subagents`` decides over their letters."""

    def __init__(
        self, folder: Path, model: Script, rules: DispatchRules, *, mailbox: Mailbox | None = None
    ) -> None:
        super().__init__(folder, model, rules, mailbox=mailbox)
        self.limits = TurnLimits(max_tool_rounds=5)
        self.files = SubagentFiles(folder / "state", clock=self.clock)
        self.spawning = Spawning(self.files, self.mailbox, self.asking)
        self.own_store = Store(self.files.home, zone=UTC, clock=self.clock)
        self.subagents = self.more["subagents"] = Subagents(
            self.files,
            self.spawning,
            store=self.own_store,
            parents=self.store,
            mailbox=self.mailbox,
            clock=self.clock,
        )

    def asking(self, key: str, message_id: str) -> Inbound | None:
        return self.worker.lanes.asking(key, message_id)

    def turns(self) -> Turns:
        return self._turns(Spawn(self.spawning))

    def subagent_turns(self) -> Turns:
        return self._turns()

    def _turns(self, *tools: Spawn) -> Turns:
        return Turns(
            model=self.model,
            toolbox=Toolbox(tools),
            limits=self.limits,
            zone=UTC,
            clock=self.clock,
            turn_context=self.turn_context,
            compactions=self.compactions,
        )

    def chat_commands(self) -> Commands:
        return Commands(
            status=lambda key: ["fine"],
            memory=self.memory_text,
            ended=self.session_ended,
            left=self.session_left,
            end_subagents=self.spawning.end,
        )

    async def turn_context(self, session: Session, request: Request) -> TurnContext:
        return TurnContext(parts=(), files=self.folder / "files", tools=("spawn",))

    def on_record(self, key: str = ADA) -> list[Subagent]:
        return list(self.files.of(key))

    def left(self) -> list[str]:
        """Name the files of conversations of subagents."""
        return [path.name for path in self.files.home.rglob("sub_*") if path.is_file()]


class Held(Script):
    """Answers each chat ``begun`` and each result ``heard``; subagents wait for ``go`` until they answer."""

    def __init__(self, *tasks: str) -> None:
        super().__init__()
        self.go = asyncio.Event()
        self.working: set[str] = set()
        self._tasks = tasks

    async def ask(self, prompt: Prompt, on_delta: OnDelta | None = None) -> Answer:
        self.prompts.append(prompt)
        text = next(str(each["content"]) for each in reversed(prompt.messages) if each["role"] == "user")
        if text in self._tasks:
            self.working.add(text)
            await self.go.wait()
            return Answer(f"did {text}")
        if text.startswith("<subagent-result"):
            return Answer("heard")
        if text == "go" and prompt.messages[-1]["role"] == "user":
            return spawn(*self._tasks)
        return Answer("begun")


def spawn(*tasks: str) -> Answer:
    """Call ``spawn`` for each of the tasks."""
    return Answer(
        "", [ToolCall(f"c{number}", "spawn", json.dumps({"task": task})) for number, task in enumerate(tasks)]
    )


@asynccontextmanager
async def subagent_rig(
    folder: Path, *steps: Any, model: Script | None = None, **rules: Any
) -> AsyncIterator[SubagentRig]:
    built = SubagentRig(folder, model or Script(steps), DispatchRules(**rules))
    async with built.open():
        yield built
    await built.own_store.aclose()
