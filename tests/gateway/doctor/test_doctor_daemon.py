"""What doctor says beside a running daemon, which holds the embedded queue for itself."""

from __future__ import annotations

import asyncio
from pathlib import Path

import orjson
import pytest

from gateway.__main__ import main
from gateway.app.daemons import DaemonRegistry
from gateway.queue.mailbox import INBOUND, Post, outbound
from tests.contracts.posts import post
from tests.gateway.http_place import open_place
from tests.support.until import until


async def test_doctor_asks_the_daemon_what_waits_for_nobody_and_what_is_parked(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    async with open_place(tmp_path) as place:
        mailbox = place.application.mailbox
        await mailbox.put(post("slack:1", 1, box=outbound("slack")))
        await mailbox.put(Post(INBOUND, "web:a", "web:odd", orjson.dumps({"v": 1, "text": 5})))
        await until(mailbox.parked)
        with DaemonRegistry(tmp_path).entry(url=place.server.url, role="all"):
            await asyncio.to_thread(main, ["--workspace", str(tmp_path), "doctor"])

    shown = capsys.readouterr().out
    assert "warn  broker: 1 reply waits for slack, the oldest for " in shown
    assert ": 1 message is parked\n" in shown
