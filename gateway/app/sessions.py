"""Builds the session side of an application from Settings: store, model, tools, turns, commands, memory."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from dataclasses import fields
from datetime import UTC, datetime
from typing import Any

from gateway.app.approvals import build_gate, keep_pruned, without_denied
from gateway.app.compactions import build_compactions
from gateway.app.facts import build_facts
from gateway.app.model import build_model
from gateway.app.surroundings import SurroundingsReader
from gateway.config.memory_scope import scopes_of
from gateway.config.presets import effective_history
from gateway.config.settings import Settings
from gateway.turns.quota import Quota, payer_of
from session.approvals.answers import Answers
from session.background.job_files import JobFiles
from session.background.jobs import Background
from session.background.passing import Passing
from session.background.retention import Retention
from session.context.context_parts import ContextParts
from session.context.embeddings import LIMIT_S, Embeddings
from session.context.links import linked_files
from session.context.recent import RecentSessions
from session.context.relevance import Relevance
from session.context.request import place_of
from session.context.scopes import Scopes
from session.disk.layout import Layout
from session.library.library import Library
from session.memory.consolidation import MemoryNotes, MemoryRules
from session.memory.profile import Profile
from session.models.caps import Caps
from session.models.llm import LiteLLMEmbedder, provider_of
from session.models.model import Embedder, Warms
from session.models.spending import Spending
from session.recall.recall import Recall
from session.recall.tool import MemorySearch
from session.store.store import Session, Store
from session.tools import Toolbox
from session.tools.archives import SessionArchiveRead
from session.tools.files import Edit, Ls, Read, Write
from session.tools.grep import Grep
from session.tools.skills import SkillRead
from session.transcript.attachments import Attachment
from session.transcript.history import HistoryWindow
from session.turn.commands import Commands
from session.turn.turn import Reply, Request, TurnContext, TurnLimits, Turns

# A forced call that is refused is made once more, and an answer is stored: a request lasts a little longer.
HELD_BEYOND_S = 30.0


class SessionServices:
    """The session side of an application."""

    def __init__(self, settings: Settings, *, status: Callable[[str], list[str]]) -> None:
        self.store = Store(
            settings.workspace, zone=settings.zone, cache_bytes=settings.session.cache_mb * 2**20
        )
        self.model = build_model(settings)
        self._spending = build_spending(settings, self.store, plain=self.model.plain)
        self.scopes = scopes_of(settings)
        self.quota = build_quota(settings, self.scopes, self.store, self._spending)
        self.memory = self._notes(settings)
        self.circles = self.memory.circles
        self.recall = Recall(self.circles, store=self.store)
        embeddings = build_embeddings(settings)
        self.facts = build_facts(
            settings,
            self.memory,
            self.circles,
            store=self.store,
            embeddings=embeddings,
            cost_meter=self._spending,
        )
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
        self.turns = Turns(
            model=self.model,
            toolbox=self._toolbox(settings),
            limits=turn_limits(settings),
            zone=settings.zone,
            clock=lambda: datetime.now(UTC),
            turn_context=self._turn_context,
            workspace=settings.workspace,
            compactions=self.compactions,
            embeddings=embeddings,
            gate=self.gate,
        )
        self.commands = Commands(
            status=status,
            memory=self.facts.remembered.show,
            forget=self.facts.remembered.forget,
            ended=self.jobs.ended,
            left=self.jobs.left,
            compact=self.compactions,
            limits=self.quota.left,
            answers=self.answers,
            now=self.turns.now,
        )
        self.retention = self._retention(settings)
        self._tools = settings.tools
        self._max_file_bytes = settings.media.max_mb * 2**20
        self._files = settings.workspace / "files"

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
        )

    def _toolbox(self, settings: Settings) -> Toolbox:
        return build_toolbox(
            settings,
            self._library,
            self.store.layout,
            self.memory,
            MemorySearch(self.recall, self.scopes, zone=settings.zone),
        )

    async def _turn_context(self, session: Session, request: Request) -> TurnContext:
        if self.model.plain:
            return TurnContext(parts=(), files=self._files, tools=())
        if session.metadata.get("model") != self.model.name:
            await session.checkpoint(metadata={"model": self.model.name})
        scope = await self.circles.of(session, request)
        tools = self._tools.groups if scope.group else self._tools.direct
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
        """List the files of the conversation's scope that an answer links to."""
        scope = await self.circles.of(session, request)
        return await asyncio.to_thread(
            linked_files, text, scope.files, workspace=self.scopes.workspace, max_bytes=self._max_file_bytes
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
        await self.store.aclose()


def build_spending(settings: Settings, store: Store, *, plain: bool) -> Spending:
    """Build what counts the cost of all calls; on disk where there is any, or a limit to keep."""
    limits = settings.limits
    caps = Caps(**{field.name: getattr(limits, field.name) for field in fields(Caps)})
    return Spending(
        settings.state / "usage",
        disk=store,
        clock=store.clock,
        durable=caps.any or bool(limits.turns_per_person_per_hour) or not plain,
        caps=caps,
        held_s=settings.model.timeout_s * (1 + len(settings.model.fallbacks)) + HELD_BEYOND_S,
    )


def build_quota(settings: Settings, scopes: Scopes, store: Store, spending: Spending) -> Quota:
    """Build what says whether a message may still be asked."""
    return Quota(
        spending,
        turns_per_hour=settings.limits.turns_per_person_per_hour,
        person_of=payer_of(scopes),
        clock=store.clock,
    )


async def spent_today(spending: Spending) -> dict[str, Any]:
    """Sum up the running day (UTC): how many turns; tokens and cost of all calls.

    Raises:
        NewerFormat: a newer version writes the files.
    """
    await spending.refresh()
    sums = spending.today()
    return {
        "turns": sums.turns,
        "prompt_tokens": sums.prompt_tokens,
        "completion_tokens": sums.completion_tokens,
        "cost_usd": round(sums.cost_usd, 6),
    }


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
        clock=lambda: datetime.now(UTC),
        look_around=SurroundingsReader(settings),
    )


def build_toolbox(
    settings: Settings, library: Library, layout: Layout, memory: MemoryNotes, search: MemorySearch
) -> Toolbox:
    """Put together the tools that come with the daemon."""
    archives = SessionArchiveRead(layout, zone=settings.zone)
    profile = Profile(memory, max_bytes=settings.memory.profile_max_kb * 1024)
    return Toolbox([Read(), Write(), Edit(), Ls(), Grep(), profile, SkillRead(library), archives, search])


def memory_rules(settings: Settings) -> MemoryRules:
    """Read from the configuration what bounds memory and its background calls."""
    return MemoryRules(
        window=settings.memory.window,
        max_bytes=settings.memory.max_kb * 1024,
        small_model=settings.model.small,
        calls_per_hour=settings.limits.background_calls_per_hour,
        calls_per_day=settings.limits.background_calls_per_day,
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


def build_embedder(settings: Settings, *, timeout_s: float = LIMIT_S) -> Embedder | None:
    """Choose the embedding model; None where none is configured.

    Address and key are those of the model where the same provider serves both.
    """
    model = settings.model
    if not model.embedding:
        return None
    same = provider_of(model.embedding) == provider_of(model.name)
    return LiteLLMEmbedder(
        name=model.embedding,
        api_base=model.api_base if same else "",
        api_key=model.api_key.get_secret_value() if same else "",
        timeout_s=timeout_s,
    )


def build_embeddings(settings: Settings) -> Embeddings | None:
    """Build what compares messages where the configuration has a use for it."""
    embedder = build_embedder(settings)
    if embedder is None or settings.model.name == "echo":
        return None
    if effective_history(settings).mode != "relevant" and not settings.facts.enabled:
        return None
    return Embeddings(embedder, settings.state)


def build_session_services(settings: Settings, *, status: Callable[[str], list[str]]) -> SessionServices:
    """Open the workspace and build its session side."""
    return SessionServices(settings, status=status)
