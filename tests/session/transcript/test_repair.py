"""Whatever lies in a transcript, what goes to a provider is legal."""

from __future__ import annotations

import copy
import json
import math
from types import MappingProxyType
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from session.transcript.repair import LOST_RESULT, is_clean, plain_text, repair, truncate_tool_results
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


# -- fields ----------------------------------------------------------------------------------------------


IMAGE = {"type": "image_url", "image_url": {"url": "data:,A"}}
AUDIO = {"type": "input_audio", "input_audio": {"data": "A"}}
FILE = {"type": "file", "file": {"file_id": "f"}}


def one(message: dict[str, Any], **options: Any) -> dict[str, Any]:
    """Repair one message that is followed by an answer, and return what is left of it."""
    [fixed, _] = repair([message, said("end")], **options)
    return fixed


@pytest.mark.parametrize(
    ("content", "text"),
    [
        ("x\ud800", "x\ufffd"),
        (None, ""),
        (7, "7"),
        ({"a": "\ud800"}, '{"a": "\ufffd"}'),
        (["a", {"text": "b"}, {"type": "text", "text": ""}, 3, {"type": "odd"}, {"text": 5}], "a\nb"),
        ([IMAGE, AUDIO, FILE, {"type": "input_image"}], "[image]\n[audio]\n[file]\n[image]"),
        ([{"type": ["image_url"]}], ""),
    ],
)
def test_the_text_of_a_content(content: object, text: str) -> None:
    assert plain_text(content) == text


@pytest.mark.parametrize(
    ("content", "sent"),
    [
        ([IMAGE, "words"], [IMAGE, {"type": "text", "text": "words"}]),
        ([AUDIO, FILE], [AUDIO, FILE]),
        ([{"type": "text", "text": "a"}, {"text": "b"}, "c"], "a\nb\nc"),
        # Of a block that is not whole its name stays, which is a text like any other.
        ([{"type": "image_url", "image_url": {"url": ""}}, "a"], "[image]\na"),
        ([{"type": "image_url", "image_url": {"url": 3}}], "[image]"),
        ([{"type": "image_url", "image_url": "data:,A"}], "[image]"),
        ([{"type": "file", "file": "f"}, {"type": "input_audio"}], "[file]\n[audio]"),
        ([IMAGE, {"type": "odd"}, {"type": "text", "text": ""}], [IMAGE]),
        ({"a": 1}, '{"a": 1}'),
    ],
)
def test_what_a_user_s_blocks_become(content: object, sent: object) -> None:
    assert one({"role": "user", "content": content})["content"] == sent
    if isinstance(sent, list):
        assert isinstance(one({"role": "system", "content": content})["content"], str)


@pytest.mark.parametrize(
    ("name", "sent"),
    [("ada", "ada"), ("a" * 64, "a" * 64), ("a" * 65, None), ("a b", None), ("", None), (3, None)],
)
def test_a_name_is_sent_where_every_provider_takes_it(name: object, sent: str | None) -> None:
    """That of a tool is made to fit, since its result needs none."""
    assert one(user() | {"name": name}).get("name") == sent
    assert one({"role": "system", "content": "x", "name": name}).get("name") == sent
    assert "name" not in one(said() | {"name": name})


def test_the_name_of_a_tool_is_made_to_fit() -> None:
    call = {"id": "a", "function": {"name": "ls -la" + "x" * 99, "arguments": "{}"}}
    answer = result("a") | {"name": "ls -la"}
    nameless = {"role": "tool", "tool_call_id": "a", "name": 3, "content": "ok"}

    legal = repair([{"role": "assistant", "content": "", "tool_calls": [call]}, answer])
    assert legal[0]["tool_calls"][0]["function"]["name"] == "ls_-la" + "x" * 58
    assert legal[1]["name"] == "ls_-la"
    assert "name" not in repair([asked("a"), nameless])[1]


def test_calls_that_are_no_calls_are_left_out() -> None:
    good = asked("a")["tool_calls"][0]
    odd = [
        None,
        {"id": "b"},
        {"id": "c", "function": "ls"},
        {"id": "", "function": {"name": "ls"}},
        {"id": True, "function": {"name": "ls"}},
        {"id": "d", "function": {"name": ""}},
        {"id": "e", "function": {}},
        good | {"function": {"name": "again", "arguments": "{}"}},
    ]

    legal = repair([{"role": "assistant", "content": "x", "tool_calls": [good, *odd, good | {"id": 7}]}])

    assert [call["id"] for call in legal[0]["tool_calls"]] == ["a", "7"]
    assert legal[0]["tool_calls"][0] == good
    assert legal[0]["content"] == "x"
    for calls in ("x", {}, [None], None):
        assert one({"role": "assistant", "content": "x", "tool_calls": calls}) == said("x")
        assert repair([{"role": "assistant", "content": " ", "tool_calls": calls}]) == []


def test_a_result_finds_its_call_by_a_number_too() -> None:
    assert repair([asked("7"), result("x") | {"tool_call_id": 7}]) == [asked("7"), result("7")]
    assert repair([asked("True"), result("x") | {"tool_call_id": True}]) == [asked("True"), lost("True")]


def test_a_call_that_can_only_be_read_is_a_call() -> None:
    """Whoever keeps messages unchangeable hands them over so, down to the function."""
    call = asked("a")["tool_calls"][0]
    fixed = MappingProxyType({**call, "function": MappingProxyType(call["function"])})

    assert repair([MappingProxyType({**asked("a"), "tool_calls": [fixed]})])[0] == asked("a")


@pytest.mark.parametrize("size", [10, 890, 900, 910, 10_000])
def test_arguments_of_any_length_stay_where_they_are_an_object(size: int) -> None:
    def sent(text: str) -> str:
        arguments: str = repair([asked("a", arguments=text)])[0]["tool_calls"][0]["function"]["arguments"]
        return arguments

    object_, array = f'{{"a": "{"x" * size}"}}', f'["{"x" * size}"]'
    assert sent(object_) == object_
    assert sent(array) == json.dumps({"raw": array})


@pytest.mark.parametrize(
    ("text", "clean"),
    [("", True), ("abc", True), ("ü😀", True), ("\ud800", False), ("a\udfffü", False)],
)
def test_a_text_with_half_a_character_alone_cannot_be_sent(text: str, clean: bool) -> None:
    assert is_clean(text) == clean
    assert (plain_text(text) == text) == clean


@pytest.mark.parametrize(
    ("arguments", "sent"),
    [
        ([1], '{"raw": "[1]"}'),
        (0, '{"raw": "0"}'),
        (False, '{"raw": "false"}'),
        ('{"a": NaN}', '{"raw": "{\\"a\\": NaN}"}'),
        ({"a": math.inf}, '{"raw": "unreadable"}'),
        ({"a": "\ud800"}, '{"a": "\ufffd"}'),
        ('{"a": "\ud800"}', '{"a": "\ufffd"}'),
        ({}, "{}"),
        (None, "{}"),
        ("", "{}"),
        ("{oops", '{"raw": "{oops"}'),
        ("[" * 10**5, '{"raw": "' + "[" * 10**5 + '"}'),
    ],
)
def test_arguments_of_any_kind_become_an_object(arguments: Any, sent: str) -> None:
    assert repair([asked("a", arguments=arguments)])[0]["tool_calls"][0]["function"]["arguments"] == sent


def test_what_a_model_thought_goes_back_as_it_was() -> None:
    """Where it is well-formed; it alone is no answer."""
    thought = {"reasoning_content": "hm\ud800", "thinking_blocks": [{"type": "thinking"}]}

    assert one(said() | thought) == said() | thought | {"reasoning_content": "hm\ufffd"}
    for odd in ({"reasoning_content": ""}, {"reasoning_content": 3}):
        assert one(said() | odd) == said()
    for blocks in ([], "x", [{"type": "thinking"}, "x"]):
        assert one(said() | {"thinking_blocks": blocks}) == said()
    assert repair([said("") | thought]) == []


def test_a_user_who_says_nothing_stays_where_nothing_follows_alone() -> None:
    """Be it here or in the messages behind these; system messages never do."""
    silent = user(" \n")

    assert repair([silent]) == [silent]
    assert repair([silent, said()]) == [silent, said()]
    assert repair([silent, user("x")]) == [user("x")]
    assert repair([silent], more_follow=True) == []
    assert repair([user("x"), {"role": "system", "content": " "}]) == [user("x")]
    assert repair([{"role": ["user"], "content": "x"}, {"content": "x"}, user("x")]) == [user("x")]


def test_results_stand_behind_their_call_in_the_order_of_the_calls_that_are_lost() -> None:
    history = [asked("a", "b", "c"), result("c"), result("a"), said()]

    assert repair(history) == [asked("a", "b", "c"), result("c"), result("a"), lost("b"), said()]
    assert repair([asked("a", "b", "c"), result("a"), result("c")]) == [
        asked("a", "b", "c"),
        result("a"),
        lost("b"),
        result("c"),
    ]
    assert repair([asked("a", "b"), said()]) == [asked("a", "b"), lost("a"), lost("b"), said()]


def test_an_id_gets_the_first_number_that_is_free() -> None:
    legal = repair([asked("a"), asked("a"), asked("a")], taken=["a_2"])

    assert [each["tool_calls"][0]["id"] for each in legal if "tool_calls" in each] == ["a", "a_3", "a_4"]
    assert [each["content"] for each in legal if each["role"] == "tool"] == [LOST_RESULT] * 3


def test_which_results_are_cut_and_how_they_are_named() -> None:
    """The message's own name, that of its call, or none; the last two stay unless told otherwise."""
    long = "x" * 100
    nameless = {"role": "tool", "content": long}
    history = [asked("a"), nameless | {"tool_call_id": "a"}, nameless, *(result(i, long) for i in "xyz")]

    def contents(**options: Any) -> list[str]:
        return [each["content"] for each in truncate_tool_results(history, **options)[1:]]

    by_call, by_none = "[ls: truncated, was 100 chars]", "[tool: truncated, was 100 chars]"
    assert contents() == [by_call, by_none, by_call, long, long]
    assert contents(keep=0) == [by_call, by_none, by_call, by_call, by_call]
    assert contents(keep=9) == [long] * 5
    assert contents(running_from=5) == [by_call, by_none, long, long, long]
    assert contents(keep=0, running_from=0) == [long] * 5


def test_a_result_is_cut_where_that_makes_it_shorter_and_once() -> None:
    placeholder = "[ls: truncated, was 31 chars]"

    def cut(text: str) -> str:
        content: str = truncate_tool_results([asked("a"), result("a", text)], keep=0)[1]["content"]
        return content

    assert cut("x" * 29) == "x" * 29
    assert cut("x" * 31) == placeholder
    assert cut(placeholder) == placeholder
    long = f"[{'n' * 64}: truncated, was 5 chars]"
    assert cut(long) == long
    assert cut(f"[{'n' * 65}: truncated, was 5 chars]") == "[ls: truncated, was 91 chars]"
