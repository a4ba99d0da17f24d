"""A request that a provider refuses for one of its parts is made once more without it, and answered."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from structlog.testing import capture_logs

from session.models.model import Warms
from tests.gateway.http_place import Place, open_place
from tests.support.model_replies import Reply, Seen
from tests.support.model_server import ModelServer

Refuses = Callable[[Seen], bool]


async def asked(place: Place, text: str = "hello", **more: Any) -> dict[str, Any]:
    """Ask; what a real model needs is imported before, since that takes its time."""
    services = place.application.services
    assert services is not None
    assert isinstance(services.model, Warms)
    await services.model.warm()
    answer: dict[str, Any] = (await place.post(text, wait=30, **more)).json()
    return answer


def has(name: str) -> Refuses:
    return lambda seen: bool(seen.body.get(name))


def message(text: str, **more: Any) -> dict[str, Any]:
    return {"error": {"message": text, "type": "invalid_request_error", "param": None, "code": None, **more}}


def detail(name: str) -> dict[str, Any]:
    """A refusal as FastAPI writes it."""
    return {
        "detail": [{"type": "extra_forbidden", "loc": ["body", name], "msg": "Extra inputs not permitted"}]
    }


COMPLETION = "Unsupported parameter: 'max_tokens' is not supported. Use 'max_completion_tokens' instead."
AUTO = '"auto" tool choice requires --enable-auto-tool-choice and --tool-call-parser to be set'
WINDOW = (
    "This model's maximum context length is 4096 tokens. However, you requested 4101 tokens"
    " (5 in the messages, 4096 in the completion)."
)
VLLM = (
    "'max_tokens' is too large: 4096. This model's maximum context length is 2048 tokens and your"
    " request has 9 input tokens (4096 > 2048 - 9)."
)
OLLAMA = "registry.ollama.ai/library/gemma:2b does not support tools"
BEDROCK = "This model doesn't support tool use in streaming mode."
AZURE = "Unrecognized request argument supplied: stream_options"

# What the server refuses, its status, its body, and what the operator is told was left out.
CASES: dict[str, tuple[Refuses, int, dict[str, Any], str]] = {
    "ollama": (
        has("tools"),
        400,
        message(OLLAMA),
        "tools",
    ),
    "vllm": (has("tools"), 400, {"object": "error", "message": AUTO, "code": 400}, "tools"),
    "llama.cpp": (has("tools"), 500, message("tools param requires --jinja flag"), "tools"),
    "llama.cpp, old": (has("tools"), 500, message("Unsupported param: tools", code=500), "tools"),
    "openrouter": (has("tools"), 404, message("No endpoints found that support tool use."), "tools"),
    "bedrock": (
        has("tools"),
        400,
        message(BEDROCK),
        "tools",
    ),
    "gemma": (has("tools"), 400, message("Function calling is not enabled for this model"), "tools"),
    "strict server": (has("stream_options"), 422, detail("stream_options"), "stream_options"),
    "azure": (
        has("stream_options"),
        400,
        message(AZURE),
        "stream_options",
    ),
    "unverified": (
        has("stream"),
        400,
        message("Your organization must be verified to stream this model.", param="stream"),
        "stream",
    ),
    "gpt-5": (has("max_tokens"), 400, message(COMPLETION, param="max_tokens"), "max_tokens"),
    "window": (
        lambda seen: seen.body["max_tokens"] > 4000,
        400,
        message(WINDOW, code="context_length_exceeded"),
        "more than 1024 answer tokens",
    ),
    "vllm window": (
        lambda seen: seen.body["max_tokens"] > 1000,
        400,
        message(VLLM),
        "more than 512 answer tokens",
    ),
    "answer limit": (
        lambda seen: seen.body["max_tokens"] > 2048,
        400,
        message("max_tokens is too large: 4096. This model supports at most 2048 completion tokens."),
        "more than 2048 answer tokens",
    ),
    "too long, no number": (
        lambda seen: seen.body["max_tokens"] > 2000,
        400,
        message("the request exceeds the context window"),
        "more than 1024 answer tokens",
    ),
}


@pytest.mark.parametrize("case", CASES)
async def test_a_refused_part_is_left_out(tmp_path: Path, case: str) -> None:
    """The first message costs one request more, the next one none; the operator is told once, and why."""
    refuses, status, body, left_out = CASES[case]
    async with ModelServer() as model:
        model.chooses = lambda seen: Reply(status=status, refusal=body) if refuses(seen) else None
        table = {"name": "openai/some-model", "api_base": model.url, "stream": "always"}
        async with open_place(tmp_path, model=table) as place:
            with capture_logs() as logs:
                answers = [await asked(place) for _ in range(2)]
            parts = (await place.http.get("/v1/status")).json()["parts"]

    assert [answer["reply"] for answer in answers] == ["stub: hello"] * 2, answers
    assert len(model.turns) == 3
    told = [row for row in logs if row["event"] == "model.request_reduced"]
    assert [row["left_out"] for row in told] == [left_out]
    assert f"requests go without {left_out}" in parts["model"]["error"]


async def test_a_refusal_that_names_nothing_is_one(tmp_path: Path) -> None:
    """It is asked once, and the operator gets the provider's words without those of the message."""
    said = "Bad request near 'my secret diary': field foo is odd"
    body = message(said, param="foo", code="odd_field")
    async with (
        ModelServer() as model,
        open_place(tmp_path, model={"name": "openai/some-model", "api_base": model.url}) as place,
    ):
        model.chooses = lambda _: Reply(status=400, refusal=body)
        with capture_logs() as logs:
            answer = await asked(place, "my secret diary")

    assert answer["kind"] == "notice"
    assert len(model.seen) == 1
    (failed,) = [row for row in logs if row["event"] == "turn.failed"]
    assert failed["log_level"] == "warning"
    assert "field foo is odd" in failed["error"]
    assert "odd_field" in failed["error"]
    assert "secret" not in str(failed)
