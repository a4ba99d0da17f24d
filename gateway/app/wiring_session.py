"""Builds the session side of an application from Settings: store, model, tools, turns, commands, memory."""

from __future__ import annotations

import asyncio
import gc
from collections.abc import Callable
from dataclasses import fields
from datetime import datetime
from typing import TYPE_CHECKING, Any

import structlog

from gateway.app.wiring_agents import AgentServices, Shared, build_facts, build_store, memory_rules
from gateway.app.wiring_model import build_embeddings, build_model
from gateway.app.wiring_tools import keep_pruned
from gateway.config.agents import scopes_of, settings_of
from gateway.config.settings import Settings
from gateway.observer import Observer
from gateway.turns.limits import Quota
from gateway.turns.subagents import Spawning
from session.approvals.answers import Answers
from session.approvals.files import ApprovalFiles
from session.background.job_files import JobFiles
from session.background.jobs import Background
from session.background.passing import Passing
from session.background.retention import Retention
from session.context.embeddings import Embeddings
from session.context.links import enclosed
from session.context.scopes import Scope, Scopes
from session.errors import ModelAway, NoAgent, OtherAgent
from session.library.library import Library
from session.memory.consolidation import MemoryNotes
from session.memory.memory_commands import MemoryHistory
from session.models.caps import Caps
from session.models.model import Model, Warms
from session.models.spending import Spending
from session.recall.recall import Recall
from session.store.store import Session, Store, View, utc_now
from session.transcript.agent import DEFAULT, agent_in, home_of, is_name, shown
from session.transcript.attachments import Attachment
from session.turn.turn import Reply, Request

if TYPE_CHECKING:
    from session.mcp.servers import McpServers


def build_spending(settings: Settings, store: Store) -> Spending:
    """Build what counts the cost of all calls."""
    caps = Caps(**{field.name: getattr(settings.limits, field.name) for field in fields(Caps)})
    return Spending(store.state, clock=store.clock, caps=caps, model=settings.model.name)


def build_quota(settings: Settings, scopes: Scopes, store: Store, spending: Spending) -> Quota:
    """Build what says whether a message may still be asked."""
    return Quota(
        spending,
        turns_per_hour=settings.limits.turns_per_person_per_hour,
        scopes=scopes,
        clock=store.clock,
    )


async def spent_today(spending: Spending) -> dict[str, Any]:
    """Sum up the running day (UTC): how many turns; tokens and cost of all calls.

    Raises:
        NewerFormat, StoreError: it cannot be read.
    """
    sums = await spending.today()
    return {"turns": sums.turns, **sums.usage.shown()}


log = structlog.get_logger("model")


# Between an answer and the next message of somebody who hardly reads it.
QUIET_S = 0.5


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
        self.spawning = spawning
        cache_bytes = settings.session.cache_mb * 2**20
        self.store = Store(settings.workspace, zone=settings.zone, clock=clock, cache_bytes=cache_bytes)
        every = {name: settings_of(settings, name) for name in ("", *settings.agents)}
        models = {name: build_model(own, heard=observer.model_called) for name, own in every.items()}
        self.model = models[""]
        self.plain = all(model.plain for model in models.values())
        self._spending = build_spending(settings, self.store)
        self.scopes = scopes_of(settings)
        self.quota = build_quota(settings, self.scopes, self.store, self._spending)
        self.memory = self._notes(settings)
        self.scope_resolver = self.memory.scope_resolver
        embeddings = build_embeddings(settings)
        self.recall = self._recall(embeddings)
        self.facts = build_facts(
            *(settings, self.memory, self.scope_resolver),
            store=self.store,
            embeddings=embeddings,
            cost_meter=self._spending,
        )
        self.memory_history = MemoryHistory(self.memory, self.facts.known)
        files = JobFiles(settings.workspace / "state")
        self.jobs = Background(
            self.memory, store=self.store, files=files, facts=self.facts.extraction, quiet_s=QUIET_S
        )
        self.mcp = _servers(settings, self.scopes)
        shared = self._shared(settings, embeddings, status, clock, observer)
        self.agents = {
            name: AgentServices(
                *(name, own, shared),
                model=models[name],
                memory=self.memory.add(name, models[name], memory_rules(own)) if name else self.memory,
            )
            for name, own in every.items()
        }
        self.answers, default = shared.answers, self.agents[""]
        self.turns, self.commands, self.gate = default.turns, default.commands, default.gate
        self.subagent_store = build_store(settings)
        self.retention = self._retention(settings)
        self._max_file_bytes = settings.media.max_mb * 2**20

    def _recall(self, embeddings: Embeddings | None) -> Recall:
        return Recall(self.scope_resolver, store=self.store, embeddings=embeddings, cost_meter=self._spending)

    def _shared(
        self,
        settings: Settings,
        embeddings: Embeddings | None,
        status: Callable[[str, Model], list[str]],
        clock: Callable[[], datetime],
        observer: Observer,
    ) -> Shared:
        return Shared(
            store=self.store,
            scope_resolver=self.scope_resolver,
            facts=self.facts,
            recall=self.recall,
            embeddings=embeddings,
            answers=Answers(ApprovalFiles(settings.state, clock=clock)),
            jobs=self.jobs,
            spending=self._spending,
            quota=self.quota,
            library=Library(settings.workspace),
            mcp=self.mcp,
            spawning=self.spawning,
            status=status,
            clock=clock,
            observer=observer,
        )

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
        return await spent_today(self._spending)

    async def limits_today(self) -> list[dict[str, Any]] | None:
        """List the caps on the running day with what is left of each; None: there is no cap."""
        return await self._spending.shown()

    async def aside(self, ready: asyncio.Event) -> None:
        """Make ready, after ``ready``, what clients may ask for where no turns run."""
        await ready.wait()
        await self.store.state.open()
        if self.turns.embeddings is not None:
            await self.turns.embeddings.open()

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
        if self.turns.embeddings is not None:
            await self.turns.embeddings.aclose()
        await self.jobs.aclose()
        await self.recall.aclose()
        for agent in self.agents.values():
            await agent.aclose()
        await self._spending.aclose()
        await self.subagent_store.aclose()
        await self.store.aclose()


def _servers(settings: Settings, scopes: Scopes) -> McpServers | None:
    if not settings.mcp:
        return None
    # A daemon without servers shall not wait for what they and their sandbox stand on.
    from gateway.app.wiring_mcp import build_servers

    return build_servers(settings, scopes)


def build_session_services(
    settings: Settings,
    *,
    status: Callable[[str, Model], list[str]],
    spawning: Spawning | None = None,
    clock: Callable[[], datetime] = utc_now,
    observer: Observer | None = None,
) -> SessionServices:
    """Open the workspace and build its session side.

    ``clock`` is the time now, aware; ``observer`` hears of requests to models and of tools that ran.
    """
    hears = observer or Observer()
    return SessionServices(settings, status=status, spawning=spawning, clock=clock, observer=hears)
