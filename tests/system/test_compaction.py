"""A running gateway keeps a long conversation within a small window, over both brokers."""

from __future__ import annotations

import json
import re
import signal
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from typing import Any

import pytest

from tests.support.guarantee import guarantee
from tests.support.harness import Daemon, answer_to, command
from tests.support.model_server import ModelServer
from tests.support.place import at_rest, lines_of, with_model
from tests.support.until import until

pytestmark = guarantee("sessions", "A long chat continues within a small context window, with either broker.")

KEY = "cli:ada"
TURNS = 16


def small(model: ModelServer, preset: str, **more: Any) -> dict[str, Any]:
    numbers = {
        "model.context_window": 6_000,
        "model.max_output_tokens": 300,
        "compaction.preset": preset,
        "compaction.max_chars": 8_000,
        "compaction.min_turns": 3,
        "compaction.cooldown_s": 0,
        "history.last": 12,
    }
    return with_model(model, **numbers, **more)


def fact(number: int) -> str:
    return f"fact-{number:04} {'a word and ' * 60}"


async def talk(daemon: Daemon, first: int, stop: int) -> None:
    for number in range(first, stop):
        answer = await answer_to(daemon, KEY, f"cli:{number}", fact(number))
        assert answer["kind"] == "reply", answer
        assert f"fact-{number:04}" in answer["reply"]


def last_asked(model: ModelServer) -> str:
    """What the newest turn sent; the background may have asked since."""
    return json.dumps(model.turns[-1].messages)


def weight(model: ModelServer, preset: str) -> int:
    """How many characters the newest turn sent, as the preset counts them."""
    asked = model.turns[-1].body
    if preset == "annabelle":
        return sum(len(str(line["content"])) for line in asked["messages"] if line["role"] != "system")
    return len(json.dumps([asked["messages"], asked.get("tools")]))


def noted(model: ModelServer) -> list[str]:
    """The facts of people that consolidation has shown to the model."""
    shown = [seen.text for seen in model.seen if seen.text.startswith("## MEMORY.md")]
    return re.findall(
        r"USER: (fact-\d{4})", "\n".join(text.partition("## Conversation")[2] for text in shown)
    )


def summaries(model: ModelServer) -> int:
    return sum(seen.is_summary for seen in model.seen)


@pytest.mark.parametrize(
    ("preset", "queue"),
    [("budget", "embedded"), ("annabelle", "embedded"), ("overlay", "rabbitmq"), ("archive", "rabbitmq")],
    indirect=["queue"],
)
async def test_a_long_chat_goes_on_and_forgets_nothing(
    tmp_path: Path, preset: str, queue: dict[str, Any]
) -> None:
    """``/compact`` by ``chat -m`` says what it did."""
    facts = [f"fact-{number:04}" for number in range(TURNS + 1)]
    async with ModelServer() as model:
        config = small(model, preset, **queue)
        async with Daemon(tmp_path, config=config) as daemon:
            await talk(daemon, 0, TURNS)
            by_itself = summaries(model)
            words = ("chat", "--key", KEY, "-m")
            _, said = await command(tmp_path, *words, "/compact the facts", config=config)
            await talk(daemon, TURNS, TURNS + 1)
            told, lines = last_asked(model), lines_of(tmp_path, "cli_ada")
            await answer_to(daemon, KEY, "cli:new", "/new")
            await until(lambda: set(facts) <= set(noted(model)), within_s=120)
            assert await daemon.stop() == 0

    assert by_itself >= 1
    # What annabelle does behind the last turn may leave nothing to do.
    assert "summarised" in said or (preset == "annabelle" and "nothing to compact" in said)
    assert [each for each in facts if each not in told] == []
    # What two of them keep stands in two sessions, and is noted once.
    asked = dict.fromkeys(line["content"][:9] for line in lines if line["role"] == "user")
    assert [*asked] == facts
    assert sorted(noted(model)) == facts
    assert b"compaction.failed" not in daemon.log


def summed_up(workspace: Path) -> bool:
    with at_rest(workspace, "cli_ada"):
        return any(line.get("kind") for line in lines_of(workspace, "cli_ada"))


async def within(seconds: float, true: Callable[[], bool]) -> bool:
    """Say whether something becomes true in that time."""
    with suppress(TimeoutError):
        return bool(await until(true, seconds))
    return False


@pytest.mark.parametrize(
    ("preset", "how", "due_chars"),
    [("overlay", signal.SIGKILL, 4_500 * 4), ("annabelle", signal.SIGTERM, 8_000)],
)
async def test_a_daemon_that_ends_in_a_summary_leaves_nothing_half_done(
    tmp_path: Path, preset: str, how: signal.Signals, due_chars: int
) -> None:
    """Neither a drain nor a kill waits for it; the next process asks for it again."""
    async with ModelServer() as model:
        config = small(model, preset)
        model.holds_summaries = True
        async with Daemon(tmp_path, config=config) as daemon:
            number = 0
            while not model.summing.is_set():
                await talk(daemon, number, number + 1)
                number += 1
                # A turn too many would wait for the summary, which is asked for behind the one before.
                if weight(model, preset) > due_chars * 0.9:
                    await within(3, model.summing.is_set)
            daemon.signal(how)
            assert await daemon.died(within_s=120) == (0 if how is signal.SIGTERM else -how)
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
