"""The command line beside a running gateway: parked letters, sessions cleared or ended in mid-turn."""

from __future__ import annotations

import asyncio
import json
from pathlib import Path
from typing import Any

from tests.support.broker import Broker
from tests.support.harness import Daemon, Steady, ask, check, command, inbound, lines_of
from tests.support.model_server import ModelServer, Reply

KEY = "foreign:ann"


def contents(workspace: Path, stem: str) -> list[str]:
    """What stands in the lines of a chat."""
    return [line["content"] for line in lines_of(workspace, stem)]


async def test_parked_letters_are_listed_retried_and_dropped_beside_a_running_daemon(
    tmp_path: Path, broker: Broker, broker_name: str
) -> None:
    """A retried letter is a new exchange behind those that ran meanwhile."""
    async with ModelServer() as model:
        config: dict[str, Any] = {"model.name": "openai/stub", "model.api_base": model.url}
        config |= {"broker.url": broker.url, "broker.name": broker_name, "broker.partitions": 1}
        model.script += [Reply(text=""), Reply(text="")]
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


async def test_a_cleared_session_ends_its_running_turn_unwritten_and_for_good(tmp_path: Path) -> None:
    async with ModelServer() as model:
        config = {"model.name": "openai/stub", "model.api_base": model.url}
        end = asyncio.Event()
        model.script += [Reply(text="poisoned"), Reply(text="more poison", held=end)]
        async with Daemon(tmp_path, config=config) as daemon:
            assert await ask(daemon, "web:a", "0", "poison")
            running = asyncio.create_task(ask(daemon, "web:a", "1", "more poison"))
            await stored(tmp_path / "sessions" / "web_a.jsonl", "more poison")
            await model.arrived(2)

            assert (await command(tmp_path, "sessions", "clear", "web:a"))[0] == 0
            end.set()
            await daemon.said("turn.fenced")
            answer = await ask(daemon, "web:a", "2", "hello")
            await running
            assert await daemon.stop() == 0

    assert answer
    assert answer["reply"] == "stub: hello"
    assert contents(tmp_path, "web_a") == ["hello", "stub: hello"]


async def test_a_session_ended_by_hand_while_its_turn_runs_still_answers_that_message(tmp_path: Path) -> None:
    async with ModelServer() as model:
        config = {"model.name": "openai/stub", "model.api_base": model.url}
        end = asyncio.Event()
        model.script += [Reply(text="to zero"), Reply(text="stub: one", held=end)]
        async with Daemon(tmp_path, config=config) as daemon:
            assert await ask(daemon, "web:a", "0", "zero")
            running = asyncio.create_task(ask(daemon, "web:a", "1", "one"))
            await stored(tmp_path / "sessions" / "web_a.jsonl", "one")
            await model.arrived(2)

            assert (await command(tmp_path, "sessions", "new", "web:a"))[0] == 0
            end.set()
            first = await running
            second = await ask(daemon, "web:a", "2", "two")
            assert await daemon.stop() == 0

    assert first
    assert first["reply"] == "stub: one"
    assert second
    assert second["reply"] == "stub: two"
    assert len(list((tmp_path / "sessions" / "archive" / "web_a").glob("*.jsonl"))) == 1
    assert check(tmp_path, {"web_a": ["web:0", "web:1", "web:2"]}).sound


async def stored(path: Path, text: str) -> None:
    """Wait until a user line with this text is in the file."""
    async with asyncio.timeout(60):
        while f'"{text}"'.encode() not in path.read_bytes():
            await asyncio.sleep(0.01)
