"""What a provider refuses, wants back and bills: a request without one part, its own fields, its cache."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import pytest
from structlog.testing import capture_logs

from gateway.__main__ import main
from session.models import library
from tests.gateway.http_place import Place, open_place
from tests.support.billing import Bill, ToolTurn
from tests.support.model_replies import Reply, Seen
from tests.support.model_server import ModelServer

Refuses = Callable[[Seen], bool]


async def asked(place: Place, text: str = "hello", **more: Any) -> dict[str, Any]:
    await place.warm()
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


SIGNED = {"extra_content": {"google": {"thought_signature": "c2ln"}}}
DETAILS = {"reasoning_details": [{"type": "reasoning.encrypted", "data": "b3Bh", "index": 0}]}
# (fields of the message, fields of each call)
KINDS: dict[str, tuple[dict[str, Any], dict[str, Any]]] = {
    "google": ({}, SIGNED),
    "openrouter": (DETAILS, {}),
    "both": ({**DETAILS, "reasoning_opaque": "Y29w"}, {**SIGNED, "signature": "s"}),
}


def strict(fields: dict[str, Any], in_calls: dict[str, Any]) -> Any:
    """Answer as a provider that refuses every request in which something of an earlier call is missing."""

    def chooses(seen: Seen) -> Reply | None:
        for message in seen.messages:
            calls = message.get("tool_calls") or []
            if not calls:
                continue
            kept = all(message.get(name) == value for name, value in fields.items())
            if not kept or any(call.get(name) != value for call in calls for name, value in in_calls.items()):
                return Reply(status=400, error={"message": "Function call is missing a thought_signature"})
        if "look" in seen.text and seen.messages[-1]["role"] != "tool":
            calls = [("ls", '{"path": "."}'), ("ls", "{}")]
            return Reply(tool_calls=calls, in_message=fields, in_calls=in_calls)
        return None

    return chooses


@pytest.mark.parametrize("stream", ["auto", "always"])
async def test_a_strict_provider_gets_back_what_it_wrote(tmp_path: Path, stream: str) -> None:
    """Within the turn and in later ones, whole and streamed; a name that is ours is not overwritten."""
    async with ModelServer() as model:
        table = {"name": "openai/strict", "api_base": model.url, "stream": stream}
        async with open_place(tmp_path, model=table) as place:
            for number, (fields, in_calls) in enumerate(KINDS.values()):
                model.chooses = strict(fields, in_calls)
                chat = f"chat{number}"
                for text in ("look", "and now?"):
                    assert (await asked(place, text, chat=chat))["reply"] == f"stub: {text}"


async def test_another_model_gets_none_of_them(tmp_path: Path) -> None:
    """The fallback that takes over within a turn, and any other model of a later one."""
    async with ModelServer() as model:

        def chooses(seen: Seen) -> Reply | None:
            if seen.body["model"] == "a":
                if len(model.seen) == 1:
                    return Reply(tool_calls=[("ls", "{}")], in_message=DETAILS, in_calls=SIGNED)
                return Reply(status=503)
            return None

        model.chooses = chooses
        table = {"name": "openai/a", "api_base": model.url, "fallbacks": ["openai/b"]}
        async with open_place(tmp_path, model=table) as place:
            assert (await asked(place, "look"))["reply"] == "stub: look"

        own, other = model.seen[1].messages[-2], model.seen[2].messages[-2]
    assert (own["reasoning_details"], own["tool_calls"][0]["extra_content"]) == (
        DETAILS["reasoning_details"],
        SIGNED["extra_content"],
    )
    assert not {"reasoning_details", "opaque"} & other.keys()
    assert other["tool_calls"][0].keys() == {"id", "type", "function"}


ROUNDS = 20
# LiteLLM's map has 0 for it, or nothing.
UNPRICED = "openrouter/anthropic/claude-sonnet-4.5"
# Its cache has prices of its own, to read and to write.
PRICED = "openai/gpt-6-sol"


@asynccontextmanager
async def served(folder: Path, server: ModelServer, name: str, **more: Any) -> AsyncIterator[Place]:
    """Open a gateway whose model has loaded what it needs; ``a.txt`` is there to be read."""
    table = {"name": name, "api_base": server.url, "api_key": "k", **more.pop("model", {})}
    (folder / "files").mkdir(parents=True)
    (folder / "files" / "a.txt").write_text("a line of a file\n" * 60)
    async with open_place(folder, model=table, **more) as place:
        await place.warm()
        yield place


async def get(place: Place, path: str) -> Any:
    return (await place.http.get(path)).json()


async def billed(folder: Path, *, cache: bool) -> Bill:
    turn = ToolTurn(ROUNDS)
    async with ModelServer() as model, served(folder, model, UNPRICED, model={"cache": cache}) as place:
        model.chooses = turn
        answer = (await place.post("read it all", wait=60)).json()
    assert answer["reply"] == "done", answer
    return turn.bill


async def test_a_long_tool_turn_costs_a_third(tmp_path: Path) -> None:
    """With at most four marks in a request; ``model.cache = false`` sends none."""
    marked = await billed(tmp_path / "a", cache=True)
    plain = await billed(tmp_path / "b", cache=False)

    assert len(marked.marks) == len(plain.marks) == ROUNDS
    assert all(0 < marks <= 4 for marks in marked.marks)
    assert set(plain.marks) == {0}
    assert marked.cost <= 0.35 * plain.cost


async def test_what_a_cache_held_is_counted_apart_at_its_own_price(tmp_path: Path) -> None:
    """In the usage records, the caps, ``/v1/usage``, ``/v1/status``, the trace and the log of the turn."""
    details = {"cached_tokens": 1_000, "cache_write_tokens": 400}
    usage = {"prompt_tokens": 1_500, "completion_tokens": 100, "total_tokens": 1_600}
    reply = Reply(text="hi", usage={**usage, "prompt_tokens_details": details})
    async with (
        ModelServer() as model,
        served(tmp_path, model, PRICED, limits={"cost_per_day_usd": 5.0}) as place,
    ):
        price = library.loaded().model_cost[PRICED.partition("/")[2]]
        model.script.append(reply)
        id_ = (await place.post("hello", wait=60)).json()["id"]
        shown, status, life = [
            await get(place, path) for path in ("/v1/usage", "/v1/status", f"/v1/trace/{id_}")
        ]

    cost = 100 * price["input_cost_per_token"] + 100 * price["output_cost_per_token"]
    cost += 1_000 * price["cache_read_input_token_cost"] + 400 * price["cache_creation_input_token_cost"]
    counts = {"prompt_tokens": 1_500, "cached_tokens": 1_000, "cache_written_tokens": 400}
    [row] = [row for row in shown["models"] if row["turns"]]
    assert {name: row[name] for name in counts} == counts
    assert (row["cost_usd"], row["unpriced_tokens"]) == (pytest.approx(cost, abs=1e-6), 0)
    assert status["usage_today"]["cached_tokens"] == 1_000
    assert status["limits"][0]["used"] == pytest.approx(cost, abs=1e-6)
    [step] = [step for step in life["steps"] if step["words"] == "the model answered"]
    assert (step["cached"], step["cache_written"]) == (1_000, 400)
    assert step["cost_usd"] == pytest.approx(cost)


async def test_an_unknown_price_is_shown_as_unknown(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """A price of 0 in LiteLLM's map is none, but for a model of one's own."""
    async with ModelServer() as model, served(tmp_path, model, UNPRICED) as place:
        model.chooses = ToolTurn(2)
        id_ = (await place.post("read it", wait=60)).json()["id"]
        total = (await get(place, "/v1/usage"))["total"]
        today = (await get(place, "/v1/status"))["usage_today"]
        life = await get(place, f"/v1/trace/{id_}")
        [session] = (await get(place, "/v1/sessions"))["sessions"]
    capsys.readouterr()
    assert await asyncio.to_thread(main, ["usage", "--workspace", str(tmp_path)]) == 0
    table = capsys.readouterr().out
    assert await asyncio.to_thread(main, ["trace", id_, "--workspace", str(tmp_path)]) == 0
    traced = capsys.readouterr().out

    assert [each["cost_usd"] for each in (total, today, session["metrics"])] == [None] * 3
    assert total["unpriced_tokens"] == total["prompt_tokens"] + total["completion_tokens"]
    assert [step["cost_usd"] for step in life["steps"] if "prompt" in step] == [None, None]
    assert "cost unknown" in table
    assert "USD" not in table
    assert traced.count("cost_usd unknown") == 2


async def test_a_provider_that_refuses_marks_is_asked_once_more_without(tmp_path: Path) -> None:
    """The next turns have none from the start."""

    def refuses(seen: Seen) -> Reply | None:
        if "cache_control" not in json.dumps(seen.messages):
            return None
        error = {"message": "messages.0.cache_control: Extra inputs are not permitted", "code": 400}
        return Reply(status=400, error=error)

    async with ModelServer() as model, served(tmp_path, model, UNPRICED) as place:
        model.chooses = refuses
        replies = [(await place.post(text, wait=60)).json()["reply"] for text in ("hello", "again")]

    assert replies == ["stub: hello", "stub: again"]
    assert [seen.status for seen in model.seen] == [400, 200, 200]
