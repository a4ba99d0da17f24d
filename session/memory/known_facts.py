"""The facts of all scopes: which there are, which are near to a message, and taking one out."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial

import structlog

from durable import BoundedDict
from session.context.embeddings import Embeddings
from session.context.relevance import comparable
from session.context.scopes import Scope
from session.disk.layout import Seen, seen
from session.disk.state import locked
from session.disk.threads import start_thread
from session.errors import StoreError
from session.memory.facts import FACTS, Fact, FactsFile, active
from session.memory.likeness import WordIndex
from session.memory.versions import VersionRules, Versions
from session.models.model import CostMeter, Meter, OwnMeter, Payer
from session.store.derived import forget as forget_vectors
from session.store.derived import forget_all as forget_all_vectors
from session.store.store import Session, Store
from session.transcript.key import SessionKey

log = structlog.get_logger("facts")

# So many facts are told with a message.
TOLD = 5
# So many are compared by embeddings; where there are more, those that are nearest by their words.
COMPARED = 100
CACHED = 50


@dataclass(frozen=True, slots=True)
class _Read:
    seen: Seen | None
    facts: Sequence[Fact]
    holding: Sequence[Fact]
    index: WordIndex


class KnownFacts:
    """Reads and changes the facts of scopes; a file is read again when it has changed.

    Args:
        store: the conversations, under whose locks facts are taken out.
        embeddings: compares them with a message; None: their words do.
        cost_meter: pays for that; None: it costs nothing.
        versions: how many former ones are kept, and for how long.
    """

    def __init__(
        self,
        store: Store,
        *,
        embeddings: Embeddings | None = None,
        cost_meter: CostMeter | None = None,
        versions: VersionRules | None = None,
    ) -> None:
        self._store = store
        self._versions = versions
        self._embeddings = embeddings
        self._cost_meter = cost_meter
        self._cache: BoundedDict[str, _Read] = BoundedDict(CACHED)

    def file(self, scope: Scope) -> FactsFile:
        """Return the file of a scope, for threads."""
        state = self._store.layout.workspace / "state" / "facts"
        versions = Versions(scope.memory, self._versions, clock=self._store.clock)
        return FactsFile(scope.memory, lock=state / f"{scope.name}.lock", versions=versions)

    async def facts(self, scope: Scope) -> Sequence[Fact]:
        """List all facts of a scope, replaced ones among them, in the order in which they were stored.

        Raises:
            StoreError: the file cannot be read.
        """
        return (await self._read(scope)).facts

    async def holding(self, scope: Scope) -> Sequence[Fact]:
        """List the facts of a scope that hold; as ``facts``."""
        return (await self._read(scope)).holding

    async def nearest(
        self, scope: Scope, session: Session | None, text: str, *, payer: Payer | None = None
    ) -> list[str]:
        """Return the facts that a message is told with, the nearest first, each with its source.

        There are none where they cannot be read. Without a session, with which vectors are kept, they are
        compared by their words. ``payer`` is for whom vectors count; None: for the conversation alone.
        """
        try:
            read = await self._read(scope)
        except StoreError as error:
            # A turn goes on without what cannot be read.
            log.warning("facts.unreadable", scope=scope.name, error=str(error), hint=error.hint)
            return []
        if len(read.holding) <= TOLD:
            return [fact.told for fact in reversed(read.holding)]
        question = comparable(text)
        near = await asyncio.to_thread(read.index.nearest, question, COMPARED)
        facts = {read.holding[at].text: read.holding[at] for at in reversed(near)}
        texts = list(dict.fromkeys(read.holding[at].text for at in near))
        scores = await self._compared(session, question, texts, payer)
        if scores is not None:
            texts.sort(key=lambda each: -scores.get(each, -1.0))
        return [facts[each].told for each in texts[:TOLD]]

    async def among(self, scope: Scope, text: str, most: int) -> list[Fact]:
        """List the facts that hold and share the most words with a text, in the order of their storing."""
        read = await self._read(scope)
        near = await asyncio.to_thread(read.index.nearest, text, most)
        return [read.holding[at] for at in sorted(near)]

    async def forget(self, key: str, scope: Scope, id_: str) -> Fact | None:
        """Take a fact out for good, with the former ones that it replaced, and what was derived of them.

        Returns:
            The fact; None where there is none of this id.

        Raises:
            StoreError: the disk refused; call it again.
        """
        gone = await self._change(key, scope, lambda file: file.remove(id_))
        if gone is not None:
            log.info("fact.forgotten", key=key, scope=scope.name, fact=id_)
        return gone

    async def edit(self, key: str, scope: Scope, id_: str, text: str) -> Fact | None:
        """Let a fact say what a person wrote; its former words become a version.

        Returns:
            The fact as it stands; None where there is none of this id.

        Raises:
            StoreError: the disk refused; it says what it said.
        """
        edited = await self._change(key, scope, lambda file: file.edit(id_, text))
        if edited is not None:
            log.info("fact.edited", key=key, scope=scope.name, fact=id_)
        return edited

    async def _change(
        self, key: str, scope: Scope, change: Callable[[FactsFile], Fact | None]
    ) -> Fact | None:
        layout = self._store.layout
        stem = await self._store.stem(SessionKey(key))
        one_chat = scope.own == f"chats/{stem}"

        def work() -> Fact | None:
            # Under the key's lock no clearing comes in between, whose file would be there again.
            with locked(layout.lock(stem)):
                changed = change(self.file(scope))
                if changed is not None:
                    # Other chats of a scope may have compared it, too.
                    forget_vectors(layout, stem) if one_chat else forget_all_vectors(layout)
                return changed

        return await start_thread(work, name="facts")

    async def _compared(
        self, session: Session | None, question: str, texts: list[str], payer: Payer | None
    ) -> dict[str, float] | None:
        if self._embeddings is None or session is None:
            return None
        payer = payer or Payer(session.key)
        meter = OwnMeter(self._cost_meter, payer) if self._cost_meter is not None else Meter()
        still = partial(session.is_still, session.session_id)
        return await self._embeddings.similarity(session.stem, question, texts, meter, still=still)

    async def _read(self, scope: Scope) -> _Read:
        path = scope.memory / FACTS
        now = seen(path)
        known = self._cache.use(scope.name)
        if known is None or known.seen != now:
            known = self._cache[scope.name] = await asyncio.to_thread(self._load, scope, now)
        return known

    def _load(self, scope: Scope, now: Seen | None) -> _Read:
        facts = self.file(scope).facts() if now is not None else []
        holding = active(facts)
        return _Read(now, facts, holding, WordIndex([fact.text for fact in holding]))
