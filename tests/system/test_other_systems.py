"""What Linux alone has is not needed: the program works where Python lacks it, as on macOS."""

from __future__ import annotations

import os
import signal
import time
from pathlib import Path

import pytest

from channels.limiter import Limiter, rates_of
from gateway.config.load import load
from gateway.workers.workers import count
from tests.support.harness import Daemon, ask
from tests.support.telegram_server import TelegramServer
from tests.system.platform_place import ADA, with_telegram

LACKS = {
    "os": ("fdatasync", "posix_fadvise", "sched_getaffinity", "sched_setaffinity", "copy_file_range"),
    "time": ("CLOCK_BOOTTIME",),
    "socket": ("SOCK_CLOEXEC", "SOCK_NONBLOCK"),
}
TAKEN_AWAY = f"""
import importlib
for module, names in {LACKS!r}.items():
    for name in names:
        delattr(importlib.import_module(module), name)
"""


async def test_a_gateway_answers_clears_and_goes_on_after_a_kill(tmp_path: Path) -> None:
    """By platform and page; what its death left unsynced is synced by the next start."""
    (tmp_path / "sitecustomize.py").write_text(TAKEN_AWAY)
    prefix = ("env", f"PYTHONPATH={tmp_path}")
    async with TelegramServer() as server:
        config = with_telegram(server)
        async with Daemon(tmp_path / "w", config=config, prefix=prefix) as daemon:
            for number in range(2):
                server.write(ADA, f"hello {number}")
                await server.said(ADA, lambda sent, number=number: sent.text == f"echo: hello {number}")
            assert (await ask(daemon, "web:a", "1", "one") or {})["reply"] == "echo: one"
            daemon.signal(signal.SIGKILL)
            await daemon.died()
        async with Daemon(tmp_path / "w", config=config, prefix=prefix) as daemon:
            assert (await ask(daemon, "web:a", "2", "two") or {})["reply"] == "echo: two"
            log = daemon.log

    assert b"Traceback" not in log


def test_workers_are_as_many_as_cores(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delattr(os, "sched_getaffinity")
    monkeypatch.setattr(os, "cpu_count", lambda: 3)
    broker = {"CHAT_GATEWAY_BROKER__URL": "amqp://guest:guest@127.0.0.1/"}

    assert count(load(None, tmp_path, broker), "all", 0) == 3


def test_a_limiter_has_a_clock_where_none_counts_from_the_start_of_the_machine(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.delattr(time, "CLOCK_BOOTTIME")

    assert Limiter(rates_of("telegram"))
