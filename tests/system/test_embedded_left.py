"""A workspace that had the embedded queue gets a broker, before all was answered."""

from __future__ import annotations

import json
from pathlib import Path

from gateway.queue.embedded.mailbox import CURE
from gateway.queue.mailbox import INBOUND, Post
from tests.gateway.embedded_place import opened
from tests.support.broker import Broker
from tests.support.harness import Daemon, command
from tests.support.place import on


async def test_what_nobody_would_answer_is_told(tmp_path: Path, broker: Broker, broker_name: str) -> None:
    """By the start and by doctor; the messages are still there for whoever goes back.

    A backup says that it has none of the broker's.
    """
    async with opened(tmp_path / "state") as mailbox:
        await mailbox.put(Post(INBOUND, "web:ada", "web:1", b"{}"))
    config = on(broker, broker_name)

    async with Daemon(tmp_path, config=config) as daemon:
        told = daemon.log.decode()
        code, out = await command(tmp_path, "doctor", config=config)
        backup = str(tmp_path.with_suffix(".tar"))
        assert (await command(tmp_path, "backup", "create", backup, config=config))[0] == 0
        _, report = await command(tmp_path, "backup", "verify", backup, "--json", config=config)

    assert told.count(f"1 waiting letter lies in {tmp_path}/state/gateway.db, the embedded queue") == 1
    assert CURE in told
    assert code == 1
    assert any("RabbitMQ" in line for line in json.loads(report)["left_out"])
    assert "fail  embedded queue: 1 waiting letter lies in" in out
    async with opened(tmp_path / "state") as mailbox:
        assert (await mailbox.depths())["inbound"].count == 1
