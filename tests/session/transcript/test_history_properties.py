"""Whatever lies in a transcript, in every mode: what is sent is legal, in order, and nothing is made up."""

from __future__ import annotations

import copy
import re
from collections.abc import Sequence
from functools import partial
from itertools import pairwise
from typing import Any

from hypothesis import assume, given
from hypothesis import strategies as st

from session.context.relevance import Relevance, chosen, compared
from session.models.tokens import estimate_messages
from session.transcript.history import (
    SUMMARY_HEAD,
    HistoryWindow,
    Select,
    before_turn,
    is_message,
    is_record,
    newest_overlay,
    visible,
)
from session.transcript.repair import LOST_RESULT, plain_text, repair, truncate_tool_results
from tests.session.wild_lines import JUNK, LENGTHS, LINES, assert_legal
from tests.support.examples import drawn
from tests.support.guarantee import guarantee

pytestmark = guarantee(
    "sessions",
    "Each request is valid, in order and free of invented content, whatever the transcript contains.",
)

Lines = list[dict[str, Any]]

RULES = st.builds(
    Relevance,
    candidates=st.integers(1, 30),
    always=st.integers(0, 3),
    most=st.integers(0, 20),
    threshold=st.just(0.45),
)
SCORES = st.none() | st.lists(st.sampled_from([-0.1, 0.44, 0.45, 0.9]), min_size=1, max_size=9)
WINDOWS = st.builds(HistoryWindow, messages=st.integers(1, 12), tokens=st.integers(1, 200))
MODES = st.one_of(st.none(), WINDOWS, st.tuples(RULES, SCORES))
OFFSETS = st.integers(-2, 24) | JUNK
RUNNING = st.sampled_from([None, "m0", "m1", "m2", "unknown"])
UNCUT = 10_000
TRACE = re.compile(r"<(\d+)>")


def similarity_of(texts: Sequence[str], scores: Sequence[float] | None) -> dict[str, float] | None:
    if scores is None:
        return None
    return {text: scores[i % len(scores)] for i, text in enumerate(texts)}


def sent_in(lines: Lines, offset: Any, running: str | None, mode: Any, *, keep: int = 2) -> Lines:
    """Build a history as a request does, in the mode that was drawn."""
    select: Select | None = None
    if isinstance(mode, tuple):
        rules, scores = mode
        texts = compared(before_turn(lines, last_consolidated=offset, running_id=running), rules)
        select = partial(chosen, rules=rules, similarity=similarity_of(texts, scores))
    window = mode if isinstance(mode, HistoryWindow) else None
    return visible(
        lines, last_consolidated=offset, running_id=running, keep_results=keep, window=window, select=select
    )


def traced(lines: Lines) -> Lines:
    """Give every line its place as its content, where it says anything."""
    return [
        {**line, "content": f"<{i}>"} if plain_text(line.get("content")).strip() else line
        for i, line in enumerate(lines)
    ]


def is_blank(message: dict[str, Any]) -> bool:
    return not str(message["content"]).strip()


def places(messages: Lines) -> list[int]:
    return [int(found[1]) for message in messages if (found := TRACE.fullmatch(str(message["content"])))]


@given(LINES, OFFSETS, RUNNING, MODES, st.integers(0, 3))
@drawn(600)
def test_any_transcript_becomes_a_legal_history(
    lines: Lines, offset: Any, running: str | None, mode: Any, keep: int
) -> None:
    """It begins with a person or the summary, the input stays as it was, repairing again changes nothing."""
    before = copy.deepcopy(lines)

    sent = sent_in(lines, offset, running, mode, keep=keep)

    assert lines == before
    assert_legal(sent)
    assert [message["role"] for message in sent if message["role"] != "system"][:1] in ([], ["user"])
    assert repair(sent) == sent
    assert sent_in(lines, offset, running, mode, keep=keep) == sent


@given(LINES, OFFSETS, RUNNING, MODES)
@drawn(600)
def test_nothing_is_made_up_and_the_order_stays(
    lines: Lines, offset: Any, running: str | None, mode: Any
) -> None:
    """Beside the summary and lost results every message is a line that may be sent, in the file's order."""
    lines = traced(lines)
    messages = [line for line in lines if is_message(line)]
    overlay = newest_overlay(messages)

    sent = sent_in(lines, offset, running, mode, keep=UNCUT)

    rest = sent[1:] if overlay is not None else sent
    found = places(rest)
    silent = [message for message in rest if not TRACE.fullmatch(str(message["content"]))]
    assert (overlay is None) == (not sent or not str(sent[0]["content"]).startswith(SUMMARY_HEAD))
    assert found == sorted(set(found))
    assert not any(lines[i].get("kind") and is_record(lines[i]) for i in found)
    assert all(message["content"] in (None, LOST_RESULT) or is_blank(message) for message in silent)
    if overlay is not None:
        kept = {id(line) for line in messages[overlay["first_kept"] :]}
        assert all(id(lines[i]) in kept for i in found)
    assert not set(found) & withdrawn(lines)


def withdrawn(lines: Lines) -> set[int]:
    """Find the lines that an ``undo`` takes back, by its words: from the one it names to itself."""
    of_message = [i for i, line in enumerate(lines) if is_message(line)]
    gone: set[int] = set()
    for n, i in enumerate(of_message):
        start = lines[i].get("from")
        if lines[i].get("kind") == "undo" and is_record(lines[i]) and type(start) is int and 0 <= start <= n:
            gone |= set(of_message[start:n])
    return gone


@given(LINES, LINES, OFFSETS, MODES)
@drawn(400)
def test_the_running_turn_is_sent_whole(before: Lines, since: Lines, offset: Any, mode: Any) -> None:
    """No mode cuts the turn that runs: all that ``all`` sends of it, every mode does."""
    question = {"role": "user", "content": "now", "message_id": "running"}
    lines = traced([*before, question, *since])
    # A turn runs only while its question stands.
    assume(len(before) not in withdrawn(lines))

    whole = [i for i in places(sent_in(lines, offset, "running", None)) if i >= len(before)]

    sent = places(sent_in(lines, offset, "running", mode))
    assert [i for i in sent if i >= len(before)] == whole


@given(LINES, OFFSETS, RUNNING, WINDOWS)
@drawn(300)
def test_mode_last_stays_within_its_window(
    lines: Lines, offset: Any, running: str | None, window: HistoryWindow
) -> None:
    """What is over the tokens or the messages is the running turn alone."""
    lines = traced(lines)
    older = before_turn(lines, last_consolidated=offset, running_id=running)

    sent = sent_in(lines, offset, running, window)

    opening = 1 if sent and str(sent[0]["content"]).startswith(SUMMARY_HEAD) else 0
    of_older = {str(line["content"]) for line in older if line.get("content")}
    count = sum(1 for place in places(sent[opening:]) if f"<{place}>" in of_older)
    assert count <= window.messages
    if count:
        assert estimate_messages(sent) <= window.tokens


@guarantee("sessions", "History mode `relevant` sends complete exchanges that are similar to the message.")
@given(LINES, OFFSETS, RUNNING, RULES, SCORES)
@drawn(500)
def test_mode_relevant_sends_whole_exchanges(
    lines: Lines, offset: Any, running: str | None, rules: Relevance, scores: Sequence[float] | None
) -> None:
    """The newest ones always, the others only near, among the candidates and within the cap; none torn."""
    older = before_turn(lines, last_consolidated=offset, running_id=running)
    similarity = similarity_of(compared(older, rules), scores)

    picked = chosen(older, rules, similarity)

    starts = [i for i, line in enumerate(older) if line["role"] == "user" or i == 0]
    exchanges = [range(a, b) for a, b in pairwise([*starts, len(older)])]
    newest = exchanges[len(exchanges) - min(rules.always, len(exchanges)) :]
    sent = [exchange for exchange in exchanges if set(exchange) & set(picked)]
    assert picked == [place for exchange in sent for place in exchange]
    assert sent[len(sent) - len(newest) :] == newest
    assert len(picked) <= max(rules.most, sum(map(len, newest)))
    for exchange in sent[: len(sent) - len(newest)]:
        assert exchange.start >= len(older) - rules.candidates
        if similarity is not None:
            near = max(similarity.get(text, -1) for text in said_in(older, exchange))
            assert near >= rules.threshold
    if similarity is None:
        assert sent == exchanges[len(exchanges) - len(sent) :]


def said_in(older: Sequence[Any], exchange: range) -> list[str]:
    """List what a person and the model said in an exchange, by asking what would be compared of it alone."""
    return compared([older[i] for i in exchange], Relevance(candidates=len(exchange), always=0))


@given(LINES, LINES, OFFSETS, st.integers(0, 3))
@drawn(400)
def test_only_old_tool_results_are_truncated(before: Lines, since: Lines, offset: Any, keep: int) -> None:
    """The last ones before the running turn stay whole, those of the turn too; none becomes longer."""
    question = {"role": "user", "content": "now", "message_id": "running"}
    lines = [*before, question, *[line for line in since if line.get("kind") != "undo"]]
    full = sent_in(lines, offset, "running", None, keep=UNCUT)

    sent = sent_in(lines, offset, "running", None, keep=keep)

    older = next((i for i, message in enumerate(full) if message["content"] == "now"), 0)
    results = [i for i, message in enumerate(full[:older]) if message["role"] == "tool"]
    cut = set(results[: max(len(results) - keep, 0)])
    for i, (whole, short) in enumerate(zip(full, sent, strict=True)):
        if i in cut and len(whole["content"]) > len(placeholder(whole)):
            assert short == {**whole, "content": placeholder(whole)}
        else:
            assert short == whole
    assert truncate_tool_results(sent, keep=keep, running_from=older) == sent


def placeholder(result: dict[str, Any]) -> str:
    return f"[{result.get('name', 'ls')}: truncated, was {len(result['content'])} chars]"


@given(st.lists(LENGTHS, max_size=6), st.integers(0, 3))
def test_a_result_that_was_cut_is_not_cut_again(contents: list[str], keep: int) -> None:
    """Whatever follows, a placeholder stays what it is."""
    messages = [{"role": "tool", "tool_call_id": "a", "name": "ls", "content": text} for text in contents]

    once = truncate_tool_results(messages, keep=keep)

    assert truncate_tool_results(once, keep=0) == truncate_tool_results(messages, keep=0)
