"""A running gateway keeps a long conversation within a small window, over both brokers."""

from __future__ import annotations

import asyncio
import json
import signal
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from typing import Any

import pytest

from tests.support.harness import Daemon, ask, at_rest, command, lines_of
from tests.support.model_server import ModelServer

KEY = "cli:ada"
TURNS = 16


def small(model: ModelServer, preset: str, **more: Any) -> dict[str, Any]:
    return {
        "model.name": "openai/stub",
        "model.api_base": model.url,
        "model.context_window": 6_000,
        "model.max_output_tokens": 300,
        "compaction.preset": preset,
        "compaction.max_chars": 8_000,
        "compaction.min_turns": 3,
        "compaction.cooldown_s": 0,
        "history.last": 12,
        **more,
    }


def fact(number: int) -> str:
    return f"fact-{number:04} {'a word and ' * 60}"


async def talk(daemon: Daemon, first: int, stop: int) -> None:
    for number in range(first, stop):
        answer = await ask(daemon, KEY, f"cli:{number}", fact(number))
        assert answer is not None
        assert answer["kind"] == "reply", answer
        assert f"fact-{number:04}" in answer["reply"]


def last_asked(model: ModelServer) -> str:
    """What the newest turn sent; the background may have asked since."""
    turns = [seen for seen in model.seen if seen.text.startswith("fact-")]
    return json.dumps(turns[-1].messages)


def summaries(model: ModelServer) -> int:
    return sum(seen.text.startswith("<conversation>") for seen in model.seen)


@pytest.mark.parametrize("preset", ["budget", "annabelle"])
async def test_a_long_chat_goes_on_and_forgets_nothing(tmp_path: Path, preset: str) -> None:
    """With the embedded queue; ``/compact`` by ``chat -m`` says what it did."""
    async with ModelServer() as model:
        config = small(model, preset)
        async with Daemon(tmp_path, config=config) as daemon:
            await talk(daemon, 0, TURNS)
            by_itself = summaries(model)
            words = ("chat", "--key", KEY, "-m")
            _, said = await command(tmp_path, *words, "/compact the facts", config=config)
            await talk(daemon, TURNS, TURNS + 1)
            assert await daemon.stop() == 0
        told = last_asked(model)

    assert by_itself >= 1
    assert "summarised" in said
    assert [number for number in range(TURNS + 1) if f"fact-{number:04}" not in told] == []
    lines = lines_of(tmp_path, "cli_ada")  # what annabelle keeps stands in two sessions
    asked = dict.fromkeys(line["content"][:9] for line in lines if line["role"] == "user")
    assert [*asked] == [f"fact-{number:04}" for number in range(TURNS + 1)]
    assert b"compaction.failed" not in daemon.log


@pytest.mark.parametrize("preset", ["overlay", "archive"])
async def test_the_same_over_rabbitmq(tmp_path: Path, broker: Any, broker_name: str, preset: str) -> None:
    async with ModelServer() as model:
        queue = {"broker.url": broker.url, "broker.name": broker_name, "broker.partitions": 2}
        config = small(model, preset, **queue)
        async with Daemon(tmp_path, config=config) as daemon:
            await talk(daemon, 0, TURNS)
            answer = await ask(daemon, KEY, "cli:c", "/compact")
            await talk(daemon, TURNS, TURNS + 1)
            assert await daemon.stop() == 0
        told = last_asked(model)

    assert answer is not None
    assert "summarised" in answer["reply"]
    assert [number for number in range(TURNS + 1) if f"fact-{number:04}" not in told] == []


def summed_up(workspace: Path) -> bool:
    with at_rest(workspace, "cli_ada"):
        return any(line.get("kind") for line in lines_of(workspace, "cli_ada"))


async def within(seconds: float, true: Callable[[], bool]) -> bool:
    """Say whether something becomes true in that time."""
    with suppress(TimeoutError):
        async with asyncio.timeout(seconds):
            while not true():
                await asyncio.sleep(0.02)
    return true()


@pytest.mark.parametrize(("preset", "how"), [("overlay", signal.SIGKILL), ("annabelle", signal.SIGTERM)])
async def test_a_daemon_that_ends_in_a_summary_leaves_nothing_half_done(
    tmp_path: Path, preset: str, how: signal.Signals
) -> None:
    """Neither a drain nor a kill waits for it; the next process asks for it again."""
    async with ModelServer() as model:
        config = small(model, preset)
        model.holds_summaries = True
        async with Daemon(tmp_path, config=config) as daemon:
            number = 0
            while not await within(0.25, model.summing.is_set):  # a turn too many would wait for the summary
                await talk(daemon, number, number + 1)
                number += 1
            daemon.signal(how)
            assert await daemon.died(within_s=60) == (0 if how is signal.SIGTERM else -how)
        before = lines_of(tmp_path, "cli_ada")
        model.holds_summaries = False
        async with Daemon(tmp_path, config=config) as daemon:
            while True:
                await talk(daemon, number, number + 1)
                number += 1
                if await within(5, lambda: summed_up(tmp_path)):
                    break
            await talk(daemon, number, number + 1)
            told = last_asked(model)
            assert await daemon.stop() == 0

    assert not any(line.get("kind") for line in before)
    assert len(before) % 2 == 0
    assert [each for each in range(number + 1) if f"fact-{each:04}" not in told] == []
