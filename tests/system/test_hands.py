"""The command line beside a running gateway: parked letters, sessions cleared or ended in mid-turn."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from tests.support.broker import Broker
from tests.support.foreign import Steady, inbound
from tests.support.harness import Daemon, ask, command
from tests.support.model_server import ModelServer, Reply
from tests.support.place import archives, contents, lines_of, on, transcript, with_model
from tests.support.until import until
from tests.support.verdict import check

KEY = "foreign:ann"


async def test_parked_letters_are_listed_retried_and_dropped_beside_a_running_daemon(
    tmp_path: Path, broker: Broker, broker_name: str
) -> None:
    """A retried letter is a new exchange behind those that ran meanwhile."""
    async with ModelServer() as model:
        config = on(broker, broker_name) | with_model(model)
        # An empty answer is asked for twice.
        model.script += [Reply(text="")] * 4
        async with (
            Daemon(tmp_path, role="session", config=config),
            Steady(broker.url, name=broker_name) as client,
        ):
            for number, name in enumerate(("m1", "m2", "m3")):
                await client.put(inbound(KEY, name, f"text {number}"))
            await client.answered("m1#notice.bad_answer", "m2#notice.bad_answer", "m3#reply")

            code, listed = await command(tmp_path, "parked", "list", "--json", config=config)
            rows = json.loads(listed)
            assert code == 0
            assert [(row["id"], row["key"], row["box"]) for row in rows] == [
                ("m1", KEY, "inbound"),
                ("m2", KEY, "inbound"),
            ]
            assert (await command(tmp_path, "parked", "retry", "m1", config=config))[0] == 0
            texts = await client.answered("m1#reply")
            assert (await command(tmp_path, "parked", "drop", "m2", config=config))[0] == 0
            _, listed = await command(tmp_path, "parked", "list", "--json", config=config)
            assert (await command(tmp_path, "parked", "retry", "m2", config=config))[0] == 1

    assert json.loads(listed) == []
    assert texts == {"m1#reply": "stub: text 0"}
    finals = [line["message_id"] for line in lines_of(tmp_path, "foreign_ann") if line.get("final")]
    assert finals == ["m3", "m1"]


@asynccontextmanager
async def in_mid_turn(workspace: Path, before: Reply, running: str) -> AsyncIterator[InMidTurn]:
    """Have one turn in a chat, and a second one run, whose model answers once ``end`` is set."""
    async with ModelServer() as model:
        end = asyncio.Event()
        model.script += [before, Reply(text=f"stub: {running}", held=end)]
        async with Daemon(workspace, config=with_model(model)) as daemon:
            assert await ask(daemon, "web:a", "0", "zero")
            asking = asyncio.create_task(ask(daemon, "web:a", "1", running))
            stored = f'"{running}"'.encode()
            await until(lambda: stored in transcript(workspace, "web_a").read_bytes(), 120)
            await model.arrived(2)
            yield InMidTurn(daemon, asking, end)
            await asking
            assert await daemon.stop() == 0


@dataclass(frozen=True)
class InMidTurn:
    """A daemon in which a turn runs, and who waits for its answer."""

    daemon: Daemon
    asking: asyncio.Task[dict[str, Any] | None]
    end: asyncio.Event


async def test_a_cleared_session_ends_its_running_turn_unwritten_and_for_good(tmp_path: Path) -> None:
    async with in_mid_turn(tmp_path, Reply(text="poisoned"), "more poison") as turn:
        assert (await command(tmp_path, "sessions", "clear", "web:a"))[0] == 0
        turn.end.set()
        await turn.daemon.said("turn.fenced")
        answer = await ask(turn.daemon, "web:a", "2", "hello")

    assert answer
    assert answer["reply"] == "stub: hello"
    assert contents(tmp_path, "web_a") == ["hello", "stub: hello"]


async def test_a_session_ended_by_hand_while_its_turn_runs_still_answers_that_message(tmp_path: Path) -> None:
    async with in_mid_turn(tmp_path, Reply(text="to zero"), "one") as turn:
        assert (await command(tmp_path, "sessions", "new", "web:a"))[0] == 0
        turn.end.set()
        first = await turn.asking
        second = await ask(turn.daemon, "web:a", "2", "two")

    assert first
    assert first["reply"] == "stub: one"
    assert second
    assert second["reply"] == "stub: two"
    assert len(archives(tmp_path, "web_a")) == 1
    assert check(tmp_path, {"web_a": ["web:0", "web:1", "web:2"]}).sound
