"""Compacts conversations so that they stay within what their model takes.

The summary is made from a snapshot, and stored only if the transcript has only grown since. Until then
nothing has changed, whatever dies or is stopped.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime
from functools import partial
from math import ceil
from typing import Any, TypeVar

import structlog

import durable
from durable import BoundedDict
from session.compaction.compactor import Compactor
from session.compaction.plan import Plan, plan
from session.compaction.rules import CompactionRules
from session.context import context
from session.context.prepared import lines_from
from session.context.request import LONG_HISTORY, compact_line, sent_from
from session.errors import ContextTooLong, NotCompacted, SessionError
from session.models.model import Message, ToolSpec, Usage
from session.models.spending import Meter
from session.models.tokens import CHARS_PER_TOKEN, estimate, estimate_messages, estimate_tools
from session.store.rollover import ended_before, roll_over
from session.store.store import Session
from session.transcript.history import is_deletion, is_record, summary_text, visible
from session.transcript.line import is_ulid, make_line
from session.transcript.transcript import Transcript, decode

T = TypeVar("T")
log = structlog.get_logger("compaction")

CACHED = 1_000


@dataclass(frozen=True, slots=True)
class CountBasis:
    """What must still be the same for a provider's count to say something about the next request.

    Args:
        session_id: the session whose history was sent.
        model: the model that counted.
        history_start: index of the message with which the history begins; consolidation moves it.
        record: index of the newest record that takes messages out of the history (overlay, compact, undo);
            -1 without one.
    """

    session_id: str
    model: str
    history_start: int
    record: int


@dataclass(frozen=True, slots=True)
class Estimate:
    """Tokens of a request: ``tokens`` as far as is known, ``local`` without any provider's help.

    Of one that was answered ``tokens`` is the provider's own count.
    """

    tokens: int
    local: int
    basis: CountBasis

    def counted(self, usage: Usage | None) -> Estimate | None:
        """Keep what the provider counted for this request; None where it counted nothing."""
        if usage is None or usage.prompt <= 0:
            return None
        return Estimate(usage.prompt, self.local, self.basis)


def estimate_request(
    messages: Sequence[Message],
    tools: Sequence[ToolSpec],
    *,
    basis: CountBasis,
    last: Estimate | None,
    chars_per_token: float = CHARS_PER_TOKEN,
) -> Estimate:
    """Estimate a request that is about to be made.

    The last count is trusted only where its basis is still the same and nothing was taken away since: then it
    stands for what was sent before, and only what is more now is estimated. Otherwise all is estimated.
    """
    local = estimate_messages(messages, chars_per_token=chars_per_token)
    local += estimate_tools(tools, chars_per_token=chars_per_token)
    if last is None or last.basis != basis or local < last.local:
        return Estimate(local, local, basis)
    return Estimate(last.tokens + local - last.local, local, basis)


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


# So many compactions run side by side in the background.
AT_ONCE = 4
KNOWN_MAX = 10_000


@dataclass(frozen=True, slots=True)
class Compacted:
    """What a compaction did: turns that left, and tokens of the history before and after, as estimated."""

    turns: int
    tokens_before: int
    tokens_after: int


@dataclass(frozen=True, slots=True)
class Occasion:
    """What a compaction is for.

    ``by`` is the id of the command that asks for it, ``focus`` what it asked to stress. ``asked``: no
    cooldown holds it up. ``background``: its calls count against that budget. ``forced``: the provider found
    the request too long, or counted more than we estimate, so that at most half is kept. ``due``: asked once
    the conversation was looked at, whether it still has to be; None: it has.
    """

    by: str = ""
    focus: str = ""
    asked: bool = False
    background: bool = False
    forced: bool = False
    due: Callable[[], bool] | None = None


class Compactions:
    """Compacts conversations: before a call that must wait for it, in the background, or for a person.

    ``rules`` are found once, since the model's window may have to be looked up; ``left`` makes the
    consolidation of an ended session durable (key and ULID); ``now`` is the timestamp of a new line.
    """

    def __init__(
        self,
        compactor: Compactor,
        *,
        rules: Callable[[], Awaitable[CompactionRules]],
        left: Callable[[str, str], Awaitable[bool]],
        now: Callable[[], str],
        clock: Callable[[], datetime] = durable.now,
    ) -> None:
        # The last count of each session, as long as the process lives; the first request is estimated whole.
        self.counts: BoundedDict[str, Estimate] = BoundedDict(CACHED)
        self.rules = rules
        self.clock = clock
        self._compactor = compactor
        self._left = left
        self._now = now
        self._group: asyncio.TaskGroup | None = None
        self._tasks: dict[str, asyncio.Task[None]] = {}
        self._gate = asyncio.Semaphore(AT_ONCE)
        # Sessions whose archive was handed to memory, or is just being handed to it.
        self._followed: BoundedDict[str, None] = BoundedDict(KNOWN_MAX)
        # Conversations whose last summary failed because the model was away.
        self._away: BoundedDict[str, None] = BoundedDict(KNOWN_MAX)

    async def run(self) -> None:
        """Compact in the background until cancelled; a summary that is not there by then is dropped."""
        async with asyncio.TaskGroup() as group:
            self._group = group
            try:
                await asyncio.Event().wait()
            finally:
                self._group = None

    def was_away(self, key: str) -> bool:
        """Say whether the last summary of a conversation failed because the model was away."""
        return key in self._away

    async def follow(self, session: Session) -> None:
        """See that what a compaction archived goes into memory, once for each session of this process.

        Raises:
            StoreError: it could not be made durable.
        """
        id_, transcript = session.session_id, session.transcript
        if id_ in self._followed:
            return
        # Noted before the first await: whoever comes meanwhile does not do it as well.
        self._followed[id_] = None
        previous = transcript.inner.get("previous_session")
        try:
            if is_ulid(previous) and compact_line(transcript) is not None:
                await self._left(session.key, str(previous))
        except BaseException:
            self._followed.pop(id_, None)
            raise

    async def compact(
        self, session: Session, rules: CompactionRules, occasion: Occasion, *, meter: Meter | None = None
    ) -> bool:
        """Compact a conversation; ``meter`` is that of the turn which pays for it, also where it fails.

        Returns False where it is not due, nothing would leave, or the transcript became another meanwhile;
        nothing was written.

        Raises:
            NotCompacted: there is no summary; nothing was written.
            Fenced, StoreError: as an append.
        """
        begun = asyncio.get_running_loop().time()
        snapshot, decided = await apart(len(session), lambda: _decided(session, rules, occasion))
        if decided is None:
            return False
        if not decided.worth:
            raise NotCompacted("there is too little to summarise", reason="little")
        # A compaction may end the session: what an earlier one archived is owed before that is out of sight.
        await self.follow(session)
        try:
            summary = await self._compactor.summarise(
                decided,
                rules,
                key=session.key,
                focus=occasion.focus,
                asked=occasion.asked,
                background=occasion.background,
                meter=meter,
            )
        except NotCompacted as error:
            if error.reason != "resting":
                self._away.pop(session.key, None)
            if error.reason == "away":
                self._away[session.key] = None
            raise
        self._away.pop(session.key, None)
        done = await self._commit(session, rules, snapshot, decided, summary, occasion.by)
        log.info(
            "compaction.done" if done else "compaction.overtaken",
            key=session.key,
            preset=rules.preset,
            turns=decided.compacted_turns,
            tokens_before=decided.tokens_before,
            tokens=estimate(summary, chars_per_token=rules.chars_per_token),
            duration_ms=round((asyncio.get_running_loop().time() - begun) * 1000),
        )
        return done

    async def _commit(
        self, session: Session, rules: CompactionRules, snapshot: Snapshot, plan: Plan, text: str, by: str
    ) -> bool:
        first = plan.first_kept
        fields: dict[str, Any] = {
            "compacted_turns": plan.compacted_turns,
            "tokens_before": plan.tokens_before,
            "message_id": by or None,
        }
        # The estimate of the summary so far, which this one takes in.
        if replaced := ceil(plan.previous_chars / rules.chars_per_token):
            fields["replaced_tokens"] = replaced

        def still(transcript: Transcript) -> bool:
            return snapshot.still(transcript, first)

        if rules.strategy == "overlay":
            fields |= {"read_files": list(plan.files.read), "modified_files": list(plan.files.modified)}
            line = make_line("system", text, self._now(), kind="overlay", first_kept=first, **fields)
            return await session.append_if([line], still) is not None

        def record(archive: str, kept: int) -> Mapping[str, Any]:
            more = {"type": "compact", "previousSession": archive}
            told = {**fields, "kept": kept or None, "metadata": more}
            return make_line("system", text, self._now(), kind="compact", **told)

        ended = await session.change(partial(roll_over, first_kept=first, record=record, still=still))
        if ended is None:
            return False
        if session.transcript.inner.get("previous_session") == ended:
            await self.follow(session)
        else:
            # A person may have ended the new session meanwhile: then nothing leads to the archive any more.
            await self._left(session.key, ended)
        return True

    # -- in the background ---------------------------------------------------------------------------

    def after_turn(self, session: Session, *, due: Callable[[], bool], forced: bool = False) -> None:
        """Compact a conversation behind its turn; its next one need not wait for that.

        ``due``: asked once its time has come. ``forced``: the provider counted more than we estimate.
        """
        key = session.key
        # A task that has ended stays in the table until the loop runs its callback: it does not count.
        before = self._tasks.get(key)
        runs = before is not None and not before.done()
        if self._group is None or runs or self._compactor.rests_s(key) > 0:
            return
        occasion = Occasion(background=True, due=due, forced=forced)
        task = self._group.create_task(self._behind(session, occasion), name=f"compaction {key}")
        self._tasks[key] = task
        task.add_done_callback(lambda ended: self._forget(key, ended))

    def _forget(self, key: str, ended: asyncio.Task[None]) -> None:
        if self._tasks.get(key) is ended:
            del self._tasks[key]

    async def _behind(self, session: Session, occasion: Occasion) -> None:
        try:
            async with self._gate:
                await self.compact(session, await self.rules(), occasion)
        except NotCompacted:
            # It was logged where it failed, and is tried again after the cooldown.
            pass
        except SessionError as error:
            log.warning("compaction.unstored", key=session.key, error=str(error), hint=error.hint)
        except Exception:
            # The work of one conversation ends here: the others' goes on.
            log.exception("compaction.crashed", key=session.key)

    async def settled(self, key: str, *, cancel: bool = False) -> bool:
        """Wait for a compaction of ``key`` in the background, or end it; False where there is none."""
        task = self._tasks.get(key)
        if task is None:
            return False
        if cancel:
            task.cancel()
        await asyncio.wait([task])
        return True

    # -- for a person --------------------------------------------------------------------------------

    async def asked(self, session: Session, focus: str, by: str) -> Compacted | None:
        """Compact at once, whatever trigger and cooldown say; doing it twice for one command does it once.

        What the preset keeps stays; less, at most half, where the newest message was set aside because the
        provider found the conversation too long.

        Returns what it did; None where nothing would leave.

        Raises:
            NotCompacted, Fenced, StoreError: nothing was written.
        """
        rules = await self.rules()
        done = await self.done_by(session, by, rules)
        if done is not None:
            return done
        await self.settled(session.key, cancel=True)
        occasion = Occasion(by=by, focus=focus, asked=True, forced=was_too_long(session))
        if not await self.compact(session, rules, occasion):
            return None
        return await self.done_by(session, by, rules)

    async def done_by(
        self, session: Session, by: str, rules: CompactionRules | None = None
    ) -> Compacted | None:
        """Say what the command with this id did to the conversation; None where it did nothing yet."""
        lines = [session.line(at) for at in session.records()]
        own = [
            line for line in lines if line["kind"] in ("overlay", "compact") and line.get("message_id") == by
        ]
        if not own:
            return None
        line = own[-1]
        numbers = rules or await self.rules()
        after = await apart(len(session), lambda: weight(session.transcript, numbers))
        replaced, text = int(line.get("replaced_tokens", 0)), str(line["content"])
        if line["kind"] == "overlay" and not replaced:
            text = summary_text(text)
        kept = after - estimate(text, chars_per_token=numbers.chars_per_token)
        return Compacted(int(line["compacted_turns"]), kept + int(line["tokens_before"]) + replaced, after)


def _decided(session: Session, rules: CompactionRules, occasion: Occasion) -> tuple[Snapshot, Plan | None]:
    snapshot = Snapshot.of(session)
    # Asked behind the snapshot: the answer must hold for what the snapshot shows.
    if occasion.due is not None and not occasion.due():
        return snapshot, None
    return snapshot, snapshot.plan(rules, forced=occasion.forced)


def was_too_long(session: Session) -> bool:
    """Say whether the newest message got no answer because the provider found the request too long."""
    numbers = reversed(range(len(session)))
    newest = next((line for line in map(session.line, numbers) if not is_record(line)), {})
    known = session.journal.known(str(newest.get("message_id")))
    return known is not None and (known.kind, known.reason) == ("parked", ContextTooLong.reason)
