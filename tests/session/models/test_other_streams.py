"""Streams of a provider that is not of OpenAI's kind: LiteLLM gives them their shape."""

from __future__ import annotations

import asyncio
import copy
import json
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

import pytest

from session.errors import ModelAway, ModelFailed
from session.models.llm import LiteLLM
from session.models.model import Usage
from tests.contracts.models import prompt
from tests.support.model_wire import head, read_request

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
