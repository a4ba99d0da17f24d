"""Builds the session side of an application from Settings: store, memory, and what answers as each agent."""

from __future__ import annotations

import asyncio
import gc
from collections.abc import Callable
from dataclasses import asdict, replace
from datetime import datetime
from typing import TYPE_CHECKING, Any

import structlog

import durable
from channels.tables import Platform
from gateway.app.spending import build_spending, spent_today
from gateway.app.surroundings import SurroundingsReader
from gateway.app.wiring_cron import ChatSchedules
from gateway.app.wiring_model import build_embeddings, build_model
from gateway.app.wiring_tools import OPTIONAL, OptionalTools, build_gate, granted, keep_pruned, without_denied
from gateway.config.agents import described, scopes_of, settings_of
from gateway.config.settings import Settings, effective_compaction, effective_history
from gateway.dispatch.batching import QueueRules
from gateway.dispatch.limits import Quota
from gateway.dispatch.subagents import Spawning
from gateway.dispatch.worker import DispatchRules
from gateway.observer import Observer
from session.approvals.answers import Answers
from session.approvals.files import ApprovalFiles
from session.background.job_files import JobFiles
from session.background.jobs import Background
from session.background.passing import Passing
from session.background.retention import Retention
from session.compaction.compactions import Compactions
from session.compaction.compactor import Compactor
from session.compaction.rules import CompactionRules
from session.context.context_parts import ContextParts, RecentSessions
from session.context.links import enclosed
from session.context.relevance import Relevance
from session.context.request import Request, TurnContext, place_of
from session.context.scopes import Scope, Scopes
from session.errors import ModelAway, NoAgent, OtherAgent, StoreError
from session.library.library import Library
from session.mcp.spec import NoServers
from session.memory.consolidation import MemoryNotes
from session.memory.fact_extraction import FactExtraction, FactRules
from session.memory.fact_store import FactStore
from session.memory.memory_commands import MemoryCommands, MemoryHistory
from session.memory.note_taking import MemoryRules
from session.memory.notes import VersionRules
from session.memory.profile import Profile
from session.memory.scope_resolver import PARENT
from session.models.model import Model, Warms
from session.models.tokens import window_of
from session.recall.recall import MemorySearch, Recall
from session.store.store import Session, Store, View, utc_now
from session.subagents.records import SubagentFiles
from session.subagents.tool import NOT_FOR_SUBAGENTS, Spawn
from session.tools import Tool, Toolbox
from session.tools.archives import SessionArchiveRead
from session.tools.files import Edit, Grep, Ls, Read, SkillRead, Write
from session.tools.schedule import Schedule
from session.tools.send_file import SendFile
from session.transcript.agent import DEFAULT, agent_in, home_of, is_name, shown
from session.transcript.attachments import Attachment
from session.transcript.history import HistoryWindow
from session.transcript.line import stamp
from session.turn.commands import Commands
from session.turn.turn import Reply, TurnLimits, Turns

if TYPE_CHECKING:
    from session.mcp.servers import McpServers

log = structlog.get_logger("model")

# Between an answer and the next message of somebody who hardly reads it.
QUIET_S = 0.5
# A conversation of a subagent is needed for as long as its turn runs.
SUBAGENT_CACHE_BYTES = 2**24


class SessionServices:
    """The session side of an application; ``spawning`` starts subagents where there are turns."""

    def __init__(
        self,
        settings: Settings,
        *,
        status: Callable[[str, Model], list[str]],
        spawning: Spawning | None = None,
        clock: Callable[[], datetime] = utc_now,
        observer: Observer = Observer(),  # noqa: B008 - it does nothing
    ) -> None:
        self.spawning, self.status, self.clock, self.observer = spawning, status, clock, observer
        cache_bytes = settings.session.cache_mb * 2**20
        self.store = Store(settings.workspace, zone=settings.zone, clock=clock, cache_bytes=cache_bytes)
        every = {name: settings_of(settings, name) for name in ("", *settings.agents)}
        models = {name: build_model(own, heard=observer.model_called) for name, own in every.items()}
        self.model = models[""]
        self.plain = all(model.plain for model in models.values())
        self.spending = build_spending(settings, self.store)
        self.scopes = scopes_of(settings)
        self.quota = Quota(
            self.spending,
            turns_per_hour=settings.limits.turns_per_person_per_hour,
            scopes=self.scopes,
            clock=self.store.clock,
        )
        self.memory = MemoryNotes(
            self.scopes,
            store=self.store,
            model=self.model,
            rules=memory_rules(settings),
            zone=settings.zone,
            cost_meter=self.spending,
        )
        self.scope_resolver = self.memory.scope_resolver
        self.embeddings = build_embeddings(settings)
        self.recall = Recall(
            self.scope_resolver, store=self.store, embeddings=self.embeddings, cost_meter=self.spending
        )
        extraction = self._build_facts(settings)
        self.memory_history = MemoryHistory(self.memory, self.known_facts)
        files = JobFiles(settings.workspace / "state")
        self.jobs = Background(self.memory, store=self.store, files=files, facts=extraction, quiet_s=QUIET_S)
        self.mcp = _servers(settings, self.scopes)
        self.answers = Answers(ApprovalFiles(settings.state, clock=clock))
        self.library = Library(settings.workspace)
        self.agents = {
            name: AgentServices(
                *(name, own, self),
                model=models[name],
                memory=self.memory.add(name, models[name], memory_rules(own)) if name else self.memory,
            )
            for name, own in every.items()
        }
        default = self.agents[""]
        self.turns, self.commands, self.gate = default.turns, default.commands, default.gate
        # Apart, so that nothing that looks at chats ever meets one.
        self.subagent_store = Store(
            SubagentFiles(settings.state).home,
            zone=settings.zone,
            cache_bytes=SUBAGENT_CACHE_BYTES,
            state_folder=settings.state,
        )
        self.retention = self._retention(settings)
        self._max_file_bytes = settings.media.max_mb * 2**20

    def _build_facts(self, settings: Settings) -> FactExtraction | None:
        """Build what keeps facts; return what draws them, None where none are drawn or told."""
        self.known_facts = FactStore(
            self.store,
            embeddings=self.embeddings,
            cost_meter=self.spending,
            versions=self.memory.rules.versions,
        )
        self.memory_commands = MemoryCommands(
            self.known_facts, settings.state, notes=self.memory.text, scope_of=self.scope_resolver.of
        )
        facts = settings.facts
        self._draws_facts = facts.enabled
        rules = FactRules(facts.idle_s, facts.max_turns, facts.confidence)
        scope_of = self.scope_resolver.of_session
        extraction = FactExtraction(
            self.memory, self.known_facts, store=self.store, scope_of=scope_of, rules=rules
        )
        return extraction if facts.enabled else None

    async def facts_told(self, scope: Scope, session: Session | None, request: Request) -> list[str]:
        """Return the facts that a message is told with, the nearest first; see ``FactStore.nearest``."""
        if not self._draws_facts:
            return []
        return await self.known_facts.nearest(scope, session, request.text, payer=request.payer)

    def _retention(self, settings: Settings) -> Retention:
        return Retention(
            self.store,
            days=settings.session.retention_days,
            left=self.jobs.left,
            remembers=not self.plain,
            passing=Passing(settings.state / "retention.json", self.store.layout.sessions),
            versions=self.memory.rules.versions,
        )

    async def enclosures(self, session: Session, request: Request, text: str) -> list[Attachment]:
        """List the files of the scope that a turn sends, then those that its answer links to."""
        return await self._enclosed(session, request.id, text, await self.scope_resolver.of(session, request))

    async def enclosed_before(self, view: View, message_id: str, text: str) -> list[Attachment]:
        """List the files that went out with an answer which is on record, as far as they are still there."""
        return await self._enclosed(
            view, message_id, text, await self.scope_resolver.of_session(view.key, None)
        )

    async def _enclosed(self, view: View, message_id: str, text: str, scope: Scope) -> list[Attachment]:
        exchange = view.find(message_id)
        lines = view.lines(exchange.start, exchange.stop) if exchange is not None else []
        return await asyncio.to_thread(
            enclosed,
            text,
            lines,
            scope.files,
            workspace=self.scopes.workspace,
            max_bytes=self._max_file_bytes,
        )

    def turn_ended(self, session: Session, reply: Reply) -> None:
        """See whether the conversation is long enough to consolidate."""
        agent = self.agents.get(agent_in(session.metadata)) or self.agents[""]
        if reply.usage is not None and not agent.model.plain:
            self.jobs.turn_ended(session)
            self.recall.note(session.key)

    async def scope_with(self, key: str, agent: str | None) -> Scope:
        """Return what a conversation may see with an agent of this name; None: with the one that it has.

        Raises:
            NoAgent: there is none of this name, nor was there one.
        """
        if agent in (None, DEFAULT):
            return await self.scope_resolver.of_key(key, agent="" if agent else None)
        assert agent is not None
        is_there = is_name(agent) and (agent in self.agents or home_of(self.scopes.workspace, agent).is_dir())
        if not is_there:
            known = ", ".join(map(shown, self.agents))
            raise NoAgent(f"there is no agent {agent!r}", hint=f"the agents are: {known}")
        return await self.scope_resolver.of_key(key, agent=agent)

    async def follow_agent(self, session: Session, session_id: str) -> None:
        """Let the agent of an ended session answer in its chat, since that session is opened again.

        Raises:
            OtherAgent: it may not; nothing was changed.
            Fenced, StoreError: nothing was changed.
        """
        agent = await self.scope_resolver.agent_of(session.key, session_id)
        if self.scopes.agents.of(session.key, agent) != agent:
            raise OtherAgent(
                f"session {session_id} belongs to the agent {shown(agent)}, which {session.key} does not use",
                hint="add it to [agents], and bind no other agent with fixed = true",
            )
        if agent != agent_in(session.metadata):
            await session.journal.choose(session_id, agent)

    async def usage_today(self) -> dict[str, Any]:
        """Sum up the running day (UTC) over all processes: how many turns; tokens and cost of all calls."""
        return await spent_today(self.spending)

    async def limits_today(self) -> list[dict[str, Any]] | None:
        """List the caps on the running day with what is left of each; None: there is no cap."""
        return await self.spending.shown()

    async def aside(self, ready: asyncio.Event) -> None:
        """Make ready, after ``ready``, what clients may ask for where no turns run."""
        await ready.wait()
        await self.store.state.open()
        if self.embeddings is not None:
            await self.embeddings.open()

    async def background(self, ready: asyncio.Event) -> None:
        """Import what a real model needs right after ``ready``, then work off the durable jobs."""
        await self.aside(ready)
        if self.plain:
            return
        for agent in self.agents.values():
            if isinstance(agent.model, Warms):
                try:
                    await agent.model.warm()
                except ModelAway as error:
                    # Each turn tries again; until then its lane waits as in any outage of the model.
                    log.error("model.not_loaded", error=str(error), hint=error.hint)
        # What was imported stays: no garbage collection walks over it again.
        gc.freeze()
        async with asyncio.TaskGroup() as group:
            group.create_task(self.jobs.run(), name="jobs")
            for agent in self.agents.values():
                group.create_task(agent.compactions.run(), name="compactions")
                group.create_task(agent.optional.look(), name="sandbox")
            group.create_task(self.recall.run(), name="recall")
            if self.mcp is not None:
                group.create_task(self.mcp.run(), name="mcp")
            group.create_task(keep_pruned(self.gate.files), name="approvals")

    async def end_compactions(self, key: str) -> None:
        """Cancel what is being summed up of a conversation, with whichever agent."""
        for agent in self.agents.values():
            await agent.compactions.settled(key, cancel=True)

    async def aclose(self) -> None:
        """End the models' connections and the store's threads; every line is on disk already."""
        if self.embeddings is not None:
            await self.embeddings.aclose()
        await self.jobs.aclose()
        await self.recall.aclose()
        for agent in self.agents.values():
            await agent.aclose()
        await self.spending.aclose()
        await self.subagent_store.aclose()
        await self.store.aclose()


def _servers(settings: Settings, scopes: Scopes) -> McpServers | None:
    if not settings.mcp:
        return None
    # A daemon without servers shall not wait for what they and their sandbox stand on.
    from gateway.app.wiring_mcp import build_servers

    return build_servers(settings, scopes)


class AgentServices:
    """What answers as one agent, and does its tasks as a subagent, on what all agents share.

    Args:
        name: empty for the default one.
        settings: as they hold for this agent.
        services: what it shares with the others.
        memory: takes its notes.
    """

    def __init__(
        self, name: str, settings: Settings, services: SessionServices, *, model: Model, memory: MemoryNotes
    ) -> None:
        self.name, self.model, self.memory = name, model, memory
        table = settings.agents.get(name)
        self.description = table.description if table is not None else ""
        self._settings, self._services = settings, services
        self._rules: dict[int, CompactionRules] = {}
        self.compactions = Compactions(
            Compactor(
                model,
                small=settings.model.small,
                take=memory.budget.take,
                cost_meter=services.spending,
            ),
            rules=self._compaction_rules,
            left=services.jobs.left,
            now=lambda: stamp(durable.now(), settings.zone),
        )
        self._context_parts = self._build_context_parts(table.persona if table is not None else "")
        self.gate = build_gate(settings, clock=services.store.clock, files=services.answers.files)
        self.optional = OptionalTools(settings)
        self._files = home_of(settings.workspace, name) / "files"
        limits = turn_limits(settings)
        self.turns = Turns(
            model=model,
            toolbox=self._toolbox(),
            limits=limits,
            zone=settings.zone,
            clock=services.clock,
            turn_context=self._turn_context,
            workspace=settings.workspace,
            compactions=self.compactions,
            embeddings=services.embeddings,
            gate=self.gate,
        )
        self.commands = self._commands()
        # Of a task nothing is summed up or compared.
        self.subagent_turns = replace(
            self.turns,
            limits=replace(limits, window=None, relevance=None),
            turn_context=self._task_context,
            compactions=None,
            embeddings=None,
        )

    def _build_context_parts(self, persona: str) -> ContextParts:
        settings, store = self._settings, self._services.store
        recent = RecentSessions(
            store.layout, most=settings.session.recent_sessions, days=settings.session.recent_days
        )
        return ContextParts(
            settings.workspace,
            library=self._services.library,
            recent=recent,
            zone=settings.zone,
            zone_name=settings.timezone,
            clock=store.clock,
            look_around=SurroundingsReader(settings),
            persona=persona,
            personas=[home_of(settings.workspace, self.name)] if self.name else [],
        )

    def _toolbox(self) -> Toolbox:
        """Put together the tools that come with the daemon, and those of a source that changes.

        Requests name them in this order: a tool that is new stands at the end, so that prompt caches hold.
        """
        services, settings = self._services, self._settings
        tools: list[Tool] = [
            Read(),
            Write(),
            Edit(),
            Ls(),
            Grep(),
            Profile(self.memory, max_bytes=settings.memory.profile_max_kb * 1024),
            SkillRead(services.library),
            SessionArchiveRead(services.store.layout, zone=settings.zone),
            MemorySearch(services.recall, services.scopes, zone=settings.zone),
            Schedule(ChatSchedules(settings, services.scopes)),
            SendFile(max_bytes=settings.media.max_mb * 2**20),
        ]
        if services.spawning is not None:
            tools.append(Spawn(services.spawning))
        tools += self.optional.tools
        heard = services.observer.tool_ran
        return Toolbox(tools, services.mcp or NoServers(), heard=heard, optional=OPTIONAL)

    def _commands(self) -> Commands:
        services = self._services
        return Commands(
            status=self._status,
            memory=services.memory_commands.show,
            forget=services.memory_commands.forget,
            ended=services.jobs.ended,
            left=services.jobs.left,
            compact=self.compactions,
            limits=self._left,
            end_subagents=services.spawning.end if services.spawning is not None else None,
            answers=services.answers,
            now=self.turns.now,
            more=described(self._settings),
        )

    def _status(self, key: str) -> list[str]:
        agent = [f"agent: {shown(self.name)}"] if self._settings.agents else []
        return [*agent, f"model: {self.model.name}", *self._services.status(key, self.model)]

    async def _left(self, request: Request) -> list[str]:
        """Say what of the limits is left to whoever asks, and which subagents work for the chat."""
        lines, spawning = await self._services.quota.left(request), self._services.spawning
        if spawning is None:
            return lines
        try:
            found = await spawning.live(request.key)
        # Whoever asks how things stand is told what is known.
        except StoreError as error:
            return [*lines, f"subagents: unknown ({error})"]
        names = ", ".join(each.label for each in found)
        return [*lines, f"subagents: {len(found)} ({names})"] if found else lines

    async def _compaction_rules(self) -> CompactionRules:
        """Look up the model's window when it is first needed, or when its server names another one."""
        window = getattr(self.model, "named_window", lambda: 0)()
        if window not in self._rules:
            self._rules[window] = await compaction_rules(self._settings, self.model, window)
        return self._rules[window]

    async def _turn_context(self, session: Session, request: Request) -> TurnContext:
        if self.model.plain:
            return TurnContext(parts=(), files=self._files, tools=())
        services, toolbox = self._services, self.turns.toolbox
        if session.metadata.get("model") != self.model.name:
            await session.checkpoint(metadata={"model": self.model.name})
        scope = await services.scope_resolver.of(session, request)
        if services.mcp is not None:
            await services.mcp.refresh()
        # A server's own table says where its tools are on offer.
        tools = (*granted(self._settings, group=scope.group), *toolbox.sourced())
        notes = await self.memory.text(scope)
        facts = await services.facts_told(scope, session, request)
        place = place_of(session, request, files=scope.files, scope=scope.name, group=scope.group)
        tools = without_denied(self.gate, toolbox, tools, place)
        offered = [spec.name for spec in toolbox.specs(tools, place)]
        parts = await self._context_parts.parts(
            session,
            request,
            scope,
            notes=notes,
            tools=offered,
            others=await services.scope_resolver.alike(scope, request.key),
            facts=facts,
        )
        return TurnContext(parts=parts, files=scope.files, tools=tools, scope=scope.name, group=scope.group)

    async def _task_context(self, session: Session, request: Request) -> TurnContext:
        """Draw what a subagent works with: facts and files of its parent, and its tools."""
        services, toolbox = self._services, self.turns.toolbox
        scope = await services.scope_resolver.of(session, request)
        parent = str(session.metadata.get(PARENT) or "")
        chat = await self._works_for(session.key, parent)
        place = place_of(session, request, files=scope.files, scope=scope.name, group=scope.group)
        place = replace(place, chat=chat, parent=parent)
        tools = [
            name
            for name in (*granted(self._settings, group=scope.group), *toolbox.sourced())
            if name not in NOT_FOR_SUBAGENTS
        ]
        tools = [*without_denied(self.gate, toolbox, tools, place)]
        offered = [spec.name for spec in toolbox.specs(tools, place)]
        # By their words: vectors would be kept for a conversation that is soon gone.
        facts = await services.facts_told(scope, None, request)
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
        records = SubagentFiles(self._settings.state)
        found = await asyncio.to_thread(records.find, parent, key) if parent else None
        answered = found.origin.get("answer_to") if found is not None else None
        return answered if isinstance(answered, str) and answered else parent

    async def aclose(self) -> None:
        """End the model's connections and the threads."""
        close = getattr(self.model, "close", None)
        if close is not None:
            await close()


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
