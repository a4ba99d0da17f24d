"""Caps on what may be spent in a day, in a running gateway: held before each request, also over a kill."""

from __future__ import annotations

import asyncio
import json
from contextlib import aclosing
from pathlib import Path
from typing import Any

from session.store.state import StoreState, encoded
from tests.support.guarantee import guarantee
from tests.support.harness import Daemon, answer_to, ask, command, status
from tests.support.model_server import ModelServer, Reply
from tests.support.place import with_model
from tests.support.usage_rows import usage_in

pytestmark = guarantee(
    "failures", "Processes never exceed a daily budget together, and a killed one leaves no money reserved."
)

# An answer costs 0.6 USD a million tokens.
PRICED = {"model.name": "openai/gpt-4o-mini", "model.max_output_tokens": 1_000, "memory.window": 1_000}


def counted(completion: int) -> dict[str, Any]:
    return {"prompt_tokens": 10, "completion_tokens": completion, "total_tokens": completion + 10}


def by_name(found: dict[str, Any]) -> dict[str, dict[str, Any]]:
    return {row["limit"]: row for row in found["limits"]}


async def ends(workspace: Path, key: str) -> list[str]:
    """List how the messages of a chat ended that its transcript does not show."""
    async with aclosing(StoreState(workspace / "state")) as state:
        rows = await state.read("SELECT entry FROM journal WHERE key = ? ORDER BY n", (encoded(key),))
    entries = [json.loads(entry) for (entry,) in rows]
    return [str(entry["kind"]) for entry in entries if entry.get("do") == "end"]


async def test_what_a_killed_daemon_held_is_taken_over_and_settled_and_the_cap_holds(tmp_path: Path) -> None:
    """Its request is made once more and counts once; then the chat is told once, and nothing is asked."""
    limits = {"limits.cost_per_day_usd": 0.165, "limits.cost_per_chat_per_day_usd": 0.5}
    held = asyncio.Event()
    async with ModelServer() as model:
        config = with_model(model, **PRICED, **limits)
        async with Daemon(tmp_path, config=config) as daemon:
            model.script.append(Reply(text="first", usage=counted(25_000)))
            first = await answer_to(daemon, "cli:ada", "cli:1", "hello")
            model.script += [Reply(held=held), Reply(text="second", usage=counted(250_000))]
            lost = asyncio.create_task(ask(daemon, "cli:ada", "cli:2", "once more"))
            await model.arrived(2)
            await daemon.kill()
            await lost
            _, out = await command(tmp_path, "status", "--json", config=config)
            before = by_name(json.loads(out))
            await daemon.reborn()
            second = await answer_to(daemon, "cli:ada", "cli:2", "once more")
            after = by_name(await status(daemon))
            told = [await ask(daemon, "cli:ada", f"cli:{n}", "more") for n in (3, 4)]
            shown = await answer_to(daemon, "cli:ada", "cli:5", "/status")
            held.set()
            assert await daemon.stop() == 0
        asked = len(model.turns)

    assert (first["reply"], second["reply"]) == ("first", "second")
    day, chat = before["cost_per_day_usd"], before["cost_per_chat_per_day_usd"]
    assert (round(day["used"], 4), chat["who"], chat["used"]) == (0.015, "cli:ada", day["used"])
    assert day["reserved"] == 0
    day = after["cost_per_day_usd"]
    assert (round(day["used"], 4), day["reserved"], day["reached"]) == (0.165, 0, True)
    assert [row["id"] for row in await usage_in(tmp_path)] == ["cli:1", "cli:2"]
    assert [answer["kind"] for answer in told if answer is not None] == ["notice", "notice"]
    assert await ends(tmp_path, "cli:ada") == ["notice", "silent", "command"]
    assert "left until midnight UTC for all chats: 0.0000 of 0.1650 USD" in shown["reply"]
    assert asked == 3
