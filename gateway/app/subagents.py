"""Builds what subagents work with: conversations of their own, facts and files of their parent, its tools."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import replace
from functools import partial
from pathlib import Path

from gateway.app.approvals import without_denied
from gateway.app.optional_tools import granted
from gateway.config.settings import Settings
from gateway.turns.spawning import Spawning
from session.context.context_parts import ContextParts
from session.context.request import Request, TurnContext, place_of
from session.context.scopes import Scope
from session.errors import StoreError
from session.memory.scope_resolver import PARENT, ScopeResolver
from session.store.store import Session, Store
from session.subagents.records import SubagentFiles
from session.subagents.tool import NOT_FOR_SUBAGENTS
from session.tools import ToolPlace
from session.turn.turn import Turns

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
