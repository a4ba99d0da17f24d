"""The requests of one turn, kept within what the model takes: looks before every call."""

from __future__ import annotations

import contextlib
from collections.abc import Awaitable, Callable, Mapping, Sequence
from dataclasses import replace
from typing import Any

from session.bounds import Bounds, Occasion
from session.compaction import COMING, Due, Estimate, Rules, Standing, due, estimate_request, measure
from session.errors import ContextTooLong, NotCompacted
from session.models import Meter, Prompt, Usage
from session.request import Asking, compact_line, sent_from
from session.snapshot import apart
from session.store import Session
from session.transcript import Transcript, decode

TOO_LONG = "the conversation does not fit the model's window, and could not be compacted"


class Bounded:
    """The requests of one turn, kept within bounds."""

    def __init__(self, bounds: Bounds, session: Session, asking: Asking, meter: Meter) -> None:
        self._bounds = bounds
        self._session = session
        self._asking = asking
        self._meter = meter
        self._estimate: Estimate | None = None
        self._failed = False
        self._forced = False
        self._seen = _standing(session.transcript)
        self._later = False

    async def prompt(self, pending: Mapping[str, Any] | None, store: Callable[[], Awaitable[None]]) -> Prompt:
        """Build the next request; where it is too long, after a compaction.

        Args:
            pending: the user line as long as it is not stored.
            store: stores it.

        Raises:
            ContextTooLong: it does not fit, and there is no summary.
            StoreError: as an append.
        """
        await self._bounds.follow(self._session)
        prompt = await self._built(pending)
        rules = await self._bounds.rules()
        verdict = await self._verdict(prompt, rules, pending)
        if verdict == "now":
            await store()  # a summary takes its time
            if await self._bounds.settled(self._session.key) or not self._stands():
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
        """Compact once, because the provider found the request too long; False where that changed nothing."""
        bounds, session = self._bounds, self._session
        if self._forced or (self._failed and not bounds.was_away(session.key)):
            return False
        self._forced = True
        await store()
        await bounds.settled(session.key, cancel=True)
        bounds.counts.forget(session.session_id)
        with contextlib.suppress(NotCompacted):
            rules = await bounds.rules()
            occasion = Occasion(asked=True, forced=True)
            return await bounds.compact(session, rules, occasion, meter=self._meter)
        return False

    def answered(self, usage: Usage | None) -> None:
        """Take in what the provider counted for the request."""
        if self._estimate is not None:
            self._bounds.counts.note(self._estimate.counted(usage))

    def ended(self) -> None:
        """Let the conversation be compacted behind the turn, where that was due for its last request."""
        if self._later:
            self._bounds.after_turn(self._session, due=self._stands)

    async def _built(self, pending: Mapping[str, Any] | None) -> Prompt:
        self._seen = _standing(self._session.transcript)  # before: what comes meanwhile may not be in it
        return await self._asking.prompt(pending)

    def _stands(self) -> bool:
        """Say whether nothing took messages out of the history since the last request was built."""
        return _standing(self._session.transcript) == self._seen

    async def _compacted(self, rules: Rules) -> bool:
        bounds, session = self._bounds, self._session
        assert self._estimate is not None
        if self._failed:
            return False
        try:
            return await bounds.compact(session, rules, Occasion(), meter=self._meter)
        except NotCompacted as error:
            if error.reason == "little":
                return False
            self._failed = True
            if rules.fits(self._estimate.tokens) or bounds.was_away(session.key):
                return False  # the model itself says what it takes, or that it is away
            raise ContextTooLong(f"{TOO_LONG}: {error}") from error

    async def _verdict(self, prompt: Prompt, rules: Rules, pending: Mapping[str, Any] | None = None) -> Due:
        """Say whether a compaction is due; what is surely short enough is not even estimated."""
        transcript = self._session.transcript
        first = sent_from(transcript)
        self._estimate = None
        told = self._asking.told_chars()
        if not self._asking.album.shown and not _may_be_due(
            transcript, first, prompt, rules, told_chars=told
        ):
            return "no"
        raw = transcript.messages[first:]

        def weighed() -> tuple[Estimate, Due]:
            lines = [*map(decode, raw), *filter(None, [pending])] if rules.by_history else []
            return self._weighed(transcript, first, prompt, rules, lines)

        self._estimate, verdict = await apart(len(raw), weighed)
        return verdict

    def _weighed(
        self,
        transcript: Transcript,
        first: int,
        prompt: Prompt,
        rules: Rules,
        lines: Sequence[Mapping[str, Any]],
    ) -> tuple[Estimate, Due]:
        weighed = estimate_request(
            prompt.messages,
            prompt.tools,
            standing=_standing(transcript, prompt.model),
            last=self._bounds.counts.get(transcript.session_id),
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
                now=self._bounds.clock(),
                opening=compact_line(transcript),
            )
        return weighed, due(rules, request=weighed.tokens, load=load)


def _may_be_due(transcript: Transcript, first: int, prompt: Prompt, rules: Rules, *, told_chars: int) -> bool:
    """Say whether the lengths alone leave it open: no text has more tokens than it has bytes."""
    if rules.preset == "off":
        return False
    messages = transcript.messages
    size = sum(map(len, messages[first:] if first else messages))
    if rules.preset == "annabelle":
        return size > rules.max_chars
    if rules.preset == "budget":
        return size > rules.trigger or len(messages) - first + 1 + COMING > rules.history_messages
    size += 4 * told_chars
    size += sum(4 * (len(tool.description) + len(str(tool.parameters))) for tool in prompt.tools)
    return size > rules.trigger


def _standing(transcript: Transcript, model: str = "") -> Standing:
    """Name what must stay as it is for the provider's count to hold, and for what is due to be so."""
    record = -1
    for at in reversed(transcript.index.records):
        if b'"note"' not in transcript.messages[at] or decode(transcript.messages[at])["kind"] != "note":
            record = at
            break
    return Standing(transcript.session_id, model, transcript.history_start, record)
