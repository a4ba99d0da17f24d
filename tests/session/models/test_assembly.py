"""An answer that is put together from what a server says, whole or piece by piece."""

from __future__ import annotations

import json
from math import ceil
from types import SimpleNamespace
from typing import Any, cast

import pytest

from session.errors import BadAnswer, ModelAway, ModelFailed
from session.models import library
from session.models.assembly import Assembly
from session.models.llm import LiteLLM
from session.models.model import OnDelta, Prompt, ToolSpec, Usage
from session.models.tokens import IMAGE_CHARS, chars_of, estimate_messages, estimate_tools
from tests.contracts.models import prompt
from tests.session.conftest import both_ways
from tests.support.model_server import ModelServer, Reply


def piece(text: Any = None, **fields: Any) -> Any:
    delta = SimpleNamespace(content=text, **fields)
    return SimpleNamespace(choices=[SimpleNamespace(delta=delta, finish_reason=None)])


def call(name: str | None, arguments: Any, *, id_: Any = None, index: int | None = None) -> Any:
    function = SimpleNamespace(name=name, arguments=arguments)
    return piece(tool_calls=[SimpleNamespace(id=id_, index=index, function=function)])


def counted(prompt: Any, completion: Any) -> Any:
    usage = SimpleNamespace(prompt_tokens=prompt, completion_tokens=completion)
    return SimpleNamespace(choices=[], usage=usage)


@pytest.mark.parametrize(
    ("pieces", "shown"),
    [
        (["a \ud83d", "\ude00 b"], ["a ", "😀 b"]),
        (["a\ud83d"], ["a"]),
        (["\ud83d", "\ude00"], ["", "😀"]),
        (["a\ud83d", "b"], ["a", "\ufffdb"]),
        (["a", "\ude00b"], ["a", "\ufffdb"]),
        (["a\ud83d", "\ud83d", "\ude00"], ["a", "\ufffd", "😀"]),
        (["😀", "ü"], ["😀", "ü"]),
    ],
)
def test_a_character_that_was_cut_in_two_is_shown_whole(pieces: list[str], shown: list[str]) -> None:
    answer = Assembly()

    assert ascii([answer.add(piece(text)) for text in pieces]) == ascii(shown)
    # Half a one at the end is told, too.
    end = "\ufffd" if len(pieces) == 1 else ""
    assert ascii(answer.answer(0.0).text) == ascii("".join(shown) + end)


@both_ways
async def test_half_a_character_becomes_one_that_can_be_sent(
    llm: LiteLLM, server: ModelServer, on_delta: OnDelta | None
) -> None:
    """JSON may hold it, and no queue does: the answer would be lost where it is sent."""
    said = Reply(text="so \ud83d it", reasoning="h\udc00m", tool_calls=[("ls\ud83d", '{"a": "\ud83d"}')])
    server.script.append(said)

    answer = await llm.ask(prompt("q"), on_delta)

    calls = [(call.name, call.arguments) for call in answer.tool_calls]
    assert ascii((answer.text, answer.extra)) == ascii(("so \ufffd it", {"reasoning_content": "h\ufffdm"}))
    assert ascii(calls) == ascii([("ls\ufffd", '{"a": "\ufffd"}')])


@pytest.mark.parametrize(
    ("pieces", "calls"),
    [
        (
            [call("ls", '{"a": 1}', id_="", index=0), call("ls", '{"a": 2}', id_="", index=0)],
            [("ls", '{"a": 1}'), ("ls", '{"a": 2}')],
        ),
        ([call("ls", ""), call("read", '{"a": 2}')], [("ls", ""), ("read", '{"a": 2}')]),
        ([call("ls", '{"a":'), call("ls", '{"b": 2}}')], [("ls", '{"a":{"b": 2}}')]),
        ([call("ls", '{"a": {}'), call("ls", "}")], [("ls", '{"a": {}}')]),
        ([call("ls", '{"a":', id_="x"), call(None, " 1}")], [("ls", '{"a": 1}')]),
        ([call("ls", {"a": "ü"}, id_="x")], [("ls", '{"a": "ü"}')]),
    ],
)
def test_calls_are_told_apart_where_a_provider_numbers_none(
    pieces: list[Any], calls: list[tuple[str, str]]
) -> None:
    answer = Assembly()
    for each in pieces:
        answer.add(each)

    assert [(each.name, each.arguments) for each in answer.answer(0.0).tool_calls] == calls


def test_an_id_that_cannot_be_stored_is_mended() -> None:
    answer = Assembly()
    answer.add(call("ls", "{}", id_=7, index=0))
    answer.add(call("ls", "{}", id_="a\ud800", index=1))

    assert ascii([each.id for each in answer.answer(0.0).tool_calls]) == ascii(["7", "a\ufffd"])


@pytest.mark.parametrize(
    ("prompt_tokens", "completion_tokens", "usage"),
    [
        (None, None, Usage()),
        ("5", "6", Usage()),
        (-5, 6, Usage(completion=6)),
        (10**30, 6.5, Usage()),
        (True, 6, Usage(completion=6)),
    ],
)
def test_what_is_no_count_counts_as_nothing(prompt_tokens: Any, completion_tokens: Any, usage: Usage) -> None:
    answer = Assembly()
    answer.add(piece("hi"))
    answer.add(counted(prompt_tokens, completion_tokens))

    assert answer.answer(0.0).usage == usage


def test_fields_of_another_shape_cost_no_answer() -> None:
    """What some servers put beside the text is no text, or comes in blocks."""
    answer = Assembly()
    odd: Any = {"a": 1}
    answer.add(cast("Any", None))
    answer.add(odd)
    answer.add(piece(reasoning=odd, refusal=odd, thinking_blocks=["b"]))
    answer.add(piece([{"type": "thinking", "thinking": []}, {"type": "text", "text": "hi"}]))

    assert answer.answer(0.0).text == "hi"


def test_an_answer_that_breaks_off_before_its_first_word_is_not_complete() -> None:
    answer = Assembly()
    answer.add(piece(reasoning_content="well"))

    with pytest.raises(ModelFailed, match="broke off"):
        answer.check_ended(ended=False)


async def test_a_count_that_is_odd_makes_no_model_one_without_a_price(server: ModelServer) -> None:
    """Else all its later requests would cost nothing, whatever the caps say."""
    model = LiteLLM(name="openai/gpt-4o-mini", api_base=server.url)
    await model.warm()
    odd = SimpleNamespace(prompt_tokens="many", completion_tokens=None)
    sound = library.loaded().Usage(prompt_tokens=1000, completion_tokens=10, total_tokens=1010)

    costs = [model._cost(model.name, usage) for usage in (odd, sound)]
    await model.close()

    assert costs[0] == 0.0
    assert costs[1] > 0.0


TAGGED = [
    ("<think>a plan</think>\n\nhello", "hello", "a plan"),
    (" \n<THINKING>one</THINKING>\n<think>two</think>hi <think> there", "hi <think> there", "one\ntwo"),
    ("Look:\n<thought>hm</thought>\nhello", "Look:\nhello", "hm"),
    ("Write `<think>` so:\n```xml\n<think>x</think>\n```\nDone", None, ""),
    ("so\n<think> opens a thought", None, ""),
    ("Okay, the person greets.\n</think>\n\nhello", "hello", "Okay, the person greets."),
    ("a < b\n\n<b>c</b>", None, ""),
]


@pytest.mark.parametrize("size", [1, 2, 3, 7, 1000])
@pytest.mark.parametrize(("said", "text", "thoughts"), TAGGED)
def test_thoughts_in_tags_are_no_text(said: str, text: str | None, thoughts: str, size: int) -> None:
    """Tags count where thoughts stand: at the start and at that of a line, outside code, however cut."""
    answer = Assembly()
    for at in range(0, len(said), size):
        answer.add(piece(said[at : at + size]))

    whole = answer.answer(0.0)

    kept = "".join(whole.extra.get("reasoning_content", "").split())
    assert (whole.text, kept) == (said if text is None else text, "".join(thoughts.split()))


def test_no_thought_is_shown_and_no_text_held_back() -> None:
    answer = Assembly()

    pieces = ("<th", "ink>hm", "</thi", "nk>\n", "he", "llo\n", "wor", "ld")
    shown = [answer.add(piece(text)) for text in pieces]

    assert shown == ["", "", "", "", "he", "llo\n", "wor", "ld"]


@both_ways
@pytest.mark.parametrize(
    ("content", "text", "thoughts"),
    [
        ("<think>a plan</think>\n\nhello", "hello", "a plan"),
        ([{"type": "text", "text": "hel"}, {"type": "text", "text": "lo"}], "hello", None),
        (
            [
                {"type": "thinking", "thinking": [{"type": "text", "text": "a plan"}]},
                {"type": "text", "text": "hello"},
            ],
            "hello",
            "a plan",
        ),
    ],
)
async def test_whole_and_streamed_answers_are_read_alike(
    llm: LiteLLM, server: ModelServer, content: Any, text: str, thoughts: str | None, on_delta: OnDelta | None
) -> None:
    server.script.append(Reply(text=content))

    answer = await llm.ask(prompt("q"), on_delta)

    assert (answer.text, answer.extra.get("reasoning_content"), len(server.seen)) == (text, thoughts, 1)


@both_ways
async def test_how_an_answer_ended_is_the_providers_word(
    llm: LiteLLM, server: ModelServer, on_delta: OnDelta | None
) -> None:
    """What is no end of an answer is a broken one, by whatever name; names of OpenAI's ends are known."""
    for finish in ("error", "network_error", "abort"):
        server.script.append(Reply(text="Half an ans", finish=finish))
        with pytest.raises(ModelFailed, match=f"broke off.*{finish}"):
            await llm.ask(prompt("q"), on_delta)
    for finish, end in (("max_tokens", "length"), ("eos", "stop"), ("end_turn", "stop")):
        server.script.append(Reply(text="all", finish=finish))
        assert (await llm.ask(prompt("q"), on_delta)).finish == end


@both_ways
async def test_thoughts_that_use_up_the_tokens_name_the_setting(
    llm: LiteLLM, server: ModelServer, on_delta: OnDelta | None
) -> None:
    """The same request would come to the same end, and is not made again."""
    for said in (Reply(text="", reasoning="well", finish="length"), Reply(text="<think>we", finish="length")):
        server.script.append(said)
        with pytest.raises(BadAnswer) as caught:
            await llm.ask(prompt("q"), on_delta)
        assert "model.max_output_tokens" in caught.value.hint

    assert len(server.seen) == 2


async def test_json_in_place_of_a_stream_is_the_answer(llm: LiteLLM, server: ModelServer) -> None:
    """Some servers know no streams; an error that comes so is one."""
    pieces: list[str] = []
    limit = {"message": "slow down", "code": 429}
    server.script += [
        Reply(text="all of it", kind="unstreamed"),
        Reply(tool_calls=[("ls", "{}"), ("ls", "{}")], kind="unstreamed"),
        Reply(kind="unstreamed", error=limit),
    ]

    assert (await llm.ask(prompt("q"), pieces.append)).text == "all of it"
    assert pieces == ["all of it"]
    assert [call.name for call in (await llm.ask(prompt("q"), pieces.append)).tool_calls] == ["ls", "ls"]
    with pytest.raises(ModelAway) as caught:
        await llm.ask(prompt("q"), pieces.append)
    assert caught.value.cause == "rate_limit"


async def test_an_empty_answer_is_paid_for_and_asked_for_again(llm: LiteLLM, server: ModelServer) -> None:
    pieces: list[str] = []
    server.script += [Reply(text="", usage={"prompt_tokens": 7, "completion_tokens": 1}), Reply(text="hello")]

    answer = await llm.ask(prompt("q"), pieces.append)

    assert (answer.text, pieces) == ("hello", ["hello"])
    assert answer.usage is not None
    assert answer.usage.prompt > 7


async def test_a_count_that_cannot_be_is_replaced_by_the_estimate(llm: LiteLLM, server: ModelServer) -> None:
    """A request has no more tokens than bytes, and so many a picture; below that the server is believed."""
    picture = {"type": "image_url", "image_url": {"url": "data:image/png;base64,AAAA"}}
    seen = [{"role": "user", "content": [{"type": "text", "text": "q"}, picture]}]
    counted = []
    for messages, count in (([], 900_000), ([], 900), (seen, 40_000), (seen, 90_000)):
        server.script.append(Reply(text="a", usage={"prompt_tokens": count, "completion_tokens": 1}))
        asked = Prompt(messages=messages or prompt("q").messages)
        usage = (await llm.ask(asked)).usage
        assert usage is not None
        counted.append(usage.prompt)

    assert (counted[0] < 100, counted[1:3], counted[3] < 2_000) == (True, [900, 40_000], True)


CALL = {"id": "c1", "type": "function", "function": {"name": "look", "arguments": '{"at": 1}'}}


@pytest.mark.parametrize(
    ("message", "chars"),
    [
        ({"role": "user", "content": "hello"}, 5),
        ({"role": "user", "content": ""}, 0),
        ({"role": "assistant", "content": None, "tool_calls": [CALL]}, 4 + 9),
        ({"role": "assistant", "content": "I look", "tool_calls": [CALL, CALL]}, 6 + 2 * (4 + 9)),
        ({"role": "assistant", "content": "none", "tool_calls": []}, 4),
        (
            {"role": "user", "content": [{"type": "text", "text": "see"}, {"type": "image_url"}]},
            3 + IMAGE_CHARS,
        ),
        ({"role": "tool", "tool_call_id": "c1", "content": "seen"}, 4),
        ({"role": "assistant"}, 0),
        # Another program's, or edited by hand.
        ({"role": "assistant", "content": "none", "tool_calls": 7}, 4),
        ({"role": "assistant", "content": "none", "tool_calls": {"id": "c1"}}, 4),
        ({"role": "assistant", "content": "none", "tool_calls": "c1"}, 4),
        ({"role": "assistant", "content": "none", "tool_calls": [7, {"function": 7}]}, 4),
    ],
)
def test_what_a_model_reads_of_a_message_is_counted(message: dict[str, object], chars: int) -> None:
    assert chars_of(message) == chars
    assert estimate_messages([message]) == ceil(chars / 4)
    assert estimate_messages([message, message], chars_per_token=3.0) == 2 * ceil(chars / 3)


def test_a_tool_takes_its_name_its_words_and_its_schema() -> None:
    """Which is written out once: servers may offer hundreds, and each request is estimated."""
    schema = {"type": "object", "properties": {"at": {"type": "string"}}}
    tool = ToolSpec("look", "Look at a thing.", schema)
    chars = 4 + 16 + len(json.dumps(schema))

    assert estimate_tools([tool, tool]) == 2 * ceil(chars / 4)
    assert "chars" in vars(tool)
    assert tool == ToolSpec("look", "Look at a thing.", schema)
