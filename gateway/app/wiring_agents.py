"""What answers as one agent: its model, tools, persona, turns and commands, on what all agents share."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import asdict, dataclass, replace
from datetime import datetime
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING

import durable
from channels.tables import Platform
from gateway.app.surroundings import SurroundingsReader
from gateway.app.wiring_cron import ChatSchedules
from gateway.app.wiring_tools import OPTIONAL, OptionalTools, build_gate, granted, without_denied
from gateway.config.agents import described
from gateway.config.settings import Settings, effective_compaction, effective_history
from gateway.observer import Observer
from gateway.turns.batching import QueueRules
from gateway.turns.limits import Quota
from gateway.turns.subagents import Spawning
from gateway.turns.worker import DispatchRules
from session.approvals.answers import Answers
from session.background.jobs import Background
from session.compaction.compactions import Compactions
from session.compaction.compactor import Compactor
from session.compaction.rules import CompactionRules
from session.context.context_parts import ContextParts, RecentSessions
from session.context.embeddings import Embeddings
from session.context.relevance import Relevance
from session.context.request import Request, TurnContext, place_of
from session.context.scopes import Scope, Scopes
from session.disk.layout import Layout
from session.errors import StoreError
from session.library.library import Library
from session.mcp.spec import NoServers
from session.memory.consolidation import MemoryNotes
from session.memory.fact_extraction import FactExtraction, FactRules
from session.memory.fact_store import FactStore
from session.memory.memory_commands import MemoryCommands
from session.memory.note_taking import MemoryRules
from session.memory.notes import VersionRules
from session.memory.profile import Profile
from session.memory.scope_resolver import PARENT, ScopeResolver
from session.models.model import Model
from session.models.spending import Spending
from session.models.tokens import window_of
from session.recall.recall import MemorySearch, Recall
from session.store.store import Session, Store
from session.subagents.records import SubagentFiles
from session.subagents.tool import NOT_FOR_SUBAGENTS, Spawn
from session.tools import Tool, Toolbox, ToolPlace, ToolRun, ToolSource
from session.tools.archives import SessionArchiveRead
from session.tools.files import Edit, Grep, Ls, Read, SkillRead, Write
from session.tools.schedule import Schedule
from session.tools.send_file import SendFile
from session.transcript.agent import home_of, shown
from session.transcript.history import HistoryWindow
from session.transcript.line import stamp
from session.turn.commands import Commands
from session.turn.turn import TurnLimits, Turns

if TYPE_CHECKING:
    from session.mcp.servers import McpServers


def memory_rules(settings: Settings) -> MemoryRules:
    """Read from the configuration what bounds memory and its background calls."""
    return MemoryRules(
        window=settings.memory.window,
        max_bytes=settings.memory.max_kb * 1024,
        small_model=settings.model.small,
        calls_per_hour=settings.limits.background_calls_per_hour,
        calls_per_day=settings.limits.background_calls_per_day,
        versions=VersionRules(settings.memory.versions, settings.memory.version_days),
    )


def turn_limits(settings: Settings) -> TurnLimits:
    """Bound the turns as the configuration and its preset say."""
    history = effective_history(settings)
    return TurnLimits(
        turn_timeout_s=settings.limits.turn_timeout_s,
        max_tool_rounds=settings.model.max_tool_rounds,
        max_output_tokens=settings.model.max_output_tokens,
        full_tool_results=history.full_tool_results,
        changing_parts=history.changing_parts,
        streams=settings.model.stream == "always",
        window=HistoryWindow(history.last, history.budget_tokens) if history.mode == "last" else None,
        summary_role="assistant" if settings.compaction.preset == "budget" else "user",
        relevance=Relevance(
            candidates=history.candidates,
            always=history.exchanges_always,
            most=history.max_messages,
            threshold=history.relevance,
        )
        if history.mode == "relevant"
        else None,
    )


def letter_rules(settings: Settings) -> DispatchRules:
    """Read what decides over letters."""
    limits = settings.limits
    return DispatchRules(
        concurrent_turns=limits.concurrent_turns,
        attempts=limits.attempts,
        model_tries=limits.model_tries,
        outage_hours=limits.outage_hours,
        pending_per_chat=limits.pending_per_chat,
        flood_per_chat=limits.flood_per_chat,
        idle_hours=settings.session.idle_hours,
        queue=queue_rules(settings),
    )


def queue_rules(settings: Settings) -> QueueRules:
    """Read what a message does that comes while others wait or run, by channel."""
    tables = ((name, getattr(settings.channels, name)) for name in type(settings.channels).model_fields)
    own = {
        name: table.queue_mode for name, table in tables if isinstance(table, Platform) and table.queue_mode
    }
    return QueueRules(settings.limits.queue_mode, own, settings.limits.collect_s)


@dataclass(frozen=True, slots=True)
class Facts:
    """The facts of an application; ``extraction`` is None where none are drawn, and then none are told."""

    known: FactStore
    extraction: FactExtraction | None
    commands: MemoryCommands

    async def told(self, scope: Scope, session: Session | None, request: Request) -> list[str]:
        """Return the facts that a message is told with, the nearest first; see ``FactStore.nearest``."""
        if self.extraction is None:
            return []
        return await self.known.nearest(scope, session, request.text, payer=request.payer)


def build_facts(
    settings: Settings,
    memory: MemoryNotes,
    scope_resolver: ScopeResolver,
    *,
    store: Store,
    embeddings: Embeddings | None,
    cost_meter: Spending,
) -> Facts:
    """Put them together for the scopes that ``scope_resolver`` draws."""
    known = FactStore(store, embeddings=embeddings, cost_meter=cost_meter, versions=memory.rules.versions)
    facts = settings.facts
    rules = FactRules(facts.idle_s, facts.max_turns, facts.confidence)
    extraction = FactExtraction(memory, known, store=store, scope_of=scope_resolver.of_session, rules=rules)
    commands = MemoryCommands(known, settings.state, notes=memory.text, scope_of=scope_resolver.of)
    return Facts(known, extraction if facts.enabled else None, commands)


# One conversation is needed for as long as its turn runs.
CACHE_BYTES = 2**24

Told = Callable[[Scope, Session | None, Request], Awaitable[list[str]]]


def build_store(settings: Settings) -> Store:
    """Open the conversations of subagents: apart, so that nothing that looks at chats ever meets one."""
    home = SubagentFiles(settings.state).home
    return Store(home, zone=settings.zone, cache_bytes=CACHE_BYTES, state_folder=settings.state)


class SubagentContext:
    """Draws what a subagent's turn works with.

    Args:
        settings: which tools its parent may use.
        scope_resolver: decide whose files and facts it has.
        facts: tells those that are near to its task.
        context_parts: gathers what else it is told.
    """

    def __init__(
        self, settings: Settings, *, scope_resolver: ScopeResolver, facts: Told, context_parts: ContextParts
    ) -> None:
        self._settings = settings
        self._records = SubagentFiles(settings.state)
        self._scope_resolver = scope_resolver
        self._facts = facts
        self._context_parts = context_parts
        self.turns: Turns

    async def __call__(self, session: Session, request: Request) -> TurnContext:
        """Return it for the turn of a task."""
        scope = await self._scope_resolver.of(session, request)
        parent = str(session.metadata.get(PARENT) or "")
        chat = await self._works_for(session.key, parent)
        place = place_of(session, request, files=scope.files, scope=scope.name, group=scope.group)
        place = replace(place, chat=chat, parent=parent)
        tools = self._allowed(place)
        offered = [spec.name for spec in self.turns.toolbox.specs(tools, place)]
        # By their words: vectors would be kept for a conversation that is soon gone.
        facts = await self._facts(scope, None, request)
        parts = await self._context_parts.of_task(tools=offered, facts=facts)
        return TurnContext(
            parts=parts,
            files=scope.files,
            tools=tools,
            scope=scope.name,
            group=scope.group,
            chat=chat,
            parent=parent,
        )

    async def _works_for(self, key: str, parent: str) -> str:
        """Return the chat whose rules hold, as is on record: anybody may write a letter."""
        found = await asyncio.to_thread(self._records.find, parent, key) if parent else None
        answered = found.origin.get("answer_to") if found is not None else None
        return answered if isinstance(answered, str) and answered else parent

    def _allowed(self, place: ToolPlace) -> Sequence[str]:
        tools = (*granted(self._settings, group=place.group), *self.turns.toolbox.sourced())
        mine = [name for name in tools if name not in NOT_FOR_SUBAGENTS]
        turns = self.turns
        return without_denied(turns.gate, turns.toolbox, mine, place) if turns.gate is not None else mine


def turns_like(turns: Turns, context: SubagentContext) -> Turns:
    """Build the turns of subagents: as those of chats, but nothing is summed up or compared."""
    limits = replace(turns.limits, window=None, relevance=None)
    built = replace(turns, limits=limits, turn_context=context, compactions=None, embeddings=None)
    context.turns = built
    return built


async def end_all(spawning: Spawning | None, state: Path, key: str) -> None:
    """End the subagents of a conversation for good, and drop their results.

    Args:
        spawning: tells other daemons; None: none runs.
        state: the folder ``state/`` of the workspace.
        key: the conversation.

    Raises:
        StoreError: call it again.
    """
    if spawning is not None:
        await spawning.end(key, results=True)
    else:
        await asyncio.to_thread(partial(SubagentFiles(state).end, key, results=True))


async def status_lines(spawning: Spawning | None, key: str) -> list[str]:
    """Say for ``/status`` which subagents of a chat work; nothing where none does."""
    if spawning is None:
        return []
    try:
        found = await spawning.live(key)
    # Whoever asks how things stand is told what is known.
    except StoreError as error:
        return [f"subagents: unknown ({error})"]
    return [f"subagents: {len(found)} ({', '.join(each.label for each in found)})"] if found else []


@dataclass(frozen=True, slots=True)
class Shared:
    """What all agents of an application have together; ``status`` says how a chat and its model stand."""

    store: Store
    scope_resolver: ScopeResolver
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
            settings,
            scope_resolver=shared.scope_resolver,
            facts=shared.facts.told,
            context_parts=self._context_parts,
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
            shared.scope_resolver.scopes,
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
            memory=shared.facts.commands.show,
            forget=shared.facts.commands.forget,
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
        scope = await shared.scope_resolver.of(session, request)
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
            others=await shared.scope_resolver.alike(scope, request.key),
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
    cost_meter: Spending,
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
