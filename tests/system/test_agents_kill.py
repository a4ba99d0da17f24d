"""A chat goes to another agent while its daemon is killed: changed once, nothing lost, nothing mixed."""

from __future__ import annotations

import asyncio
import json
import signal
from pathlib import Path
from typing import Any

import pytest

from tests.support.broker import Broker
from tests.support.foreign import Steady, inbound
from tests.support.harness import Daemon, ask
from tests.support.model_server import ModelServer
from tests.support.place import archives, contents, head_of, on, transcript, with_model

AGENTS: dict[str, Any] = {"coder": {"persona": "You are CODER."}}
BINDINGS = [{"agent": "coder", "command": "code"}]
# Both change the agent; the second one asks it, too.
CHANGES = ("/agent coder", "/code two")
BOTH = ("choose.after:1", "checkpoint.after:1", "settle.before:1")
POINTS = [
    *((point, text) for point in BOTH for text in CHANGES),
    *((point, CHANGES[0]) for point in ("checkpoint.before:1", "checkpoint.after:2", "journal.before:1")),
    ("append.after:1", CHANGES[1]),
]


def agents_in(workspace: Path, stem: str) -> list[str | None]:
    paths = [*archives(workspace, stem), transcript(workspace, stem)]
    return [head_of(path)["metadata"].get("agent") for path in paths]


@pytest.mark.parametrize(("point", "text"), POINTS)
async def test_a_kill_in_the_middle_of_a_change_changes_once(tmp_path: Path, point: str, text: str) -> None:
    """The message that was under way comes again, and what waited behind it is for the new agent."""
    async with ModelServer() as model:
        config = with_model(model, agents=AGENTS, bindings=BINDINGS)
        async with Daemon(tmp_path, config=config) as daemon:
            assert await ask(daemon, "cli:ann", "1", "one")
            assert await daemon.stop() == 0
        async with Daemon(tmp_path, config=config, kill_at=point) as dying:
            asked = [asyncio.create_task(ask(dying, "cli:ann", "2", text, wait_s=20))]
            assert await dying.died() == -signal.SIGKILL
            await asyncio.gather(*asked)
        async with Daemon(tmp_path, config=config) as daemon:
            answer = await ask(daemon, "cli:ann", "2", text)
            again = await ask(daemon, "cli:ann", "2", text)
            last = await ask(daemon, "cli:ann", "3", "three")
            assert await daemon.stop() == 0
        three = next(seen for seen in model.turns if seen.text.endswith("three"))

    assert answer is not None
    assert last is not None
    assert again == answer
    own = ["two", "stub: two"] if text == "/code two" else []
    assert answer["reply"] == (own[-1] if own else answer["reply"])
    assert own or answer["reply"].startswith("coder answers here")
    assert contents(tmp_path, "cli_ann") == ["one", "stub: one", *own, "three", "stub: three"]
    assert agents_in(tmp_path, "cli_ann") == [None, "coder"]
    assert "CODER" in json.dumps(three.body)
    assert "stub: one" not in json.dumps(three.body)


async def test_what_one_daemon_was_told_holds_in_the_next(
    tmp_path: Path, broker: Broker, broker_name: str
) -> None:
    """Two daemons on RabbitMQ: the one that changed the agent dies in the turn behind it."""
    async with ModelServer() as model:
        config = on(broker, broker_name) | with_model(model, agents=AGENTS, bindings=BINDINGS)
        async with (
            Daemon(tmp_path, role="session", config=config) as first,
            Steady(broker.url, name=broker_name) as client,
        ):
            await client.put(inbound("foreign:ann", "m1", "one"))
            await client.answered("m1#reply")
            async with Daemon(tmp_path, role="session", config=config):
                await client.put(inbound("foreign:ann", "m2", "/agent coder"))
                await client.answered("m2#reply")
                model.delay_s = 30.0
                await client.put(inbound("foreign:ann", "m3", "two"))
                await client.put(inbound("foreign:ann", "m4", "three"))
                await model.arrived(2)
                await first.kill()
                model.delay_s = 0.0
                found = await client.answered("m3#reply", "m4#reply")

    assert found == {"m3#reply": "stub: two", "m4#reply": "stub: three"}
    said = ("one", "two", "three")
    assert contents(tmp_path, "foreign_ann") == [line for text in said for line in (text, f"stub: {text}")]
    assert agents_in(tmp_path, "foreign_ann") == [None, "coder"]
    asked = [json.dumps(seen.body) for seen in model.turns if seen.outcome == "answered"]
    assert ["CODER" in text for text in asked] == [False, True, True]
