"""``status`` of a gateway in several processes over RabbitMQ."""

from __future__ import annotations

import asyncio
import json
import signal
from pathlib import Path
from typing import Any

from tests.support.broker import Broker
from tests.support.harness import Daemon, ask, command, until_running
from tests.support.model_server import ModelServer, Reply
from tests.support.place import on, with_model
from tests.support.telegram_server import TelegramServer
from tests.support.until import until
from tests.system.platform_place import ADA, with_telegram


async def test_it_shows_all_processes_as_one_gateway(
    tmp_path: Path, broker: Broker, broker_name: str
) -> None:
    """Lines of chats wherever they are, also where the oldest daemon lost its own to another one."""
    release = asyncio.Event()
    async with TelegramServer() as server, ModelServer() as model:
        model.chooses = lambda _: Reply("done", held=release)
        more = {**with_model(model), **with_telegram(server, stream=False), "broker.heartbeat_s": 1}
        config = on(broker, broker_name, partitions=4, **more)
        async with (
            Daemon(tmp_path, role="session", config=config) as one,
            Daemon(tmp_path, role="session", config=config) as two,
            Daemon(tmp_path, role="channels", config=config) as channels,
        ):
            # The broker gives up whoever is silent: its queues, and what it was handed, go to the other one.
            await one.freeze()
            asked = [asyncio.create_task(ask(two, "web:first", "f", "hello"))]
            await until_running(two, 0)
            asked += [asyncio.create_task(ask(two, "web:ann", f"w{n}", "hello")) for n in range(2)]
            server.write(ADA, "hello")
            await until_running(two, 0, 0, 1)
            one.signal(signal.SIGCONT)
            found = await until(lambda: ready(tmp_path, config))
            code, shown = await command(tmp_path, "status", config=config)
            release.set()
            assert [answer["reply"] for answer in await asyncio.gather(*asked) if answer] == ["done"] * 3
            await server.said(ADA, lambda sent: sent.text == "done")
            pids = {one.pid: "session", two.pid: "session", channels.pid: "channels"}
        rest = await status_of(tmp_path, config)

    lanes = {lane["key"]: (lane["waiting"], lane["pid"]) for lane in found["lanes"]}
    assert (lanes["web:ann"], lanes[f"telegram:{ADA}"]) == ((1, two.pid), (0, two.pid))
    assert {row["pid"]: row["role"] for row in found["daemons"]} == pids
    assert {name: part["up"] for name, part in found["parts"].items()} == dict.fromkeys(
        ("queue", "lanes", "model", "telegram"), True
    )
    assert found["queues"]["inbound"]["count"] == 4
    assert found["in_memory"]["letters"] >= 4
    assert code == 0
    for pid, role in pids.items():
        assert f"process {pid}: role {role}, since " in shown
    assert f"lane telegram:{ADA}: running for " in shown
    assert (rest["running"], rest["lanes"], rest["queues"]["inbound"]["count"]) == (False, [], 0)


async def status_of(workspace: Path, config: dict[str, Any]) -> dict[str, Any]:
    _, out = await command(workspace, "status", "--json", config=config)
    found: dict[str, Any] = json.loads(out)
    return found


async def ready(workspace: Path, config: dict[str, Any]) -> dict[str, Any] | None:
    found = await status_of(workspace, config)
    return found if found["ready"] and len(found["daemons"]) == 3 else None
