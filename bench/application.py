"""Whole gateways to measure: one in this process, or one in a process of its own."""

from __future__ import annotations

import asyncio
import gc
import os
import subprocess
import sys
import time
from collections.abc import AsyncIterator, Callable, Coroutine, Iterator, Mapping
from contextlib import asynccontextmanager, contextmanager
from pathlib import Path
from typing import Any, TypeVar

import uvloop

from gateway.app import logging as logs
from gateway.app.application import Application
from gateway.config.load import load
from gateway.config.settings import Settings
from gateway.queue.mailbox import INBOUND, Post
from tests.support.foreign import inbound
from tests.support.harness import ROOT, environment

T = TypeVar("T")
READY_S = 60


def settings(workspace: Path, **config: Any) -> Settings:
    """Read a configuration as the daemon does; ``broker__url`` stands for ``broker.url``."""
    named = {name.replace("__", "."): value for name, value in config.items()}
    return load(None, workspace, environment({"log.format": "json", **named}))


def letter(key: str, number: int, text: str) -> Post:
    """Make an inbound post as a foreign program would write it."""
    id_ = f"{key}#{number}"
    return Post(INBOUND, key, id_, inbound(key, id_, text))


def run(work: Callable[[], Coroutine[Any, Any, T]]) -> T:
    """Run on the loop that the daemon uses."""
    with asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner:
        return runner.run(work())


@asynccontextmanager
async def application(with_settings: Settings) -> AsyncIterator[Application]:
    """Keep a gateway up in this process, without HTTP; its log is written, but to nowhere."""
    async with kept_up(Application(with_settings)) as opened:
        yield opened


@asynccontextmanager
async def kept_up(built: Application) -> AsyncIterator[Application]:
    """Keep up a gateway that was built already."""
    with Path(os.devnull).open("w") as nowhere:
        logs.setup(built.settings, stream=nowhere)
        async with built.open() as opened:
            gc.freeze()
            yield opened


class Process:
    """``chat-gateway run`` in a process of its own, its log in a file."""

    def __init__(
        self, workspace: Path, config: Mapping[str, Any], *, role: str = "session", workers: int = 1
    ) -> None:
        workspace.mkdir(parents=True, exist_ok=True)
        self._log = workspace / "bench.log"
        command = [sys.executable, "-m", "gateway", "--workspace", str(workspace), "run", "--role", role]
        if workers != 1:
            command += ["--workers", str(workers)]
        with self._log.open("wb") as log:
            self.began = time.perf_counter()
            self.process = subprocess.Popen(
                command,
                cwd=ROOT,
                env=environment({"http.port": 0, "log.format": "json", **config}),
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=log,
            )

    def ready(self) -> tuple[float, str]:
        """Wait for the ``ready`` line; return the seconds since the start, and the URL."""
        while time.perf_counter() - self.began < READY_S:
            for line in self._log.read_text().split("\n")[:-1]:
                if line.startswith("ready"):
                    return time.perf_counter() - self.began, line.removeprefix("ready").strip().rstrip("/")
            if self.process.poll() is not None:
                break
            time.sleep(0.002)
        raise RuntimeError(f"the daemon did not become ready:\n{self._log.read_text()[-2000:]}")

    def cpu(self) -> dict[str, float]:
        """Return the CPU seconds used so far by its loop and by its other threads."""
        tick = os.sysconf("SC_CLK_TCK")
        used = {"loop": 0.0, "disk threads": 0.0}
        for task in Path(f"/proc/{self.process.pid}/task").iterdir():
            fields = (task / "stat").read_text().rpartition(")")[2].split()
            name = "loop" if task.name == str(self.process.pid) else "disk threads"
            used[name] += (int(fields[11]) + int(fields[12])) / tick
        return used

    def resident_mb(self) -> float:
        """Return its resident memory in MB."""
        for line in Path(f"/proc/{self.process.pid}/status").read_text().splitlines():
            if line.startswith("VmRSS"):
                return int(line.split()[1]) / 1024
        raise OSError("no VmRSS")

    def end(self) -> None:
        """Stop it in good order; kill it where that takes too long."""
        self.process.terminate()
        try:
            self.process.wait(40)
        except subprocess.TimeoutExpired:
            self.process.kill()
            self.process.wait()


@contextmanager
def process(workspace: Path, config: Mapping[str, Any], *, role: str = "session") -> Iterator[Process]:
    """Start a gateway, wait until it is ready, and stop it at the end."""
    started = Process(workspace, config, role=role)
    try:
        started.ready()
        yield started
    finally:
        started.end()
