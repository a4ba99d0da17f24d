"""Models: echo, and LiteLLM against a local server."""

from __future__ import annotations

import asyncio
import copy
import json
import os
import sys
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import pytest

from session.errors import ContextTooLong, ModelAway, ModelError, ModelFailed, ModelRefused
from session.models.llm import LiteLLM, legal_ids
from session.models.model import Echo, Model, OnDelta, Prompt, ToolSpec, Usage
from tests.contracts.models import LOOK, prompt
from tests.session.conftest import KEY, both_ways
from tests.support.model_server import ModelServer, Reply, Seen
from tests.support.model_wire import head, read_request

SAVE = ToolSpec(
    "save_memory",
    "d",
    {"type": "object", "properties": {"a": {"type": "string"}}, "required": ["a"]},
)


@pytest.fixture(params=["echo", "litellm"])
def model(request: pytest.FixtureRequest, llm: LiteLLM) -> Model:
    return Echo() if request.param == "echo" else llm


async def test_each_request_gets_its_own_answer(model: Model) -> None:
    """The pieces that were written, put together, are its text; many at once do not mix."""
    pieces: list[str] = []
    answer = await model.ask(prompt("good morning"), pieces.append)
    answers = await asyncio.gather(*(model.ask(prompt(f"number {i:03}")) for i in range(20)))

    assert "good morning" in answer.text == "".join(pieces)
    assert (list(answer.tool_calls), answer.finish) == ([], "stop")
    assert [f"number {i:03}" in answer.text for i, answer in enumerate(answers)] == [True] * 20
    assert model.name
    assert {model.takes("image"), model.takes("pdf")} <= {True, False}


async def test_the_request_holds_what_the_prompt_says(llm: LiteLLM, server: ModelServer) -> None:
    """Messages, tools and the token limit arrive as they were given, in one request, with the key."""
    messages = [{"role": "system", "content": "s"}, {"role": "user", "content": "ü"}]

    await llm.ask(Prompt(messages, tools=[LOOK], max_tokens=77))

    (seen,) = server.seen
    assert seen.messages == messages
    assert seen.body["max_tokens"] == 77
    assert seen.body["tools"][0]["function"] == {
        "name": "look",
        "description": "Look at a thing.",
        "parameters": LOOK.parameters,
    }
    assert seen.body["tool_choice"] == "auto"
    assert seen.headers["authorization"] == f"Bearer {KEY}"


async def test_a_server_without_a_key_gets_a_dummy(server: ModelServer) -> None:
    """A server of one's own needs no key, and none of the environment's reaches it."""
    model = LiteLLM(name="openai/stub", api_base=server.url)

    await model.ask(prompt("hi"))
    await model.close()

    assert server.seen[0].headers["authorization"] == "Bearer none"


async def test_tool_messages_go_out_whole(llm: LiteLLM, server: ModelServer) -> None:
    call = {"id": "c1", "type": "function", "function": {"name": "look", "arguments": "{}"}}
    history = [
        {"role": "user", "content": "q"},
        {"role": "assistant", "content": None, "tool_calls": [call]},
        {"role": "tool", "tool_call_id": "c1", "name": "look", "content": "r"},
    ]

    await llm.ask(Prompt(history, tools=[LOOK]))

    question, call_line, result = server.seen[0].messages
    assert (question, result) == (history[0], history[2])
    assert call_line["tool_calls"] == [call]


PARTS = [
    {"type": "text", "text": "look"},
    {"type": "image_url", "image_url": {"url": "data:image/png;base64,iVBORw0KGgo="}},
    {"type": "file", "file": {"filename": "a.pdf", "file_data": "data:application/pdf;base64,JVBERi0="}},
]


async def takes(model: LiteLLM) -> list[bool]:
    return [await asyncio.to_thread(model.takes, part) for part in ("image", "pdf")]


async def test_pictures_and_papers_go_out_to_a_model_that_may_take_them(server: ModelServer) -> None:
    """``model.takes`` decides, else LiteLLM's table; what that does not know is tried."""
    seeing = LiteLLM(name="openai/gpt-4o", api_base=server.url)
    blind = LiteLLM(name="openai/gpt-3.5-turbo", api_base=server.url)
    unknown = LiteLLM(name="openai/nobody-knows-it", api_base=server.url)
    told = LiteLLM(name="openai/gpt-3.5-turbo", api_base=server.url, takes=["image"])

    found = [await takes(model) for model in (seeing, blind, unknown, told)]
    await seeing.ask(Prompt(messages=[{"role": "user", "content": PARTS}]))
    await seeing.close()

    assert found == [[True, True], [False, False], [True, True], [True, False]]
    assert server.seen[-1].messages[-1]["content"] == PARTS
    assert len(blind.notes()) == 2
    assert unknown.notes() == told.notes() == []


@pytest.mark.parametrize(
    ("status", "said"),
    [
        (400, "unknown variant `image_url`, expected `text`"),
        (500, "image input is not supported - hint: you may need to provide the mmproj"),
        (400, "openai/nobody-knows-it is not a multimodal model"),
        (422, "content: Input should be a valid string"),
    ],
)
async def test_a_provider_that_refuses_pictures_is_sent_no_more(
    server: ModelServer, status: int, said: str
) -> None:
    """The caller is told that it was refused, whatever the status, and names the files from then on."""
    model = LiteLLM(name="openai/nobody-knows-it", api_base=server.url)
    server.script.append(Reply(status=status, error={"message": said}))

    with pytest.raises(ModelRefused):
        await model.ask(Prompt(messages=[{"role": "user", "content": PARTS[:2]}]))
    found = await takes(model)
    await model.close()

    assert found == [False, True]
    [(text, _)] = model.notes()
    assert "image" in text


def test_ids_of_other_providers_are_shortened_alike() -> None:
    """An id longer than OpenAI takes is replaced in the call and in its result; thought signatures stay."""
    long, signed = "call_" + "x|" * 39, "call_1__thought__" + "A" * 100
    messages = [
        {"role": "assistant", "content": None, "tool_calls": [{"id": long}, {"id": signed}, {"id": "a"}]},
        {"role": "tool", "tool_call_id": long, "content": ""},
    ]

    call, result = legal_ids(messages)

    ids = [item["id"] for item in call["tool_calls"]]
    assert ids[0] == result["tool_call_id"]
    assert len(ids[0]) <= 40
    assert ids[1:] == [signed, "a"]
    assert messages[1]["tool_call_id"] == long


@both_ways
async def test_usage_and_price(server: ModelServer, on_delta: OnDelta | None) -> None:
    """Tokens are the provider's count; the price is LiteLLM's, None for a model it does not know."""
    known = LiteLLM(name="openai/gpt-4o-mini", api_base=server.url)
    unknown = LiteLLM(name="openai/stub", api_base=server.url)
    server.script += [Reply(text="a", usage={"prompt_tokens": 1000, "completion_tokens": 100})] * 2

    first, second = await known.ask(prompt("hi"), on_delta), await unknown.ask(prompt("hi"), on_delta)
    window = await known.context_window(), await unknown.context_window()
    other = await unknown.context_window("openai/gpt-4")
    await known.close()
    await unknown.close()

    assert first.usage is not None
    assert second.usage is not None
    assert (first.usage.prompt, first.usage.completion) == (1000, 100)
    assert first.usage.cost_usd == pytest.approx(1000 * 0.15e-6 + 100 * 0.6e-6)
    assert (second.usage.price, second.usage.unpriced) == (None, 1100)
    assert window == (128000, 0)
    assert other == 8192


@pytest.mark.parametrize(
    ("name", "cache", "cost"),
    [
        ("anthropic/claude-sonnet-4-5", True, 1000 * 3.75e-6 + 100 * 15e-6),
        ("anthropic/claude-sonnet-4-5", False, 1000 * 3e-6 + 100 * 15e-6),
        ("openrouter/anthropic/claude-sonnet-4.5", True, None),
        ("ollama_chat/llama3.1", True, 0.0),
    ],
)
def test_the_most_that_a_request_may_cost(name: str, cache: bool, cost: float | None) -> None:
    """All of it may have to be written to a cache; a price of 0 is one on one's own machine alone."""
    model = LiteLLM(name=name, api_key="k", max_output_tokens=100, cache=cache)

    assert model.most(prompt("hi"), 1000).cost_usd == pytest.approx(cost)


@both_ways
async def test_parallel_calls_are_put_together(
    llm: LiteLLM, server: ModelServer, on_delta: OnDelta | None
) -> None:
    """Fragments of several calls become whole calls, text beside them is kept."""
    server.script.append(Reply(text="wait", tool_calls=[("look", '{"at": "ü"}'), ("look", "{oops")]))

    answer = await llm.ask(prompt("q", tools=[LOOK]), on_delta)

    assert (answer.text, answer.finish) == ("wait", "tool_calls")
    assert [(call.name, call.arguments) for call in answer.tool_calls] == [
        ("look", '{"at": "ü"}'),
        ("look", "{oops"),
    ]
    assert len({call.id for call in answer.tool_calls}) == 2


async def test_what_nobody_reads_along_is_not_streamed(llm: LiteLLM, server: ModelServer) -> None:
    """A stream costs several times a whole answer; whoever wants one of all requests gets it."""
    streaming = LiteLLM(name="openai/stub", api_base=server.url, streams=True)
    pieces: list[str] = []

    answers = [
        await llm.ask(prompt("one")),
        await llm.ask(prompt("two"), pieces.append),
        await streaming.ask(prompt("three")),
    ]
    await streaming.close()

    assert [bool(seen.body.get("stream")) for seen in server.seen] == [False, True, True]
    assert "".join(pieces) == answers[1].text
    assert all(answer.text and answer.usage for answer in answers)


async def test_after_a_silent_connection_was_cut_answers_are_streamed(server: ModelServer) -> None:
    """Something on the way may wait for a byte no longer than an answer takes: a stream keeps it waiting."""
    patient = LiteLLM(name="openai/stub", api_base=server.url, silence_s=1000)
    model = LiteLLM(name="openai/stub", api_base=server.url, silence_s=0)
    for asked in (patient, model):
        server.script += [Reply(status=504), Reply(text="after all")]
        with pytest.raises(ModelAway):
            await asked.ask(prompt("q"))
        assert (await asked.ask(prompt("q"))).text == "after all"
        await asked.close()

    assert [bool(seen.body.get("stream")) for seen in server.seen] == [False, False, False, True]


CHILD = """
import asyncio, json, sys
met = []
def watch(event, args):
    if event in ("socket.connect", "socket.getaddrinfo", "socket.sendto"):
        met.append([event, [str(a) for a in args[1:]] if event != "socket.getaddrinfo" else [str(args[0])]])
sys.addaudithook(watch)
from session.models.llm import LiteLLM
from session.errors import ModelError
from tests.contracts.models import LOOK, prompt
assert "litellm" not in sys.modules
async def main(url):
    texts = []
    for name in ("openai/gpt-4o-mini", "openai/stub", "nonsense-model"):
        model = LiteLLM(name=name, api_base=url, api_key="sk-planted-secret-99")
        await model.warm()
        await model.context_window()
        for text in ("hello", "[[status:500]]", "[[status:401]]", "[[garbage]]", "[[cut]]", "[[html]]"):
            try:
                await model.ask(prompt(text, tools=[LOOK]), lambda _: None)
            except ModelError as error:
                texts.append(f"{error} {error.hint}")
    await model.close()
    return texts
texts = asyncio.run(main(sys.argv[1]))
json.dump({"met": met, "texts": texts}, open(sys.argv[2], "w"))
"""


async def test_no_network_of_its_own_and_nothing_printed(server: ModelServer, tmp_path: Path) -> None:
    """Importing and asking touches no address but the model's, prints nothing, and names no secret."""
    report = tmp_path / "report.json"
    child = await asyncio.create_subprocess_exec(
        *(sys.executable, "-c", CHILD, server.url, str(report)),
        stdout=asyncio.subprocess.PIPE,
        stderr=asyncio.subprocess.PIPE,
        cwd=Path(__file__).parents[3],
        env={name: value for name, value in os.environ.items() if not name.startswith("LITELLM")},
    )
    out, err = await child.communicate()

    assert child.returncode == 0, err.decode()
    found = json.loads(report.read_text())
    strangers = [row for row in found["met"] if "127.0.0.1" not in str(row)]
    assert strangers == []
    assert found["met"], "the audit hook saw nothing at all"
    assert out == b""
    assert b"planted" not in err
    assert "planted" not in json.dumps(found["texts"])
    assert len(found["texts"]) >= 10


async def test_after_one_model_is_closed_another_asks_the_same_server(server: ModelServer) -> None:
    """A connection that was closed is used by nobody, also where the next one would have an equal one."""
    for number in range(2):
        model = LiteLLM(name="openai/stub", api_base=server.url, api_key=KEY, timeout_s=20)
        assert (await model.ask(prompt(f"number {number}"))).text
        await model.close()


async def test_fallbacks_are_asked_in_order(server: ModelServer) -> None:
    model = LiteLLM(name="openai/a", api_base=server.url, fallbacks=["openai/b", "openai/c"])
    server.script += [Reply(status=503), Reply(status=400), Reply(text="from c")]

    answer = await model.ask(prompt("q"))
    await model.close()

    assert answer.text == "from c"
    assert [seen.body["model"] for seen in server.seen] == ["a", "b", "c"]


async def test_when_all_are_away_the_first_failure_counts(server: ModelServer) -> None:
    """An outage of any of them is an outage: it may end."""
    model = LiteLLM(name="openai/a", api_base=server.url, fallbacks=["openai/b"])
    server.script += [Reply(status=429, headers={"retry-after": "9"}), Reply(status=503)]
    server.script += [Reply(status=400), Reply(status=503)]

    with pytest.raises(ModelAway) as first:
        await model.ask(prompt("q"))
    with pytest.raises(ModelAway) as second:
        await model.ask(prompt("q"))
    await model.close()

    assert (first.value.cause, first.value.after_s) == ("rate_limit", 9.0)
    assert second.value.cause == "unreachable"


async def test_overflow_is_not_tried_elsewhere(server: ModelServer) -> None:
    """A context that is too long is for the caller to shorten."""
    model = LiteLLM(name="openai/a", api_base=server.url, fallbacks=["openai/b"])

    with pytest.raises(ContextTooLong):
        await model.ask(prompt("[[toolong]]"))
    await model.close()

    assert len(server.seen) == 1


@pytest.mark.parametrize(("status", "raised"), [(503, ModelAway), (429, ModelAway), (401, ContextTooLong)])
async def test_what_a_smaller_fallback_does_not_take_waits_for_the_first_model(
    server: ModelServer, status: int, raised: type[ModelError]
) -> None:
    """It fits the model that is away for a while; one whose key is refused does not come back by itself."""
    too_long = {
        "message": "maximum context length: your prompt is too long",
        "code": "context_length_exceeded",
    }
    server.script += [Reply(status=status), Reply(status=400, error=too_long), Reply(status=503)]
    model = LiteLLM(name="openai/a", api_base=server.url, api_key=KEY, fallbacks=["openai/b", "openai/c"])

    with pytest.raises(raised, match="openai/a" if raised is ModelAway else "openai/b"):
        await model.ask(prompt("hi"))
    await model.close()

    assert len(server.seen) == (3 if raised is ModelAway else 2)


async def test_a_second_model_does_not_write_behind_half_an_answer(server: ModelServer) -> None:
    model = LiteLLM(name="openai/a", api_base=server.url, fallbacks=["openai/b"])
    pieces: list[str] = []

    with pytest.raises(ModelFailed):
        await model.ask(prompt("a long enough text [[cut]]"), pieces.append)
    await model.close()

    assert pieces
    assert len(server.seen) == 1


async def test_forced_tool(llm: LiteLLM, server: ModelServer) -> None:
    """A forced tool is asked for by name, and by ``auto`` where the provider refuses that."""
    await llm.ask(prompt("q", tools=[SAVE], force_tool="save_memory"))
    server.refuses_forced = True
    await llm.ask(prompt("q", tools=[SAVE], force_tool="save_memory"))

    named = {"type": "function", "function": {"name": "save_memory"}}
    assert [seen.body["tool_choice"] for seen in server.seen] == [named, named, "auto"]


UNSUPPORTED = {
    "message": "'messages.1' : for 'role:assistant' property 'reasoning_content' is unsupported",
    "type": "invalid_request_error",
}


def thoughtful() -> Prompt:
    """What is asked behind a call of a tool, with what the model thought before it."""
    call = {"id": "c", "type": "function", "function": {"name": "look", "arguments": "{}"}}
    thought = {"reasoning_content": "hm", "thinking_blocks": [{"type": "thinking", "thinking": "hm"}]}
    return Prompt(
        [
            {"role": "user", "content": "q"},
            {"role": "assistant", "content": None, "tool_calls": [call], **thought},
            {"role": "tool", "tool_call_id": "c", "content": "r"},
        ]
    )


@both_ways
async def test_a_provider_that_takes_no_thoughts_back_is_asked_without_them(
    llm: LiteLLM, server: ModelServer, on_delta: OnDelta | None
) -> None:
    """The first time after a refusal, from then on at once."""

    def refuses(seen: Seen) -> Reply:
        thinks = any("reasoning_content" in message for message in seen.messages)
        return Reply(status=400, error=UNSUPPORTED) if thinks else Reply(text="at last")

    server.chooses = refuses

    answers = [await llm.ask(thoughtful(), on_delta) for _ in range(2)]

    assert [answer.text for answer in answers] == ["at last", "at last"]
    sent = [[sorted(message) for message in seen.messages] for seen in server.seen]
    assert len(sent) == 3
    assert ["content", "role", "tool_call_id"] in sent[1]
    assert not any("thinking_blocks" in names for request in sent[1:] for names in request)


async def test_thoughts_are_sent_back_to_whoever_takes_them(llm: LiteLLM, server: ModelServer) -> None:
    """A refusal that does not name them, or does not end without them, was about something else."""
    server.script += [Reply(status=400), *(Reply(status=400, error=UNSUPPORTED) for _ in range(2))]
    for _ in range(2):
        with pytest.raises(ModelRefused):
            await llm.ask(thoughtful())
    await llm.ask(thoughtful())

    asked = ["reasoning_content" in seen.messages[1] for seen in server.seen]
    assert asked == [True, True, False, True]


BEGUN: dict[str, Any] = {"id": "m", "type": "message", "role": "assistant", "content": [], "model": "c"}
BEGIN: list[dict[str, Any]] = [
    {"type": "message_start", "message": {**BEGUN, "usage": {"input_tokens": 10, "output_tokens": 1}}},
    {"type": "content_block_start", "index": 0, "content_block": {"type": "text", "text": ""}},
]
TEXT = {"type": "content_block_delta", "index": 0, "delta": {"type": "text_delta", "text": "hello"}}
END: list[dict[str, Any]] = [
    {"type": "content_block_stop", "index": 0},
    {"type": "message_delta", "delta": {"stop_reason": "end_turn"}, "usage": {"output_tokens": 5}},
    {"type": "message_stop"},
]
OVERLOADED = {"type": "error", "error": {"type": "overloaded_error", "message": "Overloaded"}}


@asynccontextmanager
async def anthropic(*events: dict[str, Any]) -> AsyncIterator[LiteLLM]:
    """Open a model whose server says these events."""

    async def answer(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await read_request(b"", reader)
        writer.write(head(200, {"content-type": "text/event-stream", "connection": "close"}, None))
        for event in events:
            writer.write(f"event: {event['type']}\ndata: {json.dumps(event)}\n\n".encode())
        await writer.drain()
        writer.close()

    server = await asyncio.start_server(answer, "127.0.0.1", 0)
    port = server.sockets[0].getsockname()[1]
    model = LiteLLM(
        name="anthropic/claude-sonnet-4-5",
        api_base=f"http://127.0.0.1:{port}",
        api_key="sk-ant-4711",
        timeout_s=20,
    )
    try:
        yield model
    finally:
        await model.close()
        server.close()


async def test_tokens_and_cost_of_a_stream_are_counted() -> None:
    """Without its count no cap holds, and no conversation is known to be long."""
    async with anthropic(*BEGIN, TEXT, *END) as model:
        answer = await model.ask(prompt("q"), lambda _: None)

    assert answer.text == "hello"
    assert answer.usage == Usage(10, 5, pytest.approx(0.000105))


async def test_what_a_cache_held_is_part_of_the_prompt_at_its_own_price() -> None:
    """Anthropic itself counts only what is neither read from the cache nor written to it."""
    begun: dict[str, Any] = copy.deepcopy(BEGIN[0])
    begun["message"]["usage"] |= {"cache_read_input_tokens": 800, "cache_creation_input_tokens": 100}
    async with anthropic(begun, *BEGIN[1:], TEXT, *END) as model:
        answer = await model.ask(prompt("q" * 4000), lambda _: None)

    cost = 10 * 3e-6 + 800 * 0.3e-6 + 100 * 3.75e-6 + 5 * 15e-6
    assert answer.usage == Usage(910, 5, pytest.approx(cost), 800, 100)


@pytest.mark.parametrize("before", [[], [*BEGIN, TEXT]], ids=["at once", "in its middle"])
async def test_a_provider_that_fails_within_a_stream(before: list[dict[str, Any]]) -> None:
    """Before the first piece it is away, by its words alone; later its answer broke off, which is counted."""
    async with anthropic(*before, OVERLOADED) as model:
        with pytest.raises(ModelFailed if before else ModelAway):
            await model.ask(prompt("q"), lambda _: None)
