"""Builds from Settings what draws facts, tells them with a message, and answers for them in a chat."""

from __future__ import annotations

from dataclasses import dataclass

from gateway.config.settings import Settings
from session.context.embeddings import Embeddings
from session.context.request import Request
from session.context.scopes import Scope
from session.memory.circles import Circles
from session.memory.consolidation import MemoryNotes
from session.memory.fact_extraction import FactExtraction, FactRules
from session.memory.fact_store import KnownFacts
from session.memory.memory_commands import Remembered
from session.models.spending import Spending
from session.store.store import Session, Store


@dataclass(frozen=True, slots=True)
class Facts:
    """The facts of an application; ``extraction`` is None where none are drawn, and then none are told."""

    known: KnownFacts
    extraction: FactExtraction | None
    remembered: Remembered

    async def told(self, scope: Scope, session: Session | None, request: Request) -> list[str]:
        """Return the facts that a message is told with, the nearest first; see ``KnownFacts.nearest``."""
        if self.extraction is None:
            return []
        return await self.known.nearest(scope, session, request.text, payer=request.payer)


def build_facts(
    settings: Settings,
    memory: MemoryNotes,
    circles: Circles,
    *,
    store: Store,
    embeddings: Embeddings | None,
    cost_meter: Spending,
) -> Facts:
    """Put them together for the scopes that ``circles`` draws."""
    known = KnownFacts(store, embeddings=embeddings, cost_meter=cost_meter, versions=memory.rules.versions)
    facts = settings.facts
    rules = FactRules(facts.idle_s, facts.max_turns, facts.confidence)
    extraction = FactExtraction(memory, known, store=store, scope_of=circles.of_session, rules=rules)
    remembered = Remembered(known, settings.state, notes=memory.text, scope_of=circles.of)
    return Facts(known, extraction if facts.enabled else None, remembered)
