"""Models: echo, the scripted one, and LiteLLM against a local server."""

from __future__ import annotations

import asyncio
import json
import os
import sys
from pathlib import Path

import pytest

from session.errors import ContextTooLong, EmptyAnswer, ModelAway, ModelRefused
from session.models.call_ids import legal_ids
from session.models.llm import LiteLLM
from session.models.model import Answer, Echo, Model, OnDelta, Prompt, ToolCall, ToolSpec
from tests.contracts.models import LOOK, FullModelContract, ModelContract, Script, prompt
from tests.session.conftest import KEY
from tests.support.model_server import ModelServer, Reply

# An answer is the same whether somebody reads along, so that it is streamed, or nobody does.
both_ways = pytest.mark.parametrize("on_delta", [None, lambda _: None], ids=["whole", "streamed"])
SAVE = ToolSpec(
    "save_memory",
    "d",
    {"type": "object", "properties": {"a": {"type": "string"}}, "required": ["a"]},
)


class TestEcho(ModelContract):
    """``echo`` keeps to the contract."""

    @pytest.fixture
    def model(self) -> Model:
        return Echo()


class TestScript(FullModelContract):
    """The scripted model keeps to the contract."""

    @pytest.fixture
    def model(self) -> Model:
        self.script = Script()
        return self.script

    async def arrange(self, what: str) -> None:
        self.script.steps.append(
            {
                "call": Answer("", [ToolCall("c", "look", '{"at": "it"}')], finish="tool_calls"),
                "away": ModelAway("x", cause="unreachable"),
                "refused": ModelRefused("x"),
                "too_long": ContextTooLong("x"),
                "bad": EmptyAnswer("x"),
            }[what]
        )


class TestLiteLLM(FullModelContract):
    """LiteLLM keeps to the contract."""

    @pytest.fixture
    def model(self, llm: LiteLLM, server: ModelServer) -> Model:
        self.server = server
        return llm

    async def arrange(self, what: str) -> None:
        too_long = {
            "message": "maximum context length: your prompt is too long",
            "code": "context_length_exceeded",
        }
        self.server.script.append(
            {
                "call": Reply(tool_calls=[("look", '{"at": "it"}')]),
                "away": Reply(status=503),
                "refused": Reply(status=400),
                "too_long": Reply(status=400, error=too_long),
                "bad": Reply(text=""),
            }[what]
        )
        if what == "bad":
            # An empty answer is asked for once more.
            self.server.script.append(Reply(text=""))


# -- what is sent --------------------------------------------------------------------------------


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
    """Calls and results of earlier rounds reach the server in OpenAI's shape."""
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


# -- what comes back -----------------------------------------------------------------------------


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


@both_ways
async def test_reasoning_is_kept_apart(llm: LiteLLM, server: ModelServer, on_delta: OnDelta | None) -> None:
    """Reasoning is no text of the answer, it is kept beside it."""
    server.script.append(Reply(text="42", reasoning="let me think"))

    answer = await llm.ask(prompt("q"), on_delta)

    assert (answer.text, answer.extra) == ("42", {"reasoning_content": "let me think"})


@both_ways
async def test_an_answer_cut_by_the_limit_says_so(llm: LiteLLM, on_delta: OnDelta | None) -> None:
    """Running out of output tokens is told apart from an end."""
    assert (await llm.ask(prompt("x [[length]]"), on_delta)).finish == "length"


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


# -- a process of its own ------------------------------------------------------------------------

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
