"""Builds from Settings what draws facts, tells them with a message, and answers for them in a chat."""

from __future__ import annotations

from dataclasses import dataclass

from gateway.config.settings import Settings
from session.context.embeddings import Embeddings
from session.context.request import Request
from session.context.scopes import Scope
from session.memory.consolidation import MemoryNotes
from session.memory.fact_extraction import FactExtraction, FactRules
from session.memory.fact_store import FactStore
from session.memory.memory_commands import MemoryCommands
from session.memory.scope_resolver import ScopeResolver
from session.models.spending import Spending
from session.store.store import Session, Store


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
    """Put them together for the scopes that ``scope_resolver`` resolves."""
    known = FactStore(store, embeddings=embeddings, cost_meter=cost_meter, versions=memory.rules.versions)
    facts = settings.facts
    rules = FactRules(facts.idle_s, facts.max_turns, facts.confidence)
    extraction = FactExtraction(memory, known, store=store, scope_of=scope_resolver.of_session, rules=rules)
    commands = MemoryCommands(known, settings.state, notes=memory.text, scope_of=scope_resolver.of)
    return Facts(known, extraction if facts.enabled else None, commands)
