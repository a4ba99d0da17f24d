"""The kit's side of a victim: one daemon that is started, harmed and killed over and over."""

from __future__ import annotations

import asyncio
import contextlib
import json
import os
import resource
import signal
import time
from pathlib import Path

from tests.chaos.dice import Part
from tests.chaos.faults import Switches
from tests.chaos.records import Harm
from tests.chaos.stub_model import StubModel
from tests.chaos.stub_telegram import StubTelegram
from tests.support import harness
from tests.support.ports import KeptPort

# A file of a victim whose disk is full grows no further than this.
FULL_AT_BYTES = 4096
# The lease of an adapter that was killed is free again by then.
RECEIVES_WITHIN_S = 4.0
_BEGINS_AGAIN = {b'"turn.fenced"': "fenced", b'"turn.delayed"': "delayed"}
_TELLING = (*_BEGINS_AGAIN, b'"worker.started"', b'"worker.stuck"')


class Daemon(harness.Daemon):
    """One of the gateway's processes; it keeps its port and its log over all its lives.

    ``name`` begins the names of its lives: ``d0`` lives as ``d0.1``, ``d0.2``, …

    Args:
        folder: for its log and its switches; its configuration file lies there.
        broker_url: its own way to the broker; empty for the embedded queue.
        platform: whom its adapter talks to, where it has one.
    """

    def __init__(
        self,
        name: str,
        *,
        folder: Path,
        model: StubModel,
        broker_url: str,
        part: Part,
        platform: StubTelegram | None,
        workers: int,
    ) -> None:
        super().__init__(folder)
        self.name, self.part, self.platform = name, part, platform
        self._port = KeptPort()
        self.url = f"http://127.0.0.1:{self._port.port}"
        self.up = self._ready
        self.crew = Crew(self._port.port)
        self.switches = Switches(folder / f"{name}.switches")
        self.life = ""
        # What its log says that explains a repeat: turns that began again, since another process had raised
        # the epoch of their key or they could not be ended (``how`` is the gateway's id of the message),
        # workers that it ended.
        self.told: list[Harm] = []
        self._lives = 0
        self._folder, self._model = folder, model
        self._broker_url, self._workers = broker_url, workers

    async def begin(self, point: str = "") -> None:
        """Begin a life, which ends at ``point`` where one is named; returns before it is ready.

        One that lives goes on as it is.
        """
        if self.alive:
            return
        self._lives += 1
        self.life = f"{self.name}.{self._lives}"
        self.up.clear()
        self.switches.set()
        # It may die before it is ready.
        self._kill_at = point or "at an instant"
        assert self._port is not None
        config = {"model.api_base": self._model.address(self.life), "http.port": self._port.port}
        if self.platform is not None:
            config["channels.telegram.base_url"] = self.platform.address(self.life)
        if self._broker_url:
            config["broker.url"] = self._broker_url
        words = ["tests.chaos.victim", str(self.switches.path), point or "-"]
        words += ["--config", str(self._folder / "chat-gateway.toml")]
        words += ["run", "--role", self.part if self._broker_url else "all"]
        words += ["--workers", str(self._workers)] if self._workers else []
        self._process = await harness.started(words, config)
        self.crew.begin(self.life, self._process.pid)
        self._reader = asyncio.create_task(self._read(), name=f"log of {self.life}")

    async def _read(self) -> None:
        process, life = self._process, self.life
        assert process is not None
        assert process.stderr is not None
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
        event = next((name for name in _TELLING if name in line), b"")
        if not event:
            return
        row, now = json.loads(line), time.time()
        if event in _BEGINS_AGAIN:
            who = self.crew.by_number(life, row["worker"]) if "worker" in row else life
            self.told.append(Harm(_BEGINS_AGAIN[event], who, now, now, row["id"]))
        elif event == b'"worker.started"':
            self.crew.numbered(life, row["number"], row["pid"])
        else:
            # Its gateway ends a worker that stands still; one does where the machine is too busy, too.
            self.told.append(Harm("kill", self.crew.name(row["pid"]), now, now + 1.0, "stuck"))

    async def receives(self) -> None:
        """Wait until its adapter asks for updates, where it has one: another process may hold the lease."""
        if self.platform is not None and self._process is not None:
            asked = asyncio.ensure_future(self.platform.asked_by(self.life))
            died = asyncio.ensure_future(self._process.wait())
            await asyncio.wait((asked, died), timeout=RECEIVES_WITHIN_S, return_when=asyncio.FIRST_COMPLETED)
            asked.cancel()
            died.cancel()

    async def died(self, within_s: float = 120) -> int:
        """Wait until it is gone, and its log is read but for what its workers still write."""
        reader = self._reader
        if self._workers:
            self._reader = None
        code = await super().died(within_s)
        self._reader = reader
        self.up.clear()
        return code

    def fill_disk(self, full: bool) -> None:
        limit = FULL_AT_BYTES if full else resource.RLIM_INFINITY
        with contextlib.suppress(ProcessLookupError):
            resource.prlimit(self.pid, resource.RLIMIT_FSIZE, (limit, resource.RLIM_INFINITY))

    async def close(self) -> None:
        await self.__aexit__()
        self.crew.kill()
        self.switches.close()


_MODULE = b"gateway.cli.worker"


class Crew:
    """The workers of the gateway with this port over all its lives; they may outlive it for their turns."""

    def __init__(self, port: int) -> None:
        self._mark = f"CHAT_GATEWAY_HTTP__PORT={port}".encode()
        self._life, self._gateway = "", 0
        # By process id the life of the gateway that started it.
        self._lives: dict[int, str] = {}
        self._numbers: dict[tuple[str, int], int] = {}

    def begin(self, life: str, gateway: int) -> None:
        self._life, self._gateway = life, gateway

    def living(self) -> list[int]:
        found = []
        for path in Path(f"/proc/{self._gateway}/task").glob("*/children"):
            with contextlib.suppress(OSError):
                found += [int(word) for word in path.read_text().split()]
        pids = sorted(pid for pid in found if _is_worker(pid))
        self._lives |= dict.fromkeys(pids, self._life)
        return pids

    def name(self, pid: int) -> str:
        return f"{self._lives.get(pid, self._life)}.w{pid}"

    def names(self) -> list[str]:
        self.living()
        return [self.name(pid) for pid in self._lives if _is_worker(pid)]

    def numbered(self, life: str, number: int, pid: int) -> None:
        """Note what its gateway says: which process a worker is now."""
        self._lives[pid] = life
        self._numbers[life, number] = pid

    def has_started(self, pid: int) -> bool:
        """Say whether its gateway has told of it: one that still starts is waited for with more patience."""
        return pid in self._numbers.values()

    def by_number(self, life: str, number: int) -> str:
        pid = self._numbers.get((life, number))
        return life if pid is None else self.name(pid)

    def of_port(self, life: str, port: int) -> str:
        """Return the name of the worker at the other end of a connection; of the gateway where it is none."""
        sockets = _sockets(port)
        self.living()
        for pid, its in self._lives.items():
            if its == life and _holds(pid, sockets):
                return self.name(pid)
        return life

    def kill(self) -> None:
        """Kill all that live, also those that were never seen: one that stands still would stay for ever."""
        for path in Path("/proc").glob("[0-9]*"):
            if _is_worker(int(path.name)) and self._is_ours(path):
                with contextlib.suppress(ProcessLookupError):
                    os.kill(int(path.name), signal.SIGKILL)

    def _is_ours(self, process: Path) -> bool:
        try:
            return self._mark in (process / "environ").read_bytes().split(b"\0")
        except OSError:
            return False


def _is_worker(pid: int) -> bool:
    try:
        return _MODULE in Path(f"/proc/{pid}/cmdline").read_bytes().split(b"\0")
    except OSError:
        return False


def _sockets(port: int) -> set[str]:
    """Name the sockets on this machine whose own port that is: another address or end may have one, too."""
    rows = (row.split() for row in Path("/proc/net/tcp").read_text().splitlines()[1:])
    return {f"socket:[{words[9]}]" for words in rows if words[1].endswith(f":{port:04X}")}


def _holds(pid: int, sockets: set[str]) -> bool:
    for path in Path(f"/proc/{pid}/fd").glob("*"):
        with contextlib.suppress(OSError):
            if str(path.readlink()) in sockets:
                return True
    return False
