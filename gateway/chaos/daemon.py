"""The kit's side of a victim: one daemon that is started, harmed and killed over and over."""

from __future__ import annotations

import asyncio
import contextlib
import json
import os
import resource
import signal
import subprocess
import time
from pathlib import Path

from gateway.chaos.faults import Switches
from gateway.chaos.forks import ForkServer, Process, spawn
from gateway.chaos.ports import KeptPort
from gateway.chaos.records import Harm
from gateway.chaos.stub_model import StubModel

# A file of a victim whose disk is full grows no further than this.
FULL_AT_BYTES = 4096
READY_WITHIN_S = 120.0


def environment(**more: str) -> dict[str, str]:
    """Return what a victim sees: nothing of this machine's gateways and accounts."""
    kept = {name: os.environ[name] for name in ("PATH", "LANG", "TZ", "TMPDIR") if name in os.environ}
    return kept | more


class Daemon:
    """One of the gateway's processes; it keeps its port and its log over all its lives.

    Args:
        name: begins the names of its lives: ``d0`` lives as ``d0.1``, ``d0.2``, …
        forks: what victims are forked from.
        folder: for its log and its switches; ``config`` and ``workspace`` are what it is started with.
        broker_url: its own way to the broker; empty for the embedded queue.
    """

    def __init__(
        self, name: str, *, forks: ForkServer, folder: Path, model: StubModel, broker_url: str = ""
    ) -> None:
        self.name = name
        self.life = ""
        self.up = asyncio.Event()
        # Turns of it that began again, since another process had raised the epoch of their key.
        self.fenced: list[Harm] = []
        self.switches = Switches(folder / f"{name}.switches")
        self._lives = 0
        self._forks, self._folder, self._model = forks, folder, model
        self._broker_url = broker_url
        self._port = KeptPort()
        self._process: Process | None = None
        self._reader: asyncio.Task[None] | None = None

    @property
    def url(self) -> str:
        """Where it answers HTTP."""
        return f"http://127.0.0.1:{self._port.port}"

    @property
    def alive(self) -> bool:
        """Whether its process runs, or stands still."""
        return self._process is not None and self._process.returncode is None

    async def start(self, point: str = "") -> None:
        """Begin a life, which ends at ``point`` where one is named; returns before it is ready."""
        self._lives += 1
        self.life = f"{self.name}.{self._lives}"
        self.up.clear()
        self.switches.set()
        more = {"CHAT_GATEWAY_MODEL__API_BASE": self._model.address(self.life)}
        more["CHAT_GATEWAY_HTTP__PORT"] = str(self._port.port)
        if self._broker_url:
            more["CHAT_GATEWAY_BROKER__URL"] = self._broker_url
        words = [str(self.switches.path), point or "-", "--config", str(self._folder / "chat-gateway.toml")]
        words += ["run", "--role", "session" if self._broker_url else "all"]
        env = environment(HOME=str(self._folder), **more)
        self._process = await spawn(self._forks, words, env=env)
        self._reader = asyncio.create_task(self._read(self._process), name=f"log of {self.life}")

    async def _read(self, process: Process) -> None:
        assert process.stderr is not None
        life = self.life
        with (self._folder / f"{self.name}.log").open("ab") as log:
            log.write(f"--- {life}, process {process.pid}\n".encode())
            async for line in process.stderr:
                log.write(line)
                if line.startswith(b"ready"):
                    self.up.set()
                elif b'"turn.fenced"' in line:
                    self.fenced.append(Harm("fenced", life, time.time(), time.time(), json.loads(line)["id"]))

    async def ready(self) -> bool:
        """Wait until it is ready or dead; say which. Raises TimeoutError where neither comes."""
        assert self._process is not None
        up = asyncio.ensure_future(self.up.wait())
        died = asyncio.ensure_future(self._process.wait())
        try:
            async with asyncio.timeout(READY_WITHIN_S):
                await asyncio.wait((up, died), return_when=asyncio.FIRST_COMPLETED)
        finally:
            up.cancel()
            died.cancel()
        return self.alive

    async def died(self) -> int:
        """Wait until it is dead; return its exit code, or the signal's number below zero."""
        assert self._process is not None
        assert self._reader is not None
        code = await self._process.wait()
        await self._reader
        self.up.clear()
        return code

    def send(self, number: int) -> None:
        """Send a signal where it still lives."""
        if self._process is not None:
            self._process.send_signal(number)

    async def kill(self) -> None:
        """Kill it with SIGKILL, and wait."""
        if self._process is not None:
            self.send(signal.SIGKILL)
            await self.died()

    async def stop(self, within_s: float = 90) -> int:
        """End it in good order; return its exit code, -9 where it had to be killed."""
        self.send(signal.SIGTERM)
        try:
            return await asyncio.wait_for(self.died(), within_s)
        except TimeoutError:
            await self.kill()
            return -signal.SIGKILL

    def fill_disk(self, full: bool) -> None:
        """Let no file of it grow any more, or all of them again."""
        if self._process is None or not self.alive:
            return
        limit = FULL_AT_BYTES if full else resource.RLIM_INFINITY
        with contextlib.suppress(ProcessLookupError):
            resource.prlimit(self._process.pid, resource.RLIMIT_FSIZE, (limit, resource.RLIM_INFINITY))

    async def close(self) -> None:
        """Kill it where it lives, and give its port back."""
        await self.kill()
        self.switches.close()
        self._port.close()


async def command(forks: ForkServer, folder: Path, *words: str) -> tuple[int, str]:
    """Run one verb of the command line on the workspace; return its exit code and what it printed."""
    switches = folder / "command.switches"
    Switches(switches).close()
    line = [str(switches), "-", "--config", str(folder / "chat-gateway.toml"), *words]
    process = await spawn(forks, line, env=environment(HOME=str(folder)), stdout=subprocess.PIPE)
    out, _ = await asyncio.wait_for(process.communicate(), 120)
    assert process.returncode is not None
    return process.returncode, out.decode()
