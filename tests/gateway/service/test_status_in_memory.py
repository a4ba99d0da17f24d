"""``status`` shows how many messages the daemon holds, how large they are, and how much it may hold."""

from __future__ import annotations

import asyncio
import json
from pathlib import Path

import pytest

from gateway.__main__ import main
from gateway.app.daemons import DaemonRegistry
from tests.gateway.http_place import open_place


async def test_it_counts_what_waits_for_a_turn(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    async with open_place(tmp_path) as place:
        model = place.gate()
        for number in range(3):
            await place.post("x" * 1_000 + str(number))
        await model.begun.wait()
        with DaemonRegistry(tmp_path).entry(url=place.server.url, role="all"):
            verb = ["--workspace", str(tmp_path), "status"]
            await asyncio.to_thread(main, verb)
            shown = capsys.readouterr().out
            await asyncio.to_thread(main, [*verb, "--json"])
            document = json.loads(capsys.readouterr().out)
        model.let.set()

    held = document["in_memory"]
    assert (held["letters"], held["max_bytes"]) == (3, 64 * 2**20)
    assert 3_000 < held["bytes"] < 6_000
    assert held["windows"]["inbound"] == 100_000
    assert "in memory: 3 messages, 0.0 of 64 MB; at most 100,000 per queue\n" in shown


def test_without_a_daemon_nothing_is_in_memory(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["--workspace", str(tmp_path), "status"]) == 0

    assert "in memory" not in capsys.readouterr().out
