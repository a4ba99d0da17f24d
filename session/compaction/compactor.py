"""Asks a model for the summary of a planned compaction; on any failure nothing comes of it."""

from __future__ import annotations

import asyncio
import re
from collections.abc import AsyncIterator, Awaitable, Callable, Sequence
from contextlib import AbstractAsyncContextManager, asynccontextmanager
from dataclasses import dataclass, field
from math import ceil

import structlog

import durable
from session.compaction.flat import escaped, first_part, flat, unescaped
from session.compaction.plan import Line, Plan
from session.compaction.prompts import HEADINGS, OPTIONAL, Task, question
from session.compaction.rules import CompactionRules
from session.errors import (
    BadAnswer,
    CompactionFailure,
    ContextTooLong,
    ModelAway,
    ModelError,
    NotCompacted,
    NotNow,
    loggable,
)
from session.models.errorpage import is_error_page
from session.models.model import Answer, CostMeter, Meter, Model, Prompt, Usage
from session.transcript.repair import plain_text

log = structlog.get_logger("compaction")

# With less conversation than this no smaller request is tried.
MIN_CHARS = 2_000
MAX_RESTING = 1_000
WORDS_PER_TOKEN = 0.6
# This part of the summary model's window is used; the rest is for the error of the estimate.
USED_OF_WINDOW = 0.8
# Characters of the instructions and the form in a request.
INSTRUCTIONS_CHARS = 4_000
NOTHING = "(nothing was said)"
_Paying = Callable[[Prompt], AbstractAsyncContextManager[Callable[[Usage | None], None]]]
SPLIT = "\n\n---\n\n**Beginning of the exchange that follows:**\n\n"


@dataclass(frozen=True, slots=True)
class Summary:
    """A checked summary, as it is stored.

    ``text`` has its lists of files at its end where the preset has them. ``replaced_tokens`` is the
    estimate of the summary so far, which it takes in. ``usage`` is what its requests cost.
    """

    text: str
    first_kept: int
    tokens_before: int
    compacted_turns: int
    read_files: tuple[str, ...]
    modified_files: tuple[str, ...]
    replaced_tokens: int = 0
    usage: Usage = field(default_factory=Usage)


class Compactor:
    """Turns plans into summaries, and rests for a while with a conversation for which that failed.

    Args:
        model: who is asked.
        small: the name of the model for background work; empty: the configured one.
        take: counts a call of the background; raises NotNow where its budget or the day's money is used up.
        cost_meter: pays for what is no turn's; None: it costs nothing.
        clock: seconds that never go back.
    """

    def __init__(
        self,
        model: Model,
        *,
        small: str = "",
        take: Callable[[], Awaitable[None]] | None = None,
        cost_meter: CostMeter | None = None,
        clock: Callable[[], float] = durable.monotonic,
    ) -> None:
        self._cost_meter = cost_meter
        self._model = model
        self._small = small
        self._take = take
        self._clock = clock
        self._resting: dict[str, float] = {}

    def rests_s(self, key: str) -> float:
        """Return how long no automatic try is made for a conversation, after a failure."""
        return max(self._resting.get(key, 0.0) - self._clock(), 0.0)

    async def summarise(
        self,
        plan: Plan,
        rules: CompactionRules,
        *,
        key: str,
        focus: str = "",
        asked: bool = False,
        background: bool = False,
        meter: Meter | None = None,
    ) -> Summary:
        """Ask for the summary of ``plan``, in steps where it is too long for one request.

        Args:
            plan: what leaves.
            rules: the numbers in force.
            key: the conversation, for the cooldown.
            focus: what a person asked to stress.
            asked: a person waits for it: no cooldown holds it up.
            background: no turn waits for it: its calls are counted against the budget of the background.
            meter: that of the turn which waits for it and pays for its requests, also where it fails; without
                one they are counted as no turn's, and not made where the day's money is spent.

        Raises:
            NotCompacted: there is no summary; after a failure of the model a cooldown has begun.
            OverCap: the turn that waits for it may spend no more.
            StoreError: the call could not be counted.
        """
        if self._model.plain:
            raise NotCompacted("the model cannot write summaries", reason="plain")
        if not asked and self.rests_s(key) > 0:
            raise NotCompacted("the last attempt failed a moment ago", reason="resting")
        work = _Work(
            self._model,
            rules,
            self._small,
            take=self._take if background else None,
            request=self._payer(key, meter),
        )
        try:
            if self._cost_meter is not None and meter is None and not background:
                await self._cost_meter.afford()
            text = await work.text(plan, focus)
        except NotNow as error:
            out_of: CompactionFailure = "cost" if error.reason == "cost" else "budget"
            raise NotCompacted(str(error), reason=out_of, hint=error.hint) from error
        except (ModelError, TimeoutError) as error:
            reason, words = _cause(error, rules)
            self._rest(key, rules.cooldown_s)
            log.warning("compaction.failed", key=key, reason=reason, error=words, cooldown_s=rules.cooldown_s)
            raise NotCompacted(words, reason=reason) from error
        self._resting.pop(key, None)
        return _summary(plan, rules, text, work.spent.usage)

    def _payer(self, key: str, meter: Meter | None) -> _Paying:
        """Say who pays for a request: the turn that waits for it, else the cost meter."""

        @asynccontextmanager
        async def paying(prompt: Prompt) -> AsyncIterator[Callable[[Usage | None], None]]:
            if meter is not None:
                async with meter.request(self._model, prompt):
                    yield meter.count
            elif self._cost_meter is not None:
                async with self._cost_meter.request(key, self._model, prompt) as count:
                    yield count
            else:
                yield lambda usage: None

        return paying

    def _rest(self, key: str, cooldown_s: float) -> None:
        now = self._clock()
        if len(self._resting) >= MAX_RESTING:
            self._resting = {known: until for known, until in self._resting.items() if until > now}
        self._resting[key] = now + cooldown_s


class _Work:
    def __init__(
        self,
        model: Model,
        rules: CompactionRules,
        small: str,
        *,
        take: Callable[[], Awaitable[None]] | None,
        request: _Paying,
    ) -> None:
        self.spent = Meter()
        self._request = request
        self._model = model
        self._rules = rules
        self._small = small
        self._take = take
        self._window = rules.summary_window or rules.window
        self._output = min(rules.max_output_tokens, self._window // 4)

    async def text(self, plan: Plan, focus: str) -> str:
        """Return the whole summary of a plan."""
        preset = self._rules.preset
        parts = [await self._summed(Task(preset, focus=focus), plan.lines, plan.previous)]
        if plan.prefix:
            parts.append(await self._summed(Task(preset, prefix=True, focus=focus), plan.prefix, ""))
        text = SPLIT.join(filter(None, parts)) or NOTHING
        lists = plan.files.lists() if self._rules.structured else ""
        whole = "\n\n".join(filter(None, (escaped(text), lists)))
        if len(whole) >= plan.room_chars:
            raise BadAnswer(f"the summary has {len(whole)} characters, no shorter than what it replaces")
        return whole

    async def _summed(self, task: Task, lines: Sequence[Line], previous: str) -> str:
        """Sum up the lines step by step, each step going on from the summary so far.

        Text is escaped in a question and in a stored summary, in between it is not: nothing piles up.
        """
        pieces = await asyncio.to_thread(flat, lines)
        summary, limit, done = unescaped(previous), self._limit(previous), 0
        while pieces:
            part, rest = first_part(pieces, limit)
            try:
                answer = await self._ask(task, part, summary)
            except ContextTooLong:
                limit = min(limit, len(part)) // 2
                if limit < MIN_CHARS:
                    raise
                continue
            pieces, done = rest, done + len(part)
            text = audited(answer, new_chars=done, previous_chars=len(previous), headings=task.headings)
            summary = unescaped(text)
            limit = min(limit, self._limit(summary))
        return summary

    def _limit(self, previous: str) -> int:
        """Return how many characters of conversation fit into a request beside the previous summary."""
        fitting = int((self._window - self._output) * USED_OF_WINDOW * self._rules.chars_per_token)
        return max(fitting - INSTRUCTIONS_CHARS - len(previous), MIN_CHARS)

    async def _ask(self, task: Task, conversation: str, previous: str) -> Answer:
        words = int(self._output * WORDS_PER_TOKEN)
        text = question(task, conversation, previous=previous, max_words=words)
        prompt = Prompt(
            messages=[{"role": "system", "content": task.role}, {"role": "user", "content": text}],
            max_tokens=self._output,
            model=self._small,
        )
        if self._take is not None:
            await self._take()
        async with self._request(prompt) as count:
            async with asyncio.timeout(self._rules.timeout_s):
                answer = await self._model.ask(prompt)
            self.spent.count(answer.usage)
            count(answer.usage)
        return answer


def _summary(plan: Plan, rules: CompactionRules, text: str, usage: Usage) -> Summary:
    return Summary(
        text=text,
        first_kept=plan.first_kept,
        tokens_before=plan.tokens_before,
        compacted_turns=plan.compacted_turns,
        read_files=plan.files.read,
        modified_files=plan.files.modified,
        replaced_tokens=ceil(plan.previous_chars / rules.chars_per_token),
        usage=usage,
    )


def _cause(error: ModelError | TimeoutError, rules: CompactionRules) -> tuple[CompactionFailure, str]:
    if isinstance(error, TimeoutError):
        return "slow", f"no summary within {rules.timeout_s:g} s"
    if isinstance(error, ModelAway):
        return "away", loggable(error)
    return ("answer" if isinstance(error, BadAnswer) else "refused"), loggable(error)


# A summary may have this part of the length of what it sums up.
MOST = 0.7
# Beside a summary so far, which may be kept whole, it may have this part of the new messages' length.
ADDED = 0.3
# A summary with about one line below each heading is believed however little it sums up.
ALWAYS_CHARS = 600
_THOUGHTS = re.compile(r"\A\s*<think(?:ing)?>.*?</think(?:ing)?>", re.DOTALL | re.IGNORECASE)
_FENCED = re.compile(r"\A```[a-z]*\n(.*)\n```\Z", re.DOTALL)
_WRAPPED = re.compile(r"\A<summary>(.*)</summary>\Z", re.DOTALL)


def audited(answer: Answer, *, new_chars: int, previous_chars: int, headings: bool) -> str:
    """Return the summary that an answer holds, without what some models wrap it in.

    Args:
        answer: as it came.
        new_chars: how long the conversation was that it sums up.
        previous_chars: how long the summary so far was, which it replaces.
        headings: whether it must have those of the structured form.

    Raises:
        BadAnswer: it calls tools, was cut off, is empty, an error page, too long for what it sums up, or
            lacks a heading.
    """
    if answer.tool_calls:
        raise BadAnswer("the summary calls tools")
    if answer.finish == "length":
        raise BadAnswer("the summary was cut off")
    text = _THOUGHTS.sub("", plain_text(answer.text)).strip()
    for wrapping in (_FENCED, _WRAPPED):
        if inner := wrapping.match(text):
            text = inner[1].strip()
    if not text:
        raise BadAnswer("the summary is empty")
    if is_error_page(text):
        raise BadAnswer("the summary looks like an error page")
    limit = most_chars(new_chars, previous_chars)
    if len(text) > limit:
        raise BadAnswer(f"the summary has {len(text)} characters, more than {limit}")
    missing = [name for name in HEADINGS if name not in OPTIONAL and not _has(text, name)]
    if headings and missing:
        raise BadAnswer(f"the summary lacks the headings {', '.join(missing)}")
    return text


def most_chars(new_chars: int, previous_chars: int) -> int:
    """Return how long a summary may be: 30 % shorter than its input.

    Two cases in which that cannot hold have a limit of their own: a short conversation (the headings alone
    take some room), and a few new messages beside a long summary so far, which may stay as long as it was.
    """
    kept = previous_chars + new_chars * ADDED if previous_chars else 0.0
    return max(int((new_chars + previous_chars) * MOST), int(kept), ALWAYS_CHARS)


def _has(text: str, heading: str) -> bool:
    return (
        re.search(rf"^#++\s*+\**+\s*+{re.escape(heading)}\b", text, re.MULTILINE | re.IGNORECASE) is not None
    )
