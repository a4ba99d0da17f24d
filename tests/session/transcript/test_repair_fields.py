"""What becomes of each field of a message on its way to a provider."""

from __future__ import annotations

import json
import math
from types import MappingProxyType
from typing import Any

import pytest

from session.transcript.repair import LOST_RESULT, is_clean, plain_text, repair, truncate_tool_results
from tests.session.transcript.test_repair import asked, lost, result, said, user

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
    for calls in ("x", {}, [None]):
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
