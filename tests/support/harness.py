"""Whole gateways as real processes: started, asked over HTTP, looked at, killed and started again."""

from __future__ import annotations

import asyncio
import json
import os
import signal
import sys
import time
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import httpx

from tests.support import prepared, stacks
from tests.support.ports import KeptPort
from tests.support.until import until

ROOT = Path(__file__).resolve().parent.parent.parent
READY_S = 120
# What a process takes to say where it stands.
STACKS_S = 2
# Tests fork their daemons from a process that has imported everything; benchmarks do not.
FORKS = False


class Daemon:
    """``chat-gateway run`` in a process of its own, perhaps one that kills itself at a named point.

    It keeps its port over all its lives: a client that asks while it is dead reaches nobody, least of all the
    daemon of another test that was given the port meanwhile.

    ``file``: the configuration file that alone configures it, ``workspace`` and ``http.port`` included.
    """

    def __init__(
        self,
        workspace: Path,
        *,
        role: str = "all",
        config: Mapping[str, Any] | None = None,
        kill_at: str = "",
        cut_at: str = "",
        verb: Sequence[str] = (),
        anew: bool = False,
        prefix: Sequence[str] = (),
        program: Sequence[str] = (),
        file: Path | None = None,
    ) -> None:
        self.workspace = workspace
        self.url = ""
        self.log = bytearray()
        self._role = role
        self._kill_at = kill_at
        self._cut_at = cut_at
        self._verb = list(verb)
        self._anew = anew
        self._prefix = list(prefix)
        self._program = list(program)
        self._file = file
        self._config = {} if file is not None else {"log.format": "json", **(config or {})}
        self._port: KeptPort | None = None
        self._process: asyncio.subprocess.Process | prepared.Process | None = None
        self._reader: asyncio.Task[None] | None = None
        self._ready = asyncio.Event()
        self._spoke = asyncio.Condition()

    @property
    def pid(self) -> int:
        assert self._process is not None
        return self._process.pid

    @property
    def alive(self) -> bool:
        return self._process is not None and self._process.returncode is None

    async def start(self, *, wait: bool = True) -> Daemon:
        """Start it and wait for its ``ready`` line."""
        point = self._kill_at or self._cut_at
        module = ["tests.support.killable", point] if point else self._program or ["gateway"]
        verb = self._verb or ["run", "--role", self._role]
        self._ready.clear()
        place = ["--workspace", self.workspace] if self._file is None else ["--config", self._file]
        words = [*module, *map(str, place), *verb]
        anew = self._anew or bool(self._program)
        if self._port is None and self._file is None and "http.port" not in self._config:
            self._port = KeptPort()
        config = {"http.port": self._port.port, **self._config} if self._port else self._config
        self._process = await started(words, config, anew=anew, prefix=self._prefix)
        self._reader = asyncio.create_task(self._read(), name="daemon log")
        if wait:
            await self.ready()
        return self

    async def reborn(self) -> None:
        """Wait until it has died at its point, then start it without one."""
        code = await self.died()
        assert code == -signal.SIGKILL, self.log.decode()[-2000:]
        self._kill_at = ""
        await self.start()

    async def ready(self, within_s: float = READY_S) -> None:
        """Wait for its ``ready`` line; where none comes it is killed. One with a point may die before."""
        try:
            await self._until_ready(within_s)
        # Whoever waited is gone, and nobody else would end it.
        except BaseException:
            self.signal(signal.SIGKILL)
            raise

    async def _until_ready(self, within_s: float) -> None:
        assert self._process is not None
        died = asyncio.ensure_future(self._process.wait())
        ready = asyncio.ensure_future(self._ready.wait())
        try:
            await asyncio.wait((died, ready), timeout=within_s, return_when=asyncio.FIRST_COMPLETED)
            dead_at_its_point = bool(self._kill_at) and died.done()
        finally:
            died.cancel()
            ready.cancel()
        if not self._ready.is_set() and not dead_at_its_point:
            raise AssertionError(f"daemon did not become ready:\n{self.log.decode()}")

    async def _read(self) -> None:
        assert self._process is not None
        assert self._process.stderr is not None
        async for line in self._process.stderr:
            self.log += line
            if line.startswith(b"ready"):
                self.url = line.decode().removeprefix("ready").strip().rstrip("/")
                self._ready.set()
            async with self._spoke:
                self._spoke.notify_all()

    async def said(self, word: str, times: int = 1, *, within_s: float = 120) -> None:
        """Wait until its log holds ``word`` that many times."""
        async with asyncio.timeout(within_s), self._spoke:
            await self._spoke.wait_for(lambda: self.log.count(word.encode()) >= times)

    async def died(self, within_s: float = 120) -> int:
        """Wait until it is gone; return its exit code (negative: the signal). One that stays says where."""
        assert self._process is not None
        try:
            code = await asyncio.wait_for(self._process.wait(), within_s)
        except TimeoutError:
            if isinstance(self._process, prepared.Process):
                self.signal(stacks.SIGNAL)
                await asyncio.sleep(STACKS_S)
            raise AssertionError(f"it has not ended:\n{self.log.decode()[-20_000:]}") from None
        if self._reader is not None:
            await self._reader
        return code

    def signal(self, number: int) -> None:
        """Send a signal if it still lives."""
        if self._process is not None and self._process.returncode is None:
            self._process.send_signal(number)

    async def freeze(self) -> None:
        """Stop the process where it stands, until SIGCONT; return when it does."""
        self.signal(signal.SIGSTOP)
        stat = Path(f"/proc/{self.pid}/stat")
        await until(lambda: stat.read_text().rpartition(")")[2].split()[0] == "T", 120)

    async def kill(self) -> None:
        self.signal(signal.SIGKILL)
        await self.died()

    async def stop(self, within_s: float = 90) -> int:
        self.signal(signal.SIGTERM)
        return await self.died(within_s)

    async def __aenter__(self) -> Daemon:
        return self if self.alive else await self.start()

    async def __aexit__(self, *_: object) -> None:
        if self._process is not None and self._process.returncode is None:
            await self.kill()
        if self._port is not None:
            self._port.close()
            self._port = None


def environment(config: Mapping[str, Any]) -> dict[str, str]:
    """The process environment with the configuration in it."""
    own = {
        k: v for k, v in os.environ.items() if not k.startswith(("CHAT_GATEWAY_", "OPENAI_", "ANTHROPIC_"))
    }
    for name, value in config.items():
        text = value if isinstance(value, str) else json.dumps(value)
        own["CHAT_GATEWAY_" + name.replace(".", "__").upper()] = text
    return own


async def started(
    words: Sequence[str],
    config: Mapping[str, Any],
    *,
    stdout: bool = False,
    anew: bool = False,
    prefix: Sequence[str] = (),
) -> asyncio.subprocess.Process | prepared.Process:
    """Start ``python -m <words>``: forked where this process forks, unless it shall start anew.

    ``prefix``: a program that starts it, such as ``prlimit`` with its options.
    """
    out = asyncio.subprocess.PIPE if stdout else asyncio.subprocess.DEVNULL
    if FORKS and not anew and not prefix:
        return await prepared.spawn(words, env=environment(config), stdout=out)
    return await asyncio.create_subprocess_exec(
        *(*prefix, sys.executable, "-m", *words),
        cwd=ROOT,
        env=environment(config),
        stdout=out,
        stderr=asyncio.subprocess.PIPE,
        # A traceback of the log is one line, and may be long.
        limit=2**24,
    )


async def command(workspace: Path, *words: str, config: Mapping[str, Any] | None = None) -> tuple[int, str]:
    """Run one verb of the command line; return its exit code and what it printed to stdout."""
    process = await started(["gateway", "--workspace", str(workspace), *words], config or {}, stdout=True)
    try:
        out, _ = await asyncio.wait_for(process.communicate(), 120)
    except TimeoutError:
        process.kill()
        raise
    assert process.returncode is not None
    return process.returncode, out.decode()


async def ask(daemon: Daemon, key: str, id: str, text: str, *, wait_s: float = 60) -> dict[str, Any] | None:
    """POST one message and wait for its reply; None while the daemon does not answer.

    Where the queue of a busy machine did not confirm it in time, it is sent again, as the answer says.
    """
    channel, _, _ = key.partition(":")
    body = (
        {"key": key, "text": text, "id": id}
        if channel != "web"
        else {"chat_id": key.partition(":")[2], "text": text, "id": id}
    )
    until = time.monotonic() + wait_s
    while True:
        try:
            async with httpx.AsyncClient(timeout=wait_s + 10) as client:
                answer = await client.post(f"{daemon.url}/v1/messages?wait={wait_s}", json=body)
        except httpx.HTTPError:
            return None
        if answer.status_code != 503 or time.monotonic() > until:
            return answer.json() if answer.status_code == 200 else None
        await asyncio.sleep(0.2)


async def answer_to(daemon: Daemon, key: str, id: str, text: str, *, wait_s: float = 60) -> dict[str, Any]:
    """Return the answer to a message; fail where none comes."""
    answer = await ask(daemon, key, id, text, wait_s=wait_s)
    assert answer is not None, text
    return answer


async def status(daemon: Daemon) -> dict[str, Any]:
    """Return what the daemon says of itself: its lanes, queues, parts and background work."""
    async with httpx.AsyncClient(timeout=30) as client:
        answer: dict[str, Any] = (await client.get(f"{daemon.url}/v1/status")).json()
    return answer


async def until_running(daemon: Daemon, *waiting: int, within_s: float = 120) -> None:
    """Wait until a turn runs in each lane, with so many letters behind it, and no other lane holds any."""

    async def so() -> bool:
        lanes = (await status(daemon))["lanes"]
        running = all(lane["id"] is not None for lane in lanes)
        return running and sorted(lane["waiting"] for lane in lanes) == sorted(waiting)

    await until(so, within_s)
