"""The requests of one turn, kept within what the model takes: looks before every call."""

from __future__ import annotations

import contextlib
from collections.abc import Awaitable, Callable, Mapping, Sequence
from dataclasses import replace
from itertools import takewhile
from typing import Any

from session.compaction.compactions import (
    Compactions,
    CountBasis,
    Estimate,
    Occasion,
    apart,
    estimate_request,
)
from session.compaction.due import Due, due, measure
from session.compaction.rules import CompactionRules
from session.context.request import Asking, compact_line, sent_from
from session.errors import ContextTooLong, MessageTooLong, NotCompacted
from session.models.model import Prompt, Usage
from session.models.spending import Meter
from session.models.tokens import estimate_messages
from session.store.store import Session
from session.transcript.transcript import Transcript, decode

# What is estimated may be wrong by so much, before it is said that no summary would make enough room.
SURELY = 1.2
TOO_LONG = "the conversation does not fit the model's window, and could not be compacted"
MESSAGE_TOO_LONG = "the message alone does not fit the model's window"


class TurnCompaction:
    """The requests of one turn, kept within what the model takes."""

    def __init__(self, compactions: Compactions, session: Session, asking: Asking, meter: Meter) -> None:
        self._compactions = compactions
        self._session = session
        self._asking = asking
        self._meter = meter
        self._estimate: Estimate | None = None
        self._failed = False
        self._forced = False
        self._seen = _count_basis(session.transcript)
        self._later = False
        self._alone = 0
        # Whether only the provider's count says that a compaction is due.
        self._counted = False

    async def prompt(self, pending: Mapping[str, Any] | None, store: Callable[[], Awaitable[None]]) -> Prompt:
        """Build the next request; where it is too long, after a compaction.

        Args:
            pending: the user line as long as it is not stored.
            store: stores it.

        Raises:
            ContextTooLong: it does not fit, and there is no summary.
            StoreError: as an append.
        """
        await self._compactions.follow(self._session)
        prompt = await self._built(pending)
        rules = await self._compactions.rules()
        verdict = await self._verdict(prompt, rules, pending)
        if verdict == "now" and self._is_hopeless(rules):
            # To sum up all that was said before makes no room for it: its model says whether it takes that.
            verdict = "no"
        if verdict == "now":
            # A summary takes its time, and a crash meanwhile must not cost the question.
            await store()
            if await self._compactions.settled(self._session.key) or not self._stands():
                prompt = await self._built(None)
                verdict = await self._verdict(prompt, rules)
        if verdict == "now" and await self._compacted(rules):
            prompt = await self._built(None)
            await self._verdict(prompt, rules)
        self._later = verdict == "later"
        if prompt.max_tokens is not None and prompt.max_tokens > rules.output:
            return replace(prompt, max_tokens=rules.output)
        return prompt

    async def too_long(self, store: Callable[[], Awaitable[None]]) -> bool:
        """Compact once, because the provider found the request too long; False where that changed nothing.

        Raises:
            MessageTooLong: nothing would, since the newest message alone does not fit.
        """
        compactions, session = self._compactions, self._session
        rules = await compactions.rules()
        if self._is_hopeless(rules):
            raise MessageTooLong(MESSAGE_TOO_LONG)
        if self._forced or (self._failed and not compactions.was_away(session.key)):
            return False
        self._forced = True
        await store()
        await compactions.settled(session.key, cancel=True)
        compactions.counts.pop(session.session_id, None)
        with contextlib.suppress(NotCompacted):
            occasion = Occasion(asked=True, forced=True)
            return await compactions.compact(session, rules, occasion, meter=self._meter)
        return False

    @property
    def tokens(self) -> int:
        """How many the last request that was built is estimated to have; 0 before the first."""
        return self._estimate.tokens if self._estimate is not None else 0

    def answered(self, usage: Usage | None) -> None:
        """Take in what the provider counted for the request."""
        if self._estimate is not None and (counted := self._estimate.counted(usage)) is not None:
            self._compactions.counts[counted.basis.session_id] = counted

    def ended(self) -> None:
        """Let the conversation be compacted behind the turn, where that was due for its last request."""
        if self._later:
            self._compactions.after_turn(self._session, due=self._stands, forced=self._counted)

    async def _built(self, pending: Mapping[str, Any] | None) -> Prompt:
        # Taken before the request is built: what is stored meanwhile may not be in the request.
        self._seen = _count_basis(self._session.transcript)
        return await self._asking.prompt(pending)

    def _stands(self) -> bool:
        """Say whether nothing took messages out of the history since the last request was built."""
        return _count_basis(self._session.transcript) == self._seen

    def _is_hopeless(self, rules: CompactionRules) -> bool:
        """Say whether what a person wrote last is by itself more than the window takes."""
        return not rules.fits(int(self._alone / SURELY))

    async def _compacted(self, rules: CompactionRules) -> bool:
        compactions, session = self._compactions, self._session
        assert self._estimate is not None
        if self._failed:
            return False
        try:
            return await compactions.compact(
                session, rules, Occasion(forced=self._counted), meter=self._meter
            )
        except NotCompacted as error:
            if error.reason == "little":
                return False
            self._failed = True
            if rules.fits(self._estimate.local) or compactions.was_away(session.key):
                # The model itself says what it takes, or that it is away: a count may be wrong.
                return False
            raise ContextTooLong(f"{TOO_LONG}: {error}") from error

    async def _verdict(
        self, prompt: Prompt, rules: CompactionRules, pending: Mapping[str, Any] | None = None
    ) -> Due:
        """Say whether a compaction is due; the estimate stays, for the provider's count to stand beside.

        Every request is estimated, also one that looks short: its messages may have far more tokens for
        their provider than we take them for, and only a count that was noted says so.
        """
        transcript = self._session.transcript
        first = sent_from(transcript)
        raw = transcript.messages[first:]

        def weighed() -> tuple[Estimate, Due]:
            lines = [*map(decode, raw), *filter(None, [pending])] if rules.by_history else []
            return self._weighed(transcript, first, prompt, rules, lines)

        # What is only measured takes a tenth of what is read as well.
        many = len(raw) if rules.by_history else len(raw) // 10
        self._estimate, verdict = await apart(many, weighed)
        return verdict

    def _weighed(
        self,
        transcript: Transcript,
        first: int,
        prompt: Prompt,
        rules: CompactionRules,
        lines: Sequence[Mapping[str, Any]],
    ) -> tuple[Estimate, Due]:
        newest = [*takewhile(lambda message: message["role"] == "user", reversed(prompt.messages))]
        self._alone = estimate_messages(newest, chars_per_token=rules.chars_per_token)
        weighed = estimate_request(
            prompt.messages,
            prompt.tools,
            basis=_count_basis(transcript, prompt.model),
            last=self._compactions.counts.get(transcript.session_id),
            chars_per_token=rules.chars_per_token,
        )
        load = None
        if rules.by_history:
            start = transcript.history_start
            load = measure(
                lines,
                start=first,
                history_start=start,
                rules=rules,
                now=self._compactions.clock(),
                opening=compact_line(transcript),
            )
        # Our own estimate chooses what is kept, and would keep all where it alone sees no need.
        self._counted = due(rules, request=weighed.local, load=load) == "no"
        return weighed, due(rules, request=weighed.tokens, load=load)


def _count_basis(transcript: Transcript, model: str = "") -> CountBasis:
    """Name what must stay as it is for the provider's count to hold, and for what is due to be so."""
    record = -1
    for at in reversed(transcript.index.records):
        if b'"note"' not in transcript.messages[at] or decode(transcript.messages[at])["kind"] != "note":
            record = at
            break
    return CountBasis(transcript.session_id, model, transcript.history_start, record)
