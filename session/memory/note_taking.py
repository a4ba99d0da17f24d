"""Asks for the notes of a stretch of conversation: one answer, marked, and one merge where it is too long."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass
from datetime import datetime, tzinfo

import structlog

from session.errors import BadAnswer, ModelError, loggable
from session.memory import consolidation_prompt as wording
from session.memory import merging
from session.memory.memory_rules import MemoryRules
from session.memory.provenance import Sources
from session.models.model import Answer, Prompt

log = structlog.get_logger("memory")

# So much text is compared within a few milliseconds.
SHORT_CHARS = 8_000


@dataclass(frozen=True, slots=True)
class Taken:
    """The paragraph for HISTORY.md, MEMORY.md as it shall be, and whether that was shortened for its size."""

    entry: str
    memory: str
    merged: bool = False


class NoteTaking:
    """Takes notes of the messages of one conversation.

    Args:
        ask: asks a model within the budget.
        now: the time in the user's zone.
        group: whether several people speak in the conversation.
        totals: counts what was merged, what could not be, and headings that went.
    """

    def __init__(
        self,
        key: str,
        *,
        rules: MemoryRules,
        zone: tzinfo,
        now: Callable[[], datetime],
        ask: Callable[[Prompt], Awaitable[Answer]],
        group: bool,
        totals: dict[str, int],
    ) -> None:
        self._key = key
        self._rules = rules
        self._zone = zone
        self._now = now
        self._ask = ask
        self._group = group
        self._totals = totals

    async def take(self, spoken: Sequence[wording.Line], memory: str) -> Taken | None:
        """Return the notes; None where the messages say nothing at all.

        Args:
            spoken: the messages.
            memory: MEMORY.md as it is.

        Raises:
            NotNow: there is no budget.
            BadAnswer: the answer is of no use, or too long and the merge of it is of none.
            ModelError: as of ``Model.ask``.
        """
        rules = self._rules
        prompt = wording.prompt(
            spoken, memory=memory, zone=self._zone, max_bytes=rules.max_bytes, model=rules.small_model
        )
        if prompt is None:
            return None
        update = wording.read(await self._ask(prompt), max_bytes=rules.max_bytes, now=self._now())

        def marked() -> tuple[Sources, str, str]:
            sources = Sources.of(spoken, group=self._group)
            entry = sources.marked(update.history_entry, fallback=False)
            return sources, entry, sources.marked(update.memory_update, former=memory)

        chars = len(memory) + len(update.memory_update) + sum(len(str(line)) for line in spoken)
        # Comparing the words of long results takes a while. What is short is done at once: until the answer
        # is stored, a crash costs the request again.
        sources, entry, text = marked() if chars < SHORT_CHARS else await asyncio.to_thread(marked)
        over = merging.size_bytes(text) > max(rules.max_bytes, merging.size_bytes(memory))
        if over:
            text = await self._merged(text, sources)
        if lost := merging.lost_headings(memory, text):
            self._totals["headings_lost"] += len(lost)
            log.warning("memory.headings_lost", key=self._key, headings=len(lost))
        return Taken(entry, text, over)

    async def _merged(self, text: str, sources: Sources) -> str:
        """Have MEMORY.md shortened, once.

        Raises:
            BadAnswer: what came back cannot stand for it; nothing is changed.
        """
        rules = self._rules
        try:
            prompt = merging.prompt(
                text, what=merging.NOTES, max_bytes=rules.max_bytes, model=rules.small_model
            )
            shorter = merging.read(await self._ask(prompt))
            shorter = await asyncio.to_thread(sources.marked, shorter, former=text)
            merging.check(shorter, text, max_bytes=rules.max_bytes)
        except ModelError as error:
            self._totals["unmerged"] += 1
            log.warning(
                "memory.unmerged", key=self._key, bytes=merging.size_bytes(text), error=loggable(error)
            )
            if not isinstance(error, BadAnswer):
                raise
            raise BadAnswer(
                f"MEMORY.md would grow to {merging.size_bytes(text)} bytes, over its cap of "
                f"{rules.max_bytes}, and could not be shortened: {error}"
            ) from error
        self._totals["merged"] += 1
        log.info("memory.merged", key=self._key, bytes=merging.size_bytes(shorter))
        return shorter
