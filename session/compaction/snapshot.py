"""A conversation at one moment, as a compaction is decided on; what a summary fits later."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, TypeVar

from session.compaction.plan import Plan, plan
from session.compaction.rules import CompactionRules
from session.context import context
from session.context.prepared import lines_from
from session.context.request import LONG_HISTORY, compact_line, sent_from
from session.models.tokens import estimate, estimate_messages
from session.store.rollover import ended_before
from session.store.store import Session
from session.transcript.history import is_deletion, visible
from session.transcript.transcript import Transcript, decode

T = TypeVar("T")


@dataclass(frozen=True, slots=True)
class Snapshot:
    """A conversation at one moment: its lines from ``start`` on, which hold all that is sent."""

    session_id: str
    start: int
    count: int
    raw: Sequence[bytes]
    lines: Sequence[Mapping[str, Any]]
    history_start: int
    running_from: int
    opening: Mapping[str, Any] | None

    @classmethod
    def of(cls, session: Session) -> Snapshot:
        """Take one; for a thread where the history is long."""
        transcript = session.transcript
        count, start = len(transcript.messages), sent_from(transcript)
        raw = transcript.messages[start:count]
        return cls(
            session_id=transcript.session_id,
            start=start,
            count=count,
            raw=raw,
            lines=[decode(line) for line in raw],
            history_start=transcript.history_start,
            running_from=ended_before(transcript, session.journal_state, session.clock()),
            opening=compact_line(transcript),
        )

    def plan(self, rules: CompactionRules, *, forced: bool = False) -> Plan | None:
        """Decide what leaves; None where nothing would."""
        return plan(
            self.lines,
            start=self.start,
            history_start=self.history_start,
            rules=rules,
            running_from=self.running_from if self.running_from < self.count else None,
            opening=self.opening,
            forced=forced,
        )

    def still(self, transcript: Transcript, first_kept: int) -> bool:
        """Say whether the transcript only grew since: a summary of all before ``first_kept`` fits it."""
        if transcript.session_id != self.session_id:
            return False
        if transcript.messages[self.start : self.count] != list(self.raw):
            return False
        for at in reversed(transcript.index.records):
            if at < self.count:
                return True
            line = decode(transcript.messages[at])
            since = line.get("from")
            if line["kind"] in ("overlay", "compact"):
                return False
            if line["kind"] == "undo" and type(since) is int and since < first_kept:
                return False
            # What was deleted meanwhile may stand in the summary.
            if is_deletion(line):
                return False
        return True


def weight(transcript: Transcript, rules: CompactionRules) -> int:
    """Estimate the history as it is sent, its summary included."""
    first = sent_from(transcript)
    history = visible(
        lines_from(transcript, first),
        last_consolidated=transcript.history_start - first,
        running_id=None,
    )
    opening = compact_line(transcript)
    told = context.earlier([opening] if opening is not None else []).text
    return estimate_messages(history, chars_per_token=rules.chars_per_token) + estimate(
        told, chars_per_token=rules.chars_per_token
    )


async def apart(count: int, work: Callable[[], T]) -> T:
    """Do pure work over so many lines: at once where they are few, else in a thread."""
    return await asyncio.to_thread(work) if count > LONG_HISTORY else work()
