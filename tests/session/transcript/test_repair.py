"""Whatever lies in a transcript, what goes to a provider is legal."""

from __future__ import annotations

import copy
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from session.transcript.repair import LOST_RESULT, plain_text, repair, truncate_tool_results
from tests.session.wild_lines import MESSAGES, assert_legal
from tests.support.examples import drawn


def user(text: str = "hello") -> dict[str, Any]:
    return {"role": "user", "content": text}


def said(text: str | None = "hi") -> dict[str, Any]:
    return {"role": "assistant", "content": text}


def asked(*ids: str, arguments: Any = "{}") -> dict[str, Any]:
    calls = [{"id": i, "type": "function", "function": {"name": "ls", "arguments": arguments}} for i in ids]
    return {"role": "assistant", "content": None, "tool_calls": calls}


def result(call_id: str, text: str = "ok") -> dict[str, Any]:
    return {"role": "tool", "tool_call_id": call_id, "name": "ls", "content": text}


def lost(call_id: str) -> dict[str, Any]:
    return {"role": "tool", "tool_call_id": call_id, "content": LOST_RESULT}


@given(MESSAGES)
@drawn(400)
def test_any_sequence_becomes_legal(messages: list[dict[str, Any]]) -> None:
    """Any sequence in, a legal one out; the input is untouched, and repairing again changes nothing."""
    before = copy.deepcopy(messages)

    legal = repair(messages)

    assert messages == before
    assert_legal(legal)
    assert repair(legal) == legal


@given(MESSAGES)
@drawn(200)
def test_nothing_is_made_up_and_the_order_stays(messages: list[dict[str, Any]]) -> None:
    """Without the lost results, what comes out is a subsequence of what went in."""
    marked = [{**message, "content": f"m{i}"} for i, message in enumerate(messages)]

    texts = [message["content"] for message in repair(marked) if message["content"] != LOST_RESULT]

    places = [int(text[1:]) for text in texts]
    assert places == sorted(set(places))


@given(MESSAGES, st.integers(0, 4), st.none() | st.integers(0, 12))
@drawn(200)
def test_truncation_keeps_the_shape(messages: list[dict[str, Any]], keep: int, running: int | None) -> None:
    """Truncation changes only contents of tool results, leaves its input alone, and settles at once."""
    legal = repair(messages)
    before = copy.deepcopy(legal)

    shorter = truncate_tool_results(legal, keep=keep, running_from=running)

    assert legal == before
    assert_legal(shorter)
    assert [message["role"] for message in shorter] == [message["role"] for message in legal]
    assert truncate_tool_results(shorter, keep=keep, running_from=running) == shorter


def test_lost_result_has_the_fixed_text() -> None:
    """The made-up result is the JSON that readers of other systems know."""
    assert LOST_RESULT == '{"error": "Tool result unavailable (recovered from broken history)"}'


def test_leading_orphans_are_left_out() -> None:
    """Results at the start, whose call was cut off, are not sent."""
    assert repair([result("a"), result("b"), user(), said()]) == [user(), said()]


def test_a_missing_result_is_made_up_in_its_place() -> None:
    """Each call of a parallel round without a result gets one where it belongs."""
    legal = repair([user(), asked("a", "b", "c"), result("b"), user("next")])

    assert legal == [user(), asked("a", "b", "c"), lost("a"), result("b"), lost("c"), user("next")]


def test_a_call_at_the_end_gets_its_result() -> None:
    """A file that ends on a call is legal too."""
    assert repair([user(), asked("a")]) == [user(), asked("a"), lost("a")]


def test_an_orphan_in_the_middle_is_left_out() -> None:
    """A result that nobody asked for costs itself and nothing else."""
    assert repair([user(), said(), result("zz"), user("more")]) == [user(), said(), user("more")]


def test_a_result_after_the_next_message_is_an_orphan() -> None:
    """A result that comes too late is left out, and its call gets a made-up one."""
    assert repair([user(), asked("a"), user("now"), result("a")]) == [
        user(),
        asked("a"),
        lost("a"),
        user("now"),
    ]


def test_the_first_of_two_results_wins() -> None:
    """A second result of the same call is left out."""
    assert repair([user(), asked("a"), result("a", "first"), result("a", "again"), said()]) == [
        user(),
        asked("a"),
        result("a", "first"),
        said(),
    ]


def test_ids_used_again_are_paired_by_place() -> None:
    """The same id in two rounds belongs to two calls, and no two calls of a request have one id."""
    first = [user(), asked("a", "a_2"), result("a", "one"), result("a_2", "two"), said()]
    second = [user(), asked("a", "b"), result("b", "three"), result("a", "four"), said()]

    renamed = [user(), asked("a_3", "b"), result("b", "three"), result("a_3", "four"), said()]

    assert repair(first + second) == first + renamed
    assert repair(second, taken=["a", "a_2"]) == renamed


def test_ids_that_are_one_to_a_strict_provider_are_told_apart() -> None:
    """Some write every odd character of an id as a line; what LiteLLM hides in an id keeps its place."""
    hidden = "c__thought__c2ln"

    legal = repair([user(), asked("a.b", "a b", hidden), user("more"), asked(hidden)])

    ids = [call["id"] for message in legal for call in message.get("tool_calls", ())]
    assert ids == ["a.b", "a b_2", hidden, "c_2__thought__c2ln"]


def test_what_is_left_out_does_not_part_call_and_result() -> None:
    """Empty assistants and unknown roles between a call and its result are passed over."""
    history = [user(), asked("a"), said(""), {"role": "function", "content": "x"}, result("a"), said(None)]

    assert repair(history) == [user(), asked("a"), result("a")]


@pytest.mark.parametrize(
    ("arguments", "sent"),
    [
        ({"path": "ü"}, '{"path": "ü"}'),
        ('{"path": 1}', '{"path": 1}'),
        ("{oops", '{"raw": "{oops"}'),
        ("[1]", '{"raw": "[1]"}'),
        (None, "{}"),
        ("", "{}"),
    ],
)
def test_arguments_become_a_json_object(arguments: Any, sent: str) -> None:
    """Objects are written out, objects' text stays as it is, anything else is wrapped."""
    legal = repair([user(), asked("a", arguments=arguments), result("a")])

    assert legal[1]["tool_calls"][0]["function"]["arguments"] == sent


def test_null_tool_calls_are_dropped() -> None:
    """An assistant with ``tool_calls: null`` is an ordinary one."""
    assert repair([user(), {**said(), "tool_calls": None}]) == [user(), said()]


def test_block_content() -> None:
    """Texts of blocks reach the model; pictures stay in user messages, and are named elsewhere."""
    image = {"type": "image_url", "image_url": {"url": "data:image/png;base64,AAAA"}}
    text = {"type": "text", "text": "x"}

    assert repair([{"role": "user", "content": [text, image]}])[0]["content"] == [text, image]
    assert repair([{"role": "user", "content": [text, text]}])[0]["content"] == "x\nx"
    assert plain_text([text, image]) == "x\n[image]"


def test_a_user_who_says_nothing_is_left_out_unless_newest() -> None:
    """Providers refuse empty messages; the newest one is what is asked."""
    assert repair([user(""), said(), {"role": "user", "content": None}]) == [said(), user("")]


def test_half_characters_are_replaced() -> None:
    """A lone surrogate, which cannot be sent, becomes U+FFFD."""
    assert repair([user("a\ud800b")]) == [user("a\ufffdb")]


def test_old_results_are_truncated() -> None:
    """All but the last two long results are cut; those of the running turn neither shrink nor count."""
    long = "x" * 1000
    history = [
        message
        for i in "abcd"
        for message in (user(), asked(i), {k: v for k, v in result(i, long).items() if k != "name"})
    ]

    shorter = truncate_tool_results(history, keep=2, running_from=9)

    contents = [message["content"] for message in shorter if message["role"] == "tool"]
    assert contents == ["[ls: truncated, was 1000 chars]", long, long, long]
    assert history[2]["content"] == long


def test_a_result_shorter_than_its_placeholder_stays() -> None:
    """Cutting never makes a result longer."""
    history = [user(), asked("a"), result("a", "tiny"), asked("b"), result("b", "y" * 99)]

    assert truncate_tool_results(history, keep=0)[2]["content"] == "tiny"
    assert truncate_tool_results(history, keep=0)[4]["content"] == "[ls: truncated, was 99 chars]"
