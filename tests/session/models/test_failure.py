"""Each way in which a model call fails has its class, costs one request, and names no secret."""

from __future__ import annotations

import asyncio
from datetime import UTC, datetime
from typing import Any

import pytest

from session.errors import (
    BadAnswer,
    ContextTooLong,
    EmptyAnswer,
    ModelAway,
    ModelError,
    ModelFailed,
    ModelRefused,
    RequestTooLarge,
    RoundsExhausted,
)
from session.models.failure import RATE_LIMITS_MAX, classified, cleaned, kind_of
from session.models.llm import LiteLLM
from session.models.model import OnDelta, Prompt
from tests.contracts.models import prompt
from tests.session.conftest import KEY, both_ways
from tests.support.model_server import ModelServer, Reply


@both_ways
@pytest.mark.parametrize(
    ("mark", "kind", "said"),
    [
        ("[[status:429]]", ModelAway, ("rate_limit", None)),
        ("[[status:429 retry-after=7]]", ModelAway, ("rate_limit", 7.0)),
        ("[[status:401]]", ModelAway, ("credentials", None)),
        ("[[status:402]]", ModelAway, ("quota", None)),
        ("[[status:408]]", ModelAway, ("unreachable", None)),
        ("[[status:503]]", ModelAway, ("unreachable", None)),
        ("[[status:503 retry-after=3]]", ModelAway, ("rate_limit", 3.0)),
        ("[[status:529]]", ModelAway, ("unreachable", None)),
        ("[[status:400]]", ModelRefused, ""),
        ("[[status:403]]", ModelRefused, ""),
        ("[[status:404]]", ModelRefused, "status 404: scripted 404"),
        ("[[status:422]]", ModelRefused, "status 422: scripted 422"),
        ("[[refuse]]", ModelRefused, "status 400, content_policy_violation: Your request was rejected as a "),
        ("[[filter]]", ModelRefused, "the provider's content policy ended the answer"),
        ("[[toolong]]", ContextTooLong, "status 400, context_length_exceeded: This model's maximum context "),
        ("[[status:413]]", ContextTooLong, ""),
        ("[[html]]", BadAnswer, "OpenAIError"),
        ("[[garbage]]", BadAnswer, "JSONDecodeError"),
        ("[[status:500]]", ModelFailed, ""),
        ("[[cut]]", ModelFailed, "TransferEncodingError"),
        ("[[empty]]", EmptyAnswer, ""),
        ("[[nochoices]]", EmptyAnswer, "the answer has neither text nor a tool call (finish: none)"),
    ],
)
async def test_each_failure_has_its_class_and_its_words_and_costs_one_request(
    llm: LiteLLM, server: ModelServer, mark: str, kind: type[ModelError], said: Any, on_delta: OnDelta | None
) -> None:
    """Of an outage its cause and how long to wait, else why in brief; what is empty is asked for twice."""
    with pytest.raises(kind) as caught:
        await llm.ask(prompt(f"hello {mark}"), on_delta)

    error = caught.value
    if isinstance(error, ModelAway):
        assert (error.cause, error.after_s) == said
        assert error.hint
    else:
        brief = (error.brief or str(error)).removeprefix("openai/stub: ")
        # Of a whole answer the client's own error tells how its body was measured.
        whole = mark == "[[cut]]" and on_delta is None
        assert brief.startswith("ContentLengthError" if whole else said)
        assert "hello" not in brief
    # A page in place of a stream cannot be told from an empty one.
    empty = kind is EmptyAnswer or (mark == "[[html]]" and on_delta is not None)
    assert len(server.seen) == (2 if empty else 1)
    # The next request is not touched by it.
    assert error.said.endswith(".")
    assert "good morning" in (await llm.ask(prompt("good morning"), on_delta)).text


async def test_a_server_that_is_not_there(server: ModelServer) -> None:
    """A refused connection, a reset one and an unknown name are outages of the same kind."""
    url = server.url
    for base in (url, "http://127.0.0.1:9/v1", "http://nothing.invalid/v1"):
        server.away = True
        model = LiteLLM(name="openai/stub", api_base=base, timeout_s=20)
        with pytest.raises(ModelAway) as caught:
            await model.ask(prompt("hi"))
        assert caught.value.cause == "unreachable"
    await model.close()


@pytest.mark.slow
async def test_silence_runs_into_the_time_limit(server: ModelServer) -> None:
    """A server that says nothing is given up after ``timeout_s``, and its connection is closed."""
    model = LiteLLM(name="openai/stub", api_base=server.url, timeout_s=2)
    await model.warm()

    with pytest.raises(ModelAway) as caught:
        await model.ask(prompt("[[hang]]"))
    async with asyncio.timeout(20):
        seen = await server.finished(1)
    await model.close()

    assert caught.value.cause == "unreachable"
    assert seen.outcome == "aborted"


@pytest.mark.parametrize("mark", ["[[hang]]", "[[slow:30]]"])
async def test_cancelling_closes_the_connection(llm: LiteLLM, server: ModelServer, mark: str) -> None:
    """The server sees at once that nobody waits any more, before its answer and in the middle of it."""
    written = asyncio.Event()
    task = asyncio.create_task(llm.ask(prompt(f"hello {mark}"), lambda _: written.set()))
    async with asyncio.timeout(20):
        await server.arrived(1)

    task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await task

    async with asyncio.timeout(20):
        assert (await server.finished(1)).outcome == "aborted"


async def test_an_answer_that_breaks_off_cleanly_is_not_complete(llm: LiteLLM, server: ModelServer) -> None:
    """A stream that ends without a reason, a count and ``[DONE]`` was cut by something between."""
    server.script.append(Reply(text="half of", kind="unended"))

    with pytest.raises(ModelFailed):
        await llm.ask(prompt("q"), lambda _: None)


async def test_done_ends_an_answer(llm: LiteLLM, server: ModelServer) -> None:
    """Some servers give neither a reason nor a count."""
    server.script.append(Reply(text="all of it", kind="done"))

    assert (await llm.ask(prompt("q"), lambda _: None)).text == "all of it"


async def test_no_secret_in_errors(llm: LiteLLM, server: ModelServer) -> None:
    message = f"Incorrect API key provided: {KEY}. Bearer {KEY}"
    server.script.append(Reply(status=401, error={"message": message}))

    with pytest.raises(ModelAway) as caught:
        await llm.ask(prompt("q"))

    assert "very-secret" not in f"{caught.value} {caught.value.hint}"
    assert "Incorrect API key" in str(caught.value)
    assert "4711" not in cleaned(f"x {KEY}", secrets=())
    assert cleaned("it is plainword, no", secrets=["plainword"]) == "it is [key], no"


class Failure(Exception):
    def __init__(self, text: str = "", **fields: Any) -> None:
        super().__init__(text)
        self.__dict__.update(fields)


class Response:
    def __init__(self, status_code: int, headers: dict[str, str] | None = None) -> None:
        self.status_code = status_code
        self.headers = headers or {}


def caused(outer: Exception, cause: BaseException) -> Exception:
    outer.__cause__ = cause
    return outer


def served(status: int, message: str, **fields: str) -> Failure:
    return Failure(message, response=Response(status), body={"error": {"message": message, **fields}})


@pytest.mark.parametrize(
    ("error", "kind", "cause"),
    [
        (
            Failure("x", response=Response(429), body={"code": "insufficient_quota"}),
            ModelAway,
            "quota",
        ),
        (Failure("API key not valid.", response=Response(400)), ModelAway, "credentials"),
        (Failure("bad input: 'an environment variable'", response=Response(400)), ModelRefused, None),
        (Failure("set the X environment variable", status_code=400), ModelAway, "credentials"),
        (Failure("Your credit balance is too low", response=Response(400)), ModelAway, "quota"),
        (Failure("prompt is too long: 9 > 8", response=Response(400)), ContextTooLong, None),
        (Failure("context size exceeded", response=Response(500)), ContextTooLong, None),
        (Failure("Request too large for m", response=Response(429)), RequestTooLarge, None),
        (Failure("TPM: Limit 30,000, Requested 42,000.", response=Response(429)), RequestTooLarge, None),
        (Failure("Limit 30000, Used 29900, Requested 200", response=Response(429)), ModelAway, "rate_limit"),
        (Failure("Your account is suspended", response=Response(429)), ModelAway, "quota"),
        (
            Failure("exceeded your current quota: retry in 9s", response=Response(429)),
            ModelAway,
            "rate_limit",
        ),
        (served(403, "Your input was flagged by the model's moderation"), ModelRefused, None),
        (served(403, "Country, region, or territory not supported"), ModelRefused, None),
        (served(403, "Forbidden", type="permission_error"), ModelAway, "credentials"),
        (served(401, "No auth credentials found"), ModelAway, "credentials"),
        (served(401, "Nope"), ModelAway, "credentials"),
        (served(401, "Content violates our usage policies"), ModelRefused, None),
        (served(404, "The requested resource is gone", code="model_not_found"), ModelAway, "model"),
        (served(500, "Jinja Exception: roles must alternate"), ModelFailed, None),
        (served(520, "Web server returned an unknown error"), ModelFailed, None),
        (Failure("x", response=Response(529, {"retry-after": "2"})), ModelAway, "rate_limit"),
        (Failure("Too many tokens, please wait.", response=Response(429)), ModelAway, "rate_limit"),
        (Failure("too many tokens: 9 > 8", response=Response(400)), ContextTooLong, None),
        (Failure("x", body={"error": {"type": "overloaded_error"}}), ModelAway, "unreachable"),
        (Failure("x", body={"message": "slow", "code": 429}), ModelAway, "rate_limit"),
        (caused(Failure("x", status_code=500), ConnectionResetError()), ModelAway, "unreachable"),
        (caused(Failure("x", status_code=500), Failure("Overloaded")), ModelAway, "unreachable"),
        (caused(Failure("x", status_code=500), Failure("is it overloaded?")), BadAnswer, None),
        (Failure("x", status_code=503), ModelAway, "unreachable"),
        (Failure("made up", status_code=500), BadAnswer, None),
        (KeyError("choices"), BadAnswer, None),
    ],
)
def test_classification(error: Exception, kind: type[Exception], cause: str | None) -> None:
    """Status and cause decide; a 500 that no server sent is garbage, not an outage."""
    found = classified(error, model="m")

    assert type(found) is kind
    assert getattr(found, "cause", None) == cause


@pytest.mark.parametrize(
    ("error", "others_answered", "rate_limits", "kind"),
    [
        (ModelAway("503", cause="unreachable"), False, 0, "outage"),
        (ModelAway("503", cause="unreachable"), True, 0, "counted"),
        (ModelAway("401", cause="credentials"), True, 0, "counted"),
        (ModelAway("429", cause="rate_limit"), True, RATE_LIMITS_MAX - 1, "rate_limit"),
        (ModelAway("429", cause="rate_limit"), True, RATE_LIMITS_MAX, "counted"),
        (RequestTooLarge("429"), False, 0, "counted"),
        (ModelFailed("500"), False, 0, "counted"),
        (BadAnswer("no JSON"), False, 0, "counted"),
        (EmptyAnswer("nothing"), False, 0, "refused"),
        (RoundsExhausted("tools"), False, 0, "refused"),
        (ModelRefused("400"), True, 0, "refused"),
        (ContextTooLong("400"), True, 0, "refused"),
    ],
)
def test_what_a_failed_try_means(
    error: ModelError, others_answered: bool, rate_limits: int, kind: str
) -> None:
    """An outage and a rate limit are no fault of a message, unless the model answers others meanwhile."""
    assert kind_of(error, others_answered=others_answered, rate_limits=rate_limits) == kind


@pytest.mark.parametrize(
    "said",
    [
        "input length and `max_tokens` exceed context limit: 188240 + 21333 > 200000",
        "This model's maximum prompt length is 131072 but the request contains 537812 tokens.",
        "Invalid request: Your request exceeded model token limit: 8192",
        "Prompt exceeds max length",
        "Range of input length should be [1, 30720]",
        "prompt token count of 131072 exceeds the limit of 128000",
        "Input validation error: `inputs` tokens + `max_new_tokens` must be <= 4097. Given: 5000",
        "Input validation error: `inputs` must have less than 1024 tokens. Given: 1500",
        "the number of input tokens 5000 cannot exceed the total tokens limit 4096 for this model",
        "Request payload size exceeds the limit: 20971520 bytes.",
    ],
)
def test_a_request_that_is_too_long_in_each_providers_words(said: str) -> None:
    """What is taken for a refusal is set aside, where a summary would have made room."""
    assert type(classified(Failure(said, response=Response(400)), model="m")) is ContextTooLong


@pytest.mark.parametrize(
    ("headers", "after_s"),
    [
        ({"retry-after": "1.5"}, 1.5),
        ({"retry-after-ms": "250"}, 0.25),
        ({"retry-after": "Thu, 01 Jan 2026 00:01:00 GMT"}, 60.0),
        ({"retry-after": "Wed, 31 Dec 2025 00:00:00 GMT"}, 0.0),
        ({"retry-after": "soon"}, None),
        ({"retry-after": "Fri, 31 Dec 9999 23:59:59 -2359"}, None),
        ({"retry-after": "Wed, 21 Oct 99999999999999 07:28:00 GMT"}, None),
        ({}, None),
    ],
)
def test_retry_after(headers: dict[str, str], after_s: float | None) -> None:
    """Seconds, milliseconds and dates are understood, nonsense is nothing."""
    error = Failure("x", response=Response(429, headers))

    found = classified(error, model="m", now=datetime(2026, 1, 1, tzinfo=UTC))

    assert isinstance(found, ModelAway)
    assert found.after_s == after_s


async def test_the_operator_s_words_quote_no_message(llm: LiteLLM, server: ModelServer) -> None:
    """What the provider says of the request stays, with its code and parameter."""
    words = "Unknown value 'my doctor says no' in messages[0]: extra inputs, hunter2, are not permitted"
    error = {"message": words, "code": "invalid_value", "param": "messages[0].content"}
    server.script.append(Reply(status=400, error=error))
    texts = [
        {"role": "user", "content": "So my doctor says NO to it"},
        {"role": "user", "content": "hunter2"},
    ]

    with pytest.raises(ModelRefused) as caught:
        await llm.ask(Prompt(texts))

    assert caught.value.brief == (
        "openai/stub: status 400, invalid_value, messages[0].content: "
        "Unknown value '…' in messages[0]: extra inputs, …, are not permitted"
    )
