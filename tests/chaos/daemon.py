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
from collections.abc import Coroutine
from pathlib import Path
from typing import Any

from tests.chaos.crew import Crew
from tests.chaos.dice import Part
from tests.chaos.faults import Switches
from tests.chaos.records import Harm
from tests.chaos.stub_model import StubModel
from tests.chaos.stub_telegram import StubTelegram
from tests.support.forks import ForkServer, Process, spawn
from tests.support.ports import KeptPort

# A file of a victim whose disk is full grows no further than this.
FULL_AT_BYTES = 4096
READY_WITHIN_S = 120.0
# The lease of an adapter that was killed is free again by then.
RECEIVES_WITHIN_S = 4.0
_BEGINS_AGAIN = {b'"turn.fenced"': "fenced", b'"turn.delayed"': "delayed"}
_TELLING = (*_BEGINS_AGAIN, b'"queue.moved"', b'"worker.started"', b'"worker.stuck"')


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
        part: what runs in it: conversations, adapters, or both.
        platform: whom its adapter talks to, where it has one.
        workers: how many it has.
    """

    def __init__(
        self,
        name: str,
        *,
        forks: ForkServer,
        folder: Path,
        model: StubModel,
        broker_url: str = "",
        part: Part = "session",
        platform: StubTelegram | None = None,
        workers: int = 0,
    ) -> None:
        self.name = name
        self.part, self.platform, self.crew = part, platform, Crew(folder)
        self._workers = workers
        self.life = ""
        self.up = asyncio.Event()
        # Turns of it that began again: another process had raised the epoch of their key, or they could not
        # be ended for want of the queue or the disk. ``how`` is the gateway's id of the message.
        self.begun_again: list[Harm] = []
        # When it gave chats to another that had come up.
        self.moved: list[Harm] = []
        self.ended_workers: list[Harm] = []
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
        """Begin a life, which ends at ``point`` where one is named; returns before it is ready.

        One that lives goes on as it is.
        """
        if self.alive:
            return
        self._lives += 1
        self.life = f"{self.name}.{self._lives}"
        self.up.clear()
        self.switches.set()
        more = {"CHAT_GATEWAY_MODEL__API_BASE": self._model.address(self.life)}
        more["CHAT_GATEWAY_HTTP__PORT"] = str(self._port.port)
        if self.platform is not None:
            more["CHAT_GATEWAY_CHANNELS__TELEGRAM__BASE_URL"] = self.platform.address(self.life)
        if self._broker_url:
            more["CHAT_GATEWAY_BROKER__URL"] = self._broker_url
        words = [str(self.switches.path), point or "-", "--config", str(self._folder / "chat-gateway.toml")]
        words += ["run", "--role", self.part if self._broker_url else "all"]
        words += ["--workers", str(self._workers)] if self._workers else []
        env = environment(HOME=str(self._folder), **more)
        self._process = await spawn(self._forks, words, env=env)
        self.crew.begin(self.life, self._process.pid)
        self._reader = asyncio.create_task(self._read(self._process), name=f"log of {self.life}")

    async def _read(self, process: Process) -> None:
        assert process.stderr is not None
        life = self.life
        # Workers outlive their gateway: the lines of two lives come in between each other.
        with (self._folder / f"{self.name}.log").open("ab", buffering=0) as log:
            log.write(f"--- {life}, process {process.pid}\n".encode())
            async for line in process.stderr:
                log.write(line)
                if line.startswith(b"ready"):
                    self.up.set()
                elif line.startswith(b"{"):
                    self._note(life, line)

    def _note(self, life: str, line: bytes) -> None:
        """Take from its log what it did by itself that explains a repeat."""
        event = next((name for name in _TELLING if name in line), b"")
        if not event:
            return
        row, now = json.loads(line), time.time()
        if event in _BEGINS_AGAIN:
            who = self.crew.by_number(life, row["worker"]) if "worker" in row else life
            self.begun_again.append(Harm(_BEGINS_AGAIN[event], who, now, now, row["id"]))
        elif event == b'"queue.moved"':
            self.moved.append(Harm("moved", life, now, now, row["queue"]))
        elif event == b'"worker.started"':
            self.crew.numbered(life, row["number"], row["pid"])
        else:
            # Its gateway ends a worker that stands still; one does where the machine is too busy, too.
            self.ended_workers.append(Harm("kill", self.crew.name(row["pid"]), now, now + 1.0, "stuck"))

    async def ready(self) -> bool:
        """Wait until it is ready or dead; say which. Raises TimeoutError where neither comes."""
        async with asyncio.timeout(READY_WITHIN_S):
            await self._unless_dead(self.up.wait())
        return self.alive

    async def receives(self) -> None:
        """Wait until its adapter asks for updates, where it has one: another process may hold the lease."""
        if self.platform is not None:
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(RECEIVES_WITHIN_S):
                    await self._unless_dead(self.platform.asked_by(self.life))

    async def _unless_dead(self, waiting: Coroutine[Any, Any, object]) -> None:
        assert self._process is not None
        wanted = asyncio.ensure_future(waiting)
        died = asyncio.ensure_future(self._process.wait())
        try:
            await asyncio.wait((wanted, died), return_when=asyncio.FIRST_COMPLETED)
        finally:
            wanted.cancel()
            died.cancel()

    async def died(self) -> int:
        """Wait until it is dead; return its exit code, or the signal's number below zero."""
        assert self._process is not None
        assert self._reader is not None
        code = await self._process.wait()
        if not self._workers:
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
        self.crew.kill()
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
