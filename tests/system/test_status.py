"""``status`` of a gateway in several processes over RabbitMQ."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Awaitable, Callable
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from tests.support.broker import Broker
from tests.support.harness import Daemon, ask, command, status, until_running
from tests.support.model_server import ModelServer, Reply
from tests.support.place import on, with_model
from tests.support.telegram_server import TelegramServer
from tests.support.until import until
from tests.system.platform_place import ADA, with_telegram


async def test_it_shows_all_processes_as_one_gateway(
    tmp_path: Path, broker: Broker, broker_name: str
) -> None:
    """Lines of chats wherever they are, the adapters' process, and each worker with its partitions."""
    release = asyncio.Event()
    async with TelegramServer() as server, ModelServer() as model:
        model.chooses = lambda _: Reply("done", held=release)
        more = {**with_model(model), **with_telegram(server, stream=False), "limits.workers": 3}
        config = on(broker, broker_name, partitions=4, **more)
        async with (
            Daemon(tmp_path, role="session", config=config) as one,
            Daemon(tmp_path, role="channels", config=config) as channels,
        ):
            asked = [asyncio.create_task(ask(one, "web:first", "f", "hello"))]
            await until_running(one, 0)
            asked += [asyncio.create_task(ask(one, "web:ann", f"w{n}", "hello")) for n in range(2)]
            server.write(ADA, "hello")
            await until_running(one, 0, 0, 1)
            found = await until(lambda: ready(tmp_path, config))
            code, shown = await command(tmp_path, "status", config=config)
            release.set()
            assert [answer["reply"] for answer in await asyncio.gather(*asked) if answer] == ["done"] * 3
            await server.said(ADA, lambda sent: sent.text == "done")
            pids = {one.pid: "session", channels.pid: "channels"}
            pids |= dict.fromkeys((row["pid"] for row in found["workers"]), "worker")
        rest = await status_of(tmp_path, config)

    lanes = {lane["key"]: (lane["waiting"], lane["pid"]) for lane in found["lanes"]}
    assert (lanes["web:ann"], lanes[f"telegram:{ADA}"]) == ((1, one.pid), (0, one.pid))
    assert {row["pid"]: row["role"] for row in found["daemons"]} == pids
    assert {name: part["up"] for name, part in found["parts"].items()} == dict.fromkeys(
        ("queue", "lanes", "model", "telegram", "workers"), True
    )
    assert found["queues"]["inbound"]["count"] == 4
    assert found["in_memory"]["letters"] >= 4
    assert code == 0
    for row, partitions in zip(found["workers"], ("0, 3", "1", "2"), strict=True):
        assert f"worker {row['number']}: process {row['pid']}, partitions {partitions}\n" in shown
    for pid, role in pids.items():
        assert f"process {pid}: role {role}, started " in shown
    assert f"chat telegram:{ADA}: answering for " in shown
    assert (rest["running"], rest["lanes"], rest["queues"]["inbound"]["count"]) == (False, [], 0)


async def test_it_says_since_when_a_part_stands_so_and_counts_what_waits_alone(tmp_path: Path) -> None:
    """The model goes away and comes back; a message that is tried again or asks a person waits for none."""
    async with ModelServer() as model:
        config = with_model(model, **{"tools.policy.write": "ask"})
        async with Daemon(tmp_path, config=config) as daemon:

            async def lane() -> tuple[str | None, int, bool]:
                [row] = (await status(daemon))["lanes"]
                return row["id"], row["waiting"], row["running_s"] is not None

            async def part(*, up: bool) -> datetime:
                found = await until(lambda: _model(daemon, up))
                return datetime.fromisoformat(found["since"])

            assert (await ask(daemon, "web:ada", "m0", "hello") or {})["reply"] == "stub: hello"
            answered = datetime.now(UTC)
            assert await part(up=True) < answered
            model.away = True
            asked = [asyncio.create_task(ask(daemon, "web:ada", "m1", "one"))]
            went = await part(up=False)
            assert answered < went < datetime.now(UTC)
            await until(lambda: _is(lane, ("web:m1", 0, False)))
            asked.append(asyncio.create_task(ask(daemon, "web:ada", "m2", "two")))
            await until(lambda: _is(lane, ("web:m1", 1, False)))
            said = await ask(daemon, "web:ada", "s1", "/status") or {}
            assert "waiting: 1 message" in said["reply"].splitlines()
            model.away = False
            assert [(answer or {})["reply"] for answer in await asyncio.gather(*asked)] == [
                "stub: one",
                "stub: two",
            ]
            assert went < await part(up=True) < datetime.now(UTC)

            call = ("write", json.dumps({"path": "a.txt", "content": "milk"}))
            model.script.append(Reply(tool_calls=[call]))
            await ask(daemon, "web:ada", "m3", "write", wait_s=0)
            await until(lambda: _is(lane, ("web:m3", 0, False)))


async def _model(daemon: Daemon, up: bool) -> dict[str, Any] | None:
    part: dict[str, Any] = (await status(daemon))["parts"]["model"]
    return part if part["up"] is up else None


async def _is(look: Callable[[], Awaitable[object]], wanted: object) -> bool:
    return await look() == wanted


async def status_of(workspace: Path, config: dict[str, Any]) -> dict[str, Any]:
    _, out = await command(workspace, "status", "--json", config=config)
    found: dict[str, Any] = json.loads(out)
    return found


async def ready(workspace: Path, config: dict[str, Any]) -> dict[str, Any] | None:
    found = await status_of(workspace, config)
    up = found["ready"] and all(part["up"] for part in found["parts"].values())
    return found if up and len(found["daemons"]) == 5 else None
