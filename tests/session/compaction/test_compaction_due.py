"""When a conversation is compacted: the presets' triggers, the model's window, the size of a request."""

from __future__ import annotations

from datetime import datetime, timedelta
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from session.compaction.compactions import CountBasis, Estimate, estimate_request
from session.compaction.due import Load, due, measure
from session.compaction.rules import CompactionRules
from session.models.model import ToolSpec, Usage
from session.models.tokens import UNKNOWN, in_table, window_of
from tests.session.compaction_talk import AT, filled, record, said, user

NOW = datetime.fromisoformat(AT) + timedelta(seconds=120)
HERE = CountBasis("01ARZ3NDEKTSV4RRFFQ69G5FAV", "openai/gpt-4o", 0, -1)

OVERLAY, ARCHIVE = CompactionRules(), CompactionRules(preset="archive", chars_per_token=3.5)
LONG = Load(chars=20_001, turns=8, since_s=None)
BUDGET = CompactionRules(preset="budget")


@pytest.mark.parametrize(
    ("rules", "request_", "load", "expected"),
    [
        # seed 001: more than the window without 16,384 in reserve; at once only where the answer has no room
        (OVERLAY, 128_000 - 16_384, None, "no"),
        (OVERLAY, 128_000 - 16_384 + 1, None, "later"),
        (OVERLAY, 128_000 - 4_096, None, "later"),
        (OVERLAY, 128_000 - 4_096 + 1, None, "now"),
        # a small window: reserve and answer are a quarter of it each
        (CompactionRules(window=8_000), 6_000, None, "no"),
        (CompactionRules(window=8_000), 6_001, None, "now"),
        # seed 002: over 80 % of the window, always before the call
        (ARCHIVE, 102_400, None, "no"),
        (ARCHIVE, 102_401, None, "now"),
        (CompactionRules(preset="archive", threshold=0.6), 76_801, None, "now"),
        # seed 000: over 20,000 characters, from 8 turns on, 2 minutes after the last one
        (CompactionRules(preset="annabelle"), 6_000, LONG, "later"),
        (CompactionRules(preset="annabelle"), 6_000, Load(chars=20_000, turns=8), "no"),
        (CompactionRules(preset="annabelle"), 6_000, Load(chars=90_000, turns=7), "no"),
        (CompactionRules(preset="annabelle"), 6_000, Load(chars=90_000, turns=9, since_s=119.9), "no"),
        (CompactionRules(preset="annabelle"), 6_000, Load(chars=90_000, turns=9, since_s=120), "later"),
        (CompactionRules(preset="annabelle"), 125_000, LONG, "now"),
        (CompactionRules(preset="annabelle"), 125_000, Load(chars=1, turns=1), "no"),
        # seed 003: over 80 % of 50,000 tokens of history, or more than 50 messages with the answer
        (BUDGET, 50_000, Load(tokens=40_000, messages=49), "no"),
        (BUDGET, 50_000, Load(tokens=40_001, messages=2), "later"),
        (BUDGET, 50_000, Load(tokens=1, messages=50), "later"),
        (BUDGET, 125_000, Load(tokens=40_001, messages=2), "now"),
        # off: never by itself
        (CompactionRules(preset="off"), 1_000_000, Load(10**6, 10**6, 10**6, 10**6), "no"),
    ],
)
def test_when_a_preset_compacts(
    rules: CompactionRules, request_: int, load: Load | None, expected: str
) -> None:
    """Each seed's numbers, and whether the turn waits for it."""
    assert due(rules, request=request_, load=load) == expected


@given(st.integers(1, 10**6), st.integers(0, 10**6), st.integers(0, 10**6), st.integers(1, 10**6))
def test_reserve_keep_and_answer_take_a_quarter_of_the_window_at_most(
    window: int, reserve: int, keep: int, output: int
) -> None:
    """So that any window has room for all three and the conversation."""
    rules = CompactionRules(
        window=window, reserve_tokens=reserve, keep_recent_tokens=keep, max_output_tokens=output
    )

    assert max(rules.reserve, rules.keep, rules.output) <= window / 4
    assert rules.reserve in (reserve, window // 4)


def test_the_weight_of_a_history() -> None:
    """Messages since the newest overlay's first kept one; no records, nothing withdrawn."""
    lines = [user(filled("old", 500)), said("old"), user("kept"), said("kept too")]
    lines += [record("overlay", "summary", first_kept=2), user("secret"), said("secret")]
    lines += [record("undo", **{"from": 5}), user("new"), said("newer"), said("and more")]

    load = measure(lines, start=0, history_start=0, rules=CompactionRules(), now=NOW)

    assert load == Load(tokens=8, messages=5, chars=4 + 8 + 3 + 5 + 8, turns=2, since_s=120.0)
    assert measure(lines[2:], start=2, history_start=0, rules=CompactionRules(), now=NOW) == load


def sized(*tokens: int) -> list[dict[str, Any]]:
    return [{"role": "user", "content": "x" * 4 * count} for count in tokens]


def test_the_first_request_is_estimated_locally() -> None:
    """All messages and the descriptions of the tools."""
    tool = ToolSpec("look", "y" * 34, {})

    assert estimate_request(sized(10, 20), [], basis=HERE, last=None).tokens == 30
    assert estimate_request(sized(10, 20), [tool], basis=HERE, last=None).tokens == 40
    assert estimate_request(sized(10), [], basis=HERE, last=None, chars_per_token=3.5).tokens == 12


def test_later_ones_are_what_was_counted_and_an_estimate_of_what_came_since() -> None:
    """The provider counted 100 for what looked like 30: the next one has 100 and what is new."""
    first = estimate_request(sized(10, 20), [], basis=HERE, last=None)
    last = first.counted(Usage(prompt=100, completion=7))

    second = estimate_request(sized(10, 20, 5), [], basis=HERE, last=last)

    assert (second.tokens, second.local) == (105, 35)
    third = estimate_request(sized(10, 20, 5, 8), [], basis=HERE, last=second.counted(Usage(prompt=111)))
    assert third.tokens == 119


@pytest.mark.parametrize(
    "stale",
    [
        # An overlay, an undo or a compact line came.
        CountBasis(HERE.session_id, HERE.model, 0, 4),
        # Consolidation moved the beginning.
        CountBasis(HERE.session_id, HERE.model, 2, -1),
        CountBasis(HERE.session_id, "anthropic/claude-opus-4-5", 0, -1),
        CountBasis("01ARZ3NDEKTSV4RRFFQ69G5FAX", HERE.model, 0, -1),
    ],
)
def test_a_stale_count_is_never_trusted(stale: CountBasis) -> None:
    """Whatever was counted before the history, the model or the session changed, all is estimated anew."""
    last = Estimate(120_000, 30, HERE)

    assert estimate_request(sized(10, 20, 5), [], basis=stale, last=last).tokens == 35


def test_a_count_of_more_than_is_sent_now_is_not_trusted() -> None:
    """Where something was left out since (a long result cut short), the count says nothing."""
    last = Estimate(120_000, 31, HERE)

    assert estimate_request(sized(10, 20), [], basis=HERE, last=last).tokens == 30


def test_a_provider_that_counts_nothing_is_not_believed() -> None:
    """No usage, or none of the prompt: the next request is estimated whole."""
    first = estimate_request(sized(10), [], basis=HERE, last=None)

    assert first.counted(None) is None
    assert first.counted(Usage()) is None


@pytest.mark.parametrize(
    ("name", "tokens"),
    [
        ("gpt-4o", 128_000),
        ("gpt-4o-mini", 128_000),
        ("gpt-4.1", 1_000_000),
        ("gpt-4.1-mini", 1_000_000),
        ("claude-sonnet-4-20250514", 200_000),
        ("claude-opus-4-20250514", 200_000),
        ("claude-haiku-3-20250307", 200_000),
        ("openai/gpt-4o", 128_000),
        ("openrouter/anthropic/claude-sonnet-4", 200_000),
        ("openrouter/anthropic/claude-sonnet-4.6:free", 1_000_000),
        ("bedrock/us.anthropic.claude-sonnet-4-20250514-v1:0", 200_000),
        ("vertex_ai/claude-opus-4-5@20251101", 200_000),
        ("gpt-4o-2024-08-06", 128_000),
        ("gpt-4-0613", 8_192),
        ("gpt-4-1106-preview", 128_000),
        ("GPT-5-mini-2025-08-07", 272_000),
        ("gemini/gemini-2.5-pro-preview-05-06", 1_048_576),
        ("claude-3-5-haiku-latest", 200_000),
        ("gpt-4o-extended", 0),
        ("ollama/llama3:8b", 0),
        ("", 0),
        ("/", 0),
    ],
)
def test_the_table_of_windows(name: str, tokens: int) -> None:
    """Seed 002's seven names with its figures; providers' prefixes and dates make no difference."""
    assert in_table(name) == tokens


async def test_the_window_is_configured_or_in_the_table_or_asked_for_or_128000() -> None:
    """In this order; who knows nothing says 0."""
    asked: list[str] = []

    async def ask(name: str) -> int:
        asked.append(name)
        return 32_768 if name == "mine/known" else 0

    assert await window_of("gpt-4o", configured=9_000, ask=ask) == 9_000
    assert await window_of("gpt-4o", ask=ask) == 128_000
    assert asked == []
    assert await window_of("mine/known", ask=ask) == 32_768
    assert await window_of("mine/other", ask=ask) == UNKNOWN == 128_000
    assert await window_of("mine/other") == UNKNOWN
    assert asked == ["mine/known", "mine/other"]
