"""What answers as one agent: its model, tools, persona, turns and commands, on what all agents share."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Sequence
from dataclasses import asdict, dataclass
from datetime import datetime
from typing import TYPE_CHECKING

import durable
from gateway.app.approvals import build_gate, without_denied
from gateway.app.facts import Facts
from gateway.app.figures import turn_limits
from gateway.app.optional_tools import OPTIONAL, OptionalTools, granted
from gateway.app.schedules import ChatSchedules
from gateway.app.subagents import SubagentContext, status_lines, turns_like
from gateway.app.surroundings import SurroundingsReader
from gateway.config.agents import described
from gateway.config.presets import effective_compaction, effective_history
from gateway.config.settings import Settings
from gateway.observer import Observer
from gateway.turns.quota import Quota
from gateway.turns.spawning import Spawning
from session.approvals.answers import Answers
from session.background.jobs import Background
from session.compaction.compactions import Compactions
from session.compaction.compactor import Compactor
from session.compaction.rules import CompactionRules
from session.context.context_parts import ContextParts, RecentSessions
from session.context.embeddings import Embeddings
from session.context.request import place_of
from session.context.scopes import Scopes
from session.disk.layout import Layout
from session.library.library import Library
from session.mcp.names import NoServers
from session.memory.circles import Circles
from session.memory.consolidation import MemoryNotes
from session.memory.profile import Profile
from session.models.model import CostMeter, Model
from session.models.spending import Spending
from session.models.windows import window_of
from session.recall.recall import Recall
from session.recall.tool import MemorySearch
from session.store.store import Session, Store
from session.subagents.tool import Spawn
from session.tools import Tool, Toolbox, ToolRun, ToolSource
from session.tools.archives import SessionArchiveRead
from session.tools.files import Edit, Ls, Read, Write
from session.tools.grep import Grep
from session.tools.schedule import Schedule
from session.tools.send_file import SendFile
from session.tools.skills import SkillRead
from session.transcript.agent import home_of, shown
from session.transcript.line import stamp
from session.turn.commands import Commands
from session.turn.turn import Request, TurnContext, Turns

if TYPE_CHECKING:
    from session.mcp.servers import McpServers


@dataclass(frozen=True, slots=True)
class Shared:
    """What all agents of an application have together; ``status`` says how a chat and its model stand."""

    store: Store
    circles: Circles
    facts: Facts
    answers: Answers
    recall: Recall
    embeddings: Embeddings | None
    jobs: Background
    spending: Spending
    quota: Quota
    library: Library
    mcp: McpServers | None
    spawning: Spawning | None
    status: Callable[[str, Model], list[str]]
    clock: Callable[[], datetime]
    observer: Observer


class AgentServices:
    """One agent; ``name`` is empty for the default one.

    Args:
        settings: as they hold for this agent.
        memory: takes its notes.
    """

    def __init__(
        self, name: str, settings: Settings, shared: Shared, *, model: Model, memory: MemoryNotes
    ) -> None:
        self.name, self.model, self.memory = name, model, memory
        table = settings.agents.get(name)
        self.description = table.description if table is not None else ""
        self._settings, self._shared = settings, shared
        self.compactions = build_compactions(
            settings, model, take=memory.budget.take, cost_meter=shared.spending, left=shared.jobs.left
        )
        self._context_parts = self._build_context_parts(table.persona if table is not None else "")
        self.gate = build_gate(settings, clock=shared.store.clock, files=shared.answers.files)
        self.optional = OptionalTools(settings)
        self._files = home_of(settings.workspace, name) / "files"
        self.turns = Turns(
            model=model,
            toolbox=self._toolbox(),
            limits=turn_limits(settings),
            zone=settings.zone,
            clock=shared.clock,
            turn_context=self._turn_context,
            workspace=settings.workspace,
            compactions=self.compactions,
            embeddings=shared.embeddings,
            gate=self.gate,
        )
        self.commands = self._commands()
        context = SubagentContext(
            settings, circles=shared.circles, facts=shared.facts.told, context_parts=self._context_parts
        )
        self.subagent_turns = turns_like(self.turns, context)

    def _build_context_parts(self, persona: str) -> ContextParts:
        settings, store = self._settings, self._shared.store
        recent = RecentSessions(
            store.layout, most=settings.session.recent_sessions, days=settings.session.recent_days
        )
        return ContextParts(
            settings.workspace,
            library=self._shared.library,
            recent=recent,
            zone=settings.zone,
            zone_name=settings.timezone,
            clock=store.clock,
            look_around=SurroundingsReader(settings),
            persona=persona,
            personas=[home_of(settings.workspace, self.name)] if self.name else [],
        )

    def _toolbox(self) -> Toolbox:
        shared = self._shared
        own = [Spawn(shared.spawning)] if shared.spawning is not None else []
        return build_toolbox(
            self._settings,
            shared.circles.scopes,
            library=shared.library,
            layout=shared.store.layout,
            memory=self.memory,
            recall=shared.recall,
            more=[*own, *self.optional.tools],
            source=shared.mcp or NoServers(),
            heard=shared.observer.tool_ran,
        )

    def _commands(self) -> Commands:
        shared = self._shared
        return Commands(
            status=self._status,
            memory=shared.facts.remembered.show,
            forget=shared.facts.remembered.forget,
            ended=shared.jobs.ended,
            left=shared.jobs.left,
            compact=self.compactions,
            limits=self._left,
            end_subagents=shared.spawning.end if shared.spawning is not None else None,
            answers=shared.answers,
            now=self.turns.now,
            more=described(self._settings),
        )

    def _status(self, key: str) -> list[str]:
        agent = [f"agent: {shown(self.name)}"] if self._settings.agents else []
        return [*agent, f"model: {self.model.name}", *self._shared.status(key, self.model)]

    async def _left(self, request: Request) -> list[str]:
        """Say what of the limits is left to whoever asks, and which subagents work for the chat."""
        shared = self._shared
        return [*await shared.quota.left(request), *await status_lines(shared.spawning, request.key)]

    async def _turn_context(self, session: Session, request: Request) -> TurnContext:
        if self.model.plain:
            return TurnContext(parts=(), files=self._files, tools=())
        shared, toolbox = self._shared, self.turns.toolbox
        if session.metadata.get("model") != self.model.name:
            await session.checkpoint(metadata={"model": self.model.name})
        scope = await shared.circles.of(session, request)
        if shared.mcp is not None:
            await shared.mcp.refresh()
        # A server's own table says where its tools are on offer.
        tools = (*granted(self._settings, group=scope.group), *toolbox.sourced())
        notes = await self.memory.text(scope)
        facts = await shared.facts.told(scope, session, request)
        place = place_of(session, request, files=scope.files, scope=scope.name, group=scope.group)
        tools = without_denied(self.gate, toolbox, tools, place)
        offered = [spec.name for spec in toolbox.specs(tools, place)]
        parts = await self._context_parts.parts(
            session,
            request,
            scope,
            notes=notes,
            tools=offered,
            others=await shared.circles.alike(scope, request.key),
            facts=facts,
        )
        return TurnContext(parts=parts, files=scope.files, tools=tools, scope=scope.name, group=scope.group)

    async def aclose(self) -> None:
        """End the model's connections."""
        close = getattr(self.model, "close", None)
        if close is not None:
            await close()


def build_compactions(
    settings: Settings,
    model: Model,
    *,
    take: Callable[[], Awaitable[None]],
    cost_meter: CostMeter,
    left: Callable[[str, str], Awaitable[bool]],
) -> Compactions:
    """Build it; the model's window is looked up when it is first needed.

    Args:
        settings: the configuration.
        model: writes the summaries.
        take: counts a model call of the background.
        cost_meter: pays for what is no turn's.
        left: makes the consolidation of an ended session durable (key and ULID).
    """
    known: dict[int, CompactionRules] = {}
    named_window = getattr(model, "named_window", lambda: 0)

    async def rules() -> CompactionRules:
        window = named_window()
        if window not in known:
            known[window] = await compaction_rules(settings, model, window)
        return known[window]

    return Compactions(
        Compactor(model, small=settings.model.small, take=take, cost_meter=cost_meter),
        rules=rules,
        left=left,
        now=lambda: stamp(durable.now(), settings.zone),
    )


async def compaction_rules(settings: Settings, model: Model, named_window: int = 0) -> CompactionRules:
    """Read from the configuration and its preset when conversations are compacted; look up the windows.

    ``named_window`` is the window as the model's server names it, 0 where it never did.
    """
    ask = getattr(model, "context_window", None)
    window = await window_of(
        settings.model.name, configured=settings.model.context_window or named_window, ask=ask
    )
    small = settings.model.small
    history = effective_history(settings)
    return CompactionRules(
        window=window,
        summary_window=await window_of(small, ask=ask) if small else 0,
        max_output_tokens=settings.model.max_output_tokens,
        history_messages=history.last,
        history_tokens=history.budget_tokens,
        **asdict(effective_compaction(settings)),
    )


def build_toolbox(
    settings: Settings,
    scopes: Scopes,
    *,
    library: Library,
    layout: Layout,
    memory: MemoryNotes,
    recall: Recall,
    more: Sequence[Tool],
    source: ToolSource,
    heard: Callable[[ToolRun], None] | None = None,
) -> Toolbox:
    """Put together the tools that come with the daemon, ``more``, and those of a source that changes.

    Requests name them in this order: a tool that is new stands at the end, so that prompt caches hold.
    ``heard`` is told of each call when it is over.
    """
    here: list[Tool] = [
        Read(),
        Write(),
        Edit(),
        Ls(),
        Grep(),
        Profile(memory, max_bytes=settings.memory.profile_max_kb * 1024),
        SkillRead(library),
        SessionArchiveRead(layout, zone=settings.zone),
        MemorySearch(recall, scopes, zone=settings.zone),
        Schedule(ChatSchedules(settings, scopes)),
        SendFile(max_bytes=settings.media.max_mb * 2**20),
        *more,
    ]
    return Toolbox(here, source, heard=heard, optional=OPTIONAL)
