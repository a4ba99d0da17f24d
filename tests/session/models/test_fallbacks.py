"""Which model is asked where one is away or refuses, and how one is made to call a tool."""

from __future__ import annotations

import pytest

from session.errors import ContextTooLong, ModelAway, ModelError, ModelFailed, ModelRefused
from session.models.llm import LiteLLM
from session.models.model import OnDelta, Prompt
from tests.contracts.models import LOOK, prompt
from tests.session.conftest import KEY
from tests.session.models.test_llm import SAVE
from tests.support.model_server import ModelServer, Reply, Seen


async def test_after_one_model_is_closed_another_asks_the_same_server(server: ModelServer) -> None:
    """A connection that was closed is used by nobody, also where the next one would have an equal one."""
    for number in range(2):
        model = LiteLLM(name="openai/stub", api_base=server.url, api_key=KEY, timeout_s=20)
        assert (await model.ask(prompt(f"number {number}"))).text
        await model.close()


async def test_fallbacks_are_asked_in_order(server: ModelServer) -> None:
    """When a model is away or refuses, the next one answers."""
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
    """Once text was shown, a broken answer is not continued by another model."""
    model = LiteLLM(name="openai/a", api_base=server.url, fallbacks=["openai/b"])
    pieces: list[str] = []

    with pytest.raises(ModelFailed):
        await model.ask(prompt("a long enough text [[cut]]"), pieces.append)
    await model.close()

    assert pieces
    assert len(server.seen) == 1


async def test_another_provider_gets_neither_address_nor_key(
    server: ModelServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    """``api_base`` and ``api_key`` belong to the provider of ``name``; others use their environment."""
    monkeypatch.setenv("DEEPSEEK_API_BASE", server.url)
    monkeypatch.setenv("DEEPSEEK_API_KEY", "deep-key")
    model = LiteLLM(name="openai/a", api_base=server.url, api_key=KEY, fallbacks=["deepseek/deepseek-chat"])
    server.script += [Reply(status=503), Reply(text="deep answer", tool_calls=[("look", "{}")])]
    pieces: list[str] = []

    answer = await model.ask(prompt("q", tools=[LOOK]), pieces.append)
    await model.close()

    assert [seen.headers["authorization"] for seen in server.seen] == [f"Bearer {KEY}", "Bearer deep-key"]
    assert answer.text == "".join(pieces) == "deep answer"
    assert [(call.name, call.arguments) for call in answer.tool_calls] == [("look", "{}")]
    assert answer.usage is not None


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


@pytest.mark.parametrize("on_delta", [None, lambda _: None], ids=["whole", "streamed"])
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
