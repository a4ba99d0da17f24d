"""Who reads along with an answer, while it is written."""

from __future__ import annotations

import asyncio

import pytest

from session.models import library
from session.models.llm import FIRST_ROUNDS, LiteLLM
from tests.contracts.models import prompt
from tests.support.model_server import ModelServer


async def test_the_first_piece_is_seen_before_the_last_is_read(llm: LiteLLM, server: ModelServer) -> None:
    """Pieces that came together go out one by one: whoever waits for the first need not wait for all."""
    read: list[str] = []
    came = asyncio.Event()

    async def seen() -> int:
        await came.wait()
        for _ in range(FIRST_ROUNDS - 1):
            await asyncio.sleep(0)
        return len(read)

    looking = asyncio.create_task(seen())

    def on_delta(text: str) -> None:
        read.append(text)
        came.set()

    await llm.ask(prompt("several words"), on_delta)

    assert len(read) > 2
    assert await looking == 1


async def test_the_library_prices_nothing(
    llm: LiteLLM, server: ModelServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Its own count of the cost would come before the first word of a stream, and nobody reads it."""
    await llm.warm()
    priced: list[object] = []
    calculator = library.loaded().cost_calculator
    monkeypatch.setattr(calculator, "completion_cost", lambda *_, **more: priced.append(more))

    await llm.ask(prompt("streamed"), lambda _: None)
    await llm.ask(prompt("whole"))

    assert len(server.seen) == 2
    assert priced == []
