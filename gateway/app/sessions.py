"""Builds the session side of an application from Settings: store, model, tools, turns, commands, memory."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from datetime import datetime
from typing import TYPE_CHECKING, Any

from gateway.app.approvals import build_gate, keep_pruned, without_denied
from gateway.app.compactions import build_compactions
from gateway.app.embedding import build_embeddings
from gateway.app.facts import build_facts
from gateway.app.figures import memory_rules, turn_limits
from gateway.app.model import build_model
from gateway.app.optional_tools import OptionalTools, granted
from gateway.app.spending import build_quota, build_spending, spent_today
from gateway.app.subagents import SubagentContext, build_store, status_lines, turns_like
from gateway.app.surroundings import SurroundingsReader
from gateway.app.toolbox import build_toolbox
from gateway.config.memory_scope import scopes_of
from gateway.config.settings import Settings
from gateway.observer import Observer
from gateway.turns.spawning import Spawning
from session.approvals.answers import Answers
from session.background.job_files import JobFiles
from session.background.jobs import Background
from session.background.passing import Passing
from session.background.retention import Retention
from session.context.context_parts import ContextParts
from session.context.embeddings import Embeddings
from session.context.enclosures import enclosed
from session.context.recent import RecentSessions
from session.context.request import place_of
from session.context.scopes import Scopes
from session.library.library import Library
from session.mcp.names import NoServers
from session.memory.consolidation import MemoryNotes
from session.memory.former import FormerMemory
from session.models.model import Warms
from session.recall.nearness import Nearness
from session.recall.recall import Recall
from session.store.store import Session, Store, utc_now
from session.subagents.tool import Spawn
from session.tools import Toolbox
from session.transcript.attachments import Attachment
from session.turn.commands import Commands
from session.turn.turn import Reply, Request, TurnContext, Turns

if TYPE_CHECKING:
    from session.mcp.servers import McpServers


class SessionServices:
    """The session side of an application; ``spawning`` starts subagents where there are turns."""

    def __init__(
        self,
        settings: Settings,
        *,
        status: Callable[[str], list[str]],
        spawning: Spawning | None = None,
        clock: Callable[[], datetime] = utc_now,
        observer: Observer = Observer(),  # noqa: B008 - it does nothing
    ) -> None:
        self._status, self.spawning, self._observer = status, spawning, observer
        cache_bytes = settings.session.cache_mb * 2**20
        self.store = Store(settings.workspace, zone=settings.zone, clock=clock, cache_bytes=cache_bytes)
        self.model = build_model(settings, heard=observer.model_called)
        self._spending = build_spending(settings, self.store, plain=self.model.plain)
        self.scopes = scopes_of(settings)
        self.quota = build_quota(settings, self.scopes, self.store, self._spending)
        self.memory = self._notes(settings)
        self.circles = self.memory.circles
        embeddings = build_embeddings(settings)
        self.recall = self._recall(embeddings)
        self.facts = build_facts(
            *(settings, self.memory, self.circles),
            store=self.store,
            embeddings=embeddings,
            cost_meter=self._spending,
        )
        self.former = FormerMemory(self.memory, self.facts.known, store=self.store)
        files = JobFiles(settings.workspace / "state")
        self.jobs = Background(self.memory, store=self.store, files=files, facts=self.facts.extraction)
        self.compactions = build_compactions(
            settings,
            self.model,
            take=self.memory.budget.take,
            cost_meter=self._spending,
            left=self.jobs.left,
        )
        self._library = Library(settings.workspace)
        self._context_parts = build_context_parts(settings, self.store, self._library)
        self.gate = build_gate(settings, clock=self.store.clock)
        self.answers = Answers(self.gate.files)
        self._optional = OptionalTools(settings)
        self.mcp = _servers(settings, self.scopes)
        self.turns = Turns(
            model=self.model,
            toolbox=self._toolbox(settings),
            limits=turn_limits(settings),
            zone=settings.zone,
            clock=clock,
            turn_context=self._turn_context,
            workspace=settings.workspace,
            compactions=self.compactions,
            embeddings=embeddings,
            gate=self.gate,
        )
        self.commands = self._commands()
        self.subagent_store = build_store(settings)
        self.subagent_turns = self._subagent_turns(settings)
        self.retention = self._retention(settings)
        self._settings = settings
        self._max_file_bytes, self._files = settings.media.max_mb * 2**20, settings.workspace / "files"

    def _recall(self, embeddings: Embeddings | None) -> Recall:
        nearness = Nearness(embeddings, cost_meter=self._spending) if embeddings is not None else None
        return Recall(self.circles, store=self.store, nearness=nearness)

    def _commands(self) -> Commands:
        spawning = self.spawning
        return Commands(
            status=self._status,
            memory=self.facts.remembered.show,
            forget=self.facts.remembered.forget,
            ended=self.jobs.ended,
            left=self.jobs.left,
            compact=self.compactions,
            limits=self._left,
            end_subagents=spawning.end if spawning is not None else None,
            answers=self.answers,
            now=self.turns.now,
        )

    def _subagent_turns(self, settings: Settings) -> Turns:
        context = SubagentContext(
            settings, circles=self.circles, facts=self.facts.told, context_parts=self._context_parts
        )
        return turns_like(self.turns, context)

    async def _left(self, request: Request) -> list[str]:
        """Say what of the limits is left to whoever asks, and which subagents work for the chat."""
        return [*await self.quota.left(request), *await status_lines(self.spawning, request.key)]

    def _notes(self, settings: Settings) -> MemoryNotes:
        return MemoryNotes(
            self.scopes,
            store=self.store,
            model=self.model,
            rules=memory_rules(settings),
            zone=settings.zone,
            cost_meter=self._spending,
        )

    def _retention(self, settings: Settings) -> Retention:
        return Retention(
            self.store,
            days=settings.session.retention_days,
            left=self.jobs.left,
            remembers=not self.model.plain,
            passing=Passing(settings.state / "retention.json", self.store.layout.sessions),
            versions=self.memory.rules.versions,
        )

    def _toolbox(self, settings: Settings) -> Toolbox:
        own = [Spawn(self.spawning)] if self.spawning is not None else []
        return build_toolbox(
            settings,
            self.scopes,
            library=self._library,
            layout=self.store.layout,
            memory=self.memory,
            recall=self.recall,
            more=[*own, *self._optional.tools],
            source=self.mcp or NoServers(),
            heard=self._observer.tool_ran,
        )

    async def _turn_context(self, session: Session, request: Request) -> TurnContext:
        if self.model.plain:
            return TurnContext(parts=(), files=self._files, tools=())
        if session.metadata.get("model") != self.model.name:
            await session.checkpoint(metadata={"model": self.model.name})
        scope = await self.circles.of(session, request)
        if self.mcp is not None:
            await self.mcp.refresh()
        # A server's own table says where its tools are on offer.
        tools = (*granted(self._settings, group=scope.group), *self.turns.toolbox.sourced())
        notes = await self.memory.text(scope)
        facts = await self.facts.told(scope, session, request)
        place = place_of(session, request, files=scope.files, scope=scope.name, group=scope.group)
        tools = without_denied(self.gate, self.turns.toolbox, tools, place)
        offered = [spec.name for spec in self.turns.toolbox.specs(tools, place)]
        parts = await self._context_parts.parts(
            session,
            request,
            scope,
            notes=notes,
            tools=offered,
            others=await self.circles.alike(scope, request.key),
            facts=facts,
        )
        return TurnContext(parts=parts, files=scope.files, tools=tools, scope=scope.name, group=scope.group)

    async def enclosures(self, session: Session, request: Request, text: str) -> list[Attachment]:
        """List the files of the scope that a turn sends, then those that its answer links to."""
        scope = await self.circles.of(session, request)
        exchange = session.find(request.id)
        lines = session.lines(exchange.start, exchange.stop) if exchange is not None else []
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
        if reply.usage is not None and not self.model.plain:
            self.jobs.turn_ended(session)
            self.recall.note(session.key)

    async def usage_today(self) -> dict[str, Any]:
        """Sum up the running day (UTC) over all daemons: how many turns; tokens and cost of all calls."""
        return await spent_today(self._spending)

    def limits_today(self) -> list[dict[str, Any]] | None:
        """List the caps on the running day with what is left of each, as far as it was read; None: no cap."""
        return self._spending.shown()

    async def background(self, ready: asyncio.Event) -> None:
        """Import what a real model needs right after ``ready``, then work off the durable jobs."""
        await ready.wait()
        await self._spending.refresh()
        if self.turns.embeddings is not None:
            await self.turns.embeddings.open()
        if self.model.plain:
            return
        if isinstance(self.model, Warms):
            await self.model.warm()
        async with asyncio.TaskGroup() as group:
            group.create_task(self.jobs.run(), name="jobs")
            group.create_task(self.compactions.run(), name="compactions")
            group.create_task(self.recall.run(), name="recall")
            group.create_task(self._optional.look(), name="sandbox")
            if self.mcp is not None:
                group.create_task(self.mcp.run(), name="mcp")
            group.create_task(keep_pruned(self.gate.files), name="approvals")

    async def aclose(self) -> None:
        """End the model's connections and the store's threads; every line is on disk already."""
        close = getattr(self.model, "close", None)
        if close is not None:
            await close()
        if self.turns.embeddings is not None:
            await self.turns.embeddings.aclose()
        await self.jobs.aclose()
        await self.recall.aclose()
        self._context_parts.close()
        await self._spending.aclose()
        await self.subagent_store.aclose()
        await self.store.aclose()


def _servers(settings: Settings, scopes: Scopes) -> McpServers | None:
    if not settings.mcp:
        return None
    # A daemon without servers shall not wait for what they and their sandbox stand on.
    from gateway.app.mcp import build_servers

    return build_servers(settings, scopes)


def build_context_parts(settings: Settings, store: Store, library: Library) -> ContextParts:
    """Build what gathers the parts of a request."""
    recent = RecentSessions(
        store.layout, most=settings.session.recent_sessions, days=settings.session.recent_days
    )
    return ContextParts(
        settings.workspace,
        library=library,
        recent=recent,
        zone=settings.zone,
        zone_name=settings.timezone,
        clock=store.clock,
        look_around=SurroundingsReader(settings),
    )


def build_session_services(
    settings: Settings,
    *,
    status: Callable[[str], list[str]],
    spawning: Spawning | None = None,
    clock: Callable[[], datetime] = utc_now,
    observer: Observer | None = None,
) -> SessionServices:
    """Open the workspace and build its session side.

    ``clock`` is the time now, aware; ``observer`` hears of requests to models and of tools that ran.
    """
    hears = observer or Observer()
    return SessionServices(settings, status=status, spawning=spawning, clock=clock, observer=hears)
