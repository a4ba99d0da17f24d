"""Whole gateways as real processes: start, feed by a foreign client, kill, and check what they promise."""

from __future__ import annotations

import asyncio
import contextlib
import fcntl
import json
import os
import signal
import sys
import zlib
from collections.abc import AsyncIterator, Iterator, Mapping, Sequence
from contextlib import asynccontextmanager, contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import aio_pika
import httpx

from tests.support import prepared

ROOT = Path(__file__).resolve().parent.parent.parent
READY_S = 60
# Tests fork their daemons from a process that has imported everything; benchmarks and chaos do not.
FORKS = False


def slot(key: str) -> str:
    """The routing key of a conversation, computed as a foreign program would."""
    return f"{zlib.crc32(key.encode()) % 256:03d}"


def inbound(key: str, id: str, text: str, **fields: Any) -> bytes:
    """An Inbound as a foreign program writes it: the required fields and no more."""
    channel, _, chat_id = key.partition(":")
    body = {"v": 1, "id": id, "key": key, "channel": channel, "chat_id": chat_id, "text": text, **fields}
    return json.dumps(body).encode()


class Daemon:
    """``chat-gateway run`` in a process of its own, perhaps one that kills itself at a named point."""

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
        self._config = {"http.port": 0, "log.format": "json", **(config or {})}
        self._process: asyncio.subprocess.Process | prepared.Process | None = None
        self._reader: asyncio.Task[None] | None = None
        self._ready = asyncio.Event()
        self._spoke = asyncio.Condition()

    @property
    def pid(self) -> int:
        """The process id."""
        assert self._process is not None
        return self._process.pid

    @property
    def alive(self) -> bool:
        """Whether its process runs."""
        return self._process is not None and self._process.returncode is None

    async def start(self, *, wait: bool = True) -> Daemon:
        """Start it and wait for its ``ready`` line."""
        point = self._kill_at or self._cut_at
        module = ["tests.support.killable", point] if point else self._program or ["gateway"]
        verb = self._verb or ["run", "--role", self._role]
        self._ready.clear()
        words = [*module, "--workspace", str(self.workspace), *verb]
        anew = self._anew or bool(self._program)
        self._process = await _started(words, self._config, anew=anew, prefix=self._prefix)
        self._reader = asyncio.create_task(self._read(), name="daemon log")
        if wait:
            try:
                await self._until_ready()
            except BaseException:  # whoever waited is gone, and nobody else would end it
                self.signal(signal.SIGKILL)
                raise
        return self

    async def _until_ready(self) -> None:
        assert self._process is not None
        died = asyncio.ensure_future(self._process.wait())
        ready = asyncio.ensure_future(self._ready.wait())
        try:
            await asyncio.wait((died, ready), timeout=READY_S, return_when=asyncio.FIRST_COMPLETED)
        finally:
            died.cancel()
            ready.cancel()
        if not self._ready.is_set() and not self._kill_at:
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

    async def said(self, word: str, times: int = 1, *, within_s: float = 60) -> None:
        """Wait until its log holds ``word`` that many times."""
        async with asyncio.timeout(within_s), self._spoke:
            await self._spoke.wait_for(lambda: self.log.count(word.encode()) >= times)

    async def died(self, within_s: float = 120) -> int:
        """Wait until it is gone; return its exit code (negative: the signal)."""
        assert self._process is not None
        code = await asyncio.wait_for(self._process.wait(), within_s)
        if self._reader is not None:
            await self._reader
        return code

    def signal(self, number: int) -> None:
        """Send a signal if it still lives."""
        if self._process is not None and self._process.returncode is None:
            self._process.send_signal(number)

    async def kill(self) -> None:
        """Kill -9 and wait."""
        self.signal(signal.SIGKILL)
        await self.died()

    async def stop(self, within_s: float = 90) -> int:
        """SIGTERM and wait."""
        self.signal(signal.SIGTERM)
        return await self.died(within_s)

    async def __aenter__(self) -> Daemon:
        return self if self.alive else await self.start()

    async def __aexit__(self, *_: object) -> None:
        if self._process is not None and self._process.returncode is None:
            await self.kill()


def environment(config: Mapping[str, Any]) -> dict[str, str]:
    """The process environment with the configuration in it."""
    own = {
        k: v for k, v in os.environ.items() if not k.startswith(("CHAT_GATEWAY_", "OPENAI_", "ANTHROPIC_"))
    }
    for name, value in config.items():
        text = value if isinstance(value, str) else json.dumps(value)
        own["CHAT_GATEWAY_" + name.replace(".", "__").upper()] = text
    return own


async def _started(
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
    if FORKS and not anew and not prefix:
        return await prepared.spawn(words, env=environment(config), stdout=stdout)
    return await asyncio.create_subprocess_exec(
        *(*prefix, sys.executable, "-m", *words),
        cwd=ROOT,
        env=environment(config),
        stdout=asyncio.subprocess.PIPE if stdout else asyncio.subprocess.DEVNULL,
        stderr=asyncio.subprocess.PIPE,
    )


async def command(workspace: Path, *words: str, config: Mapping[str, Any] | None = None) -> tuple[int, str]:
    """Run one verb of the command line; return its exit code and what it printed to stdout."""
    process = await _started(["gateway", "--workspace", str(workspace), *words], config or {}, stdout=True)
    out, _ = await asyncio.wait_for(process.communicate(), 60)
    assert process.returncode is not None
    return process.returncode, out.decode()


async def put(url: str, body: bytes, *, name: str = "chat", headers: Mapping[str, Any] | None = None) -> None:
    """Publish one body as a foreign program would, again until the broker confirms it."""
    message = json.loads(body)
    connection = await aio_pika.connect(url)
    async with connection:
        channel = await connection.channel(on_return_raises=True)
        exchange = await channel.get_exchange(f"{name}.inbound", ensure=False)
        await exchange.publish(
            aio_pika.Message(body, message_id=message["id"], delivery_mode=2, headers=dict(headers or {})),
            routing_key=slot(message["key"]),
        )


@asynccontextmanager
async def foreign(url: str, *, name: str = "chat") -> AsyncIterator[ForeignClient]:
    """A program of another kind on the same broker: it puts inbound and takes outbound."""
    connection = await aio_pika.connect(url)
    async with connection:
        channel = await connection.channel(on_return_raises=True)
        yield ForeignClient(connection, channel, name)


class ForeignClient:
    """Plain aio-pika, no code of ours."""

    def __init__(self, connection: Any, channel: Any, name: str) -> None:
        self._connection = connection
        self._channel = channel
        self._name = name

    async def put(self, body: bytes) -> None:
        """Publish, mandatory and confirmed."""
        message = json.loads(body)
        exchange = await self._channel.get_exchange(f"{self._name}.inbound", ensure=False)
        await exchange.publish(
            aio_pika.Message(body, message_id=message["id"], delivery_mode=2),
            routing_key=slot(message["key"]),
        )

    async def collect(self, channel: str, wanted: int, *, timeout_s: float = 60) -> list[dict[str, Any]]:
        """Take from ``outbound.<channel>`` until ``wanted`` different ids of replies came; all that came."""
        taken: list[dict[str, Any]] = []
        async with asyncio.timeout(timeout_s):
            queue = await self._queue(f"{self._name}.outbound.{channel}")
            async for message in queue.iterator():
                await message.ack()
                if "probe" in message.headers:
                    continue
                taken.append(json.loads(message.body))
                if len({one["id"] for one in taken}) >= wanted:
                    break
        return taken

    async def _queue(self, name: str) -> Any:
        """Look for a queue until the first reply to its channel has made it."""
        while True:
            channel = await self._connection.channel()
            try:
                return await channel.declare_queue(name, passive=True)
            except aio_pika.exceptions.ChannelNotFoundEntity:
                await asyncio.sleep(0.1)


class Steady:
    """A careful foreign program: it puts again until confirmed, takes all the time, and outlives its broker.

    ``replies`` holds what came from ``outbound.<channel>``, in order, repeats included.
    """

    def __init__(self, url: str, *, name: str = "chat", channel: str = "foreign") -> None:
        self.replies: list[dict[str, Any]] = []
        self._url = url
        self._name = name
        self._from = channel
        self._came = asyncio.Condition()
        self._exchange: Any = None
        self._entering = asyncio.Lock()
        self._putting: Any = None
        self._taking: asyncio.Task[None] | None = None

    async def __aenter__(self) -> Steady:
        self._taking = asyncio.create_task(self._take(), name="foreign taker")
        return self

    async def __aexit__(self, *_: object) -> None:
        assert self._taking is not None
        self._taking.cancel()
        await asyncio.wait([self._taking])
        await self._leave()

    async def put(self, body: bytes) -> None:
        """Return when the broker has confirmed it, however often it had to be said."""
        message = json.loads(body)
        while True:
            try:
                async with asyncio.timeout(10):
                    exchange = await self._enter()
                    letter = aio_pika.Message(body, message_id=message["id"], delivery_mode=2)
                    await exchange.publish(letter, routing_key=slot(message["key"]))
                    return
            except Exception:  # noqa: BLE001 - its library raises even the bare one where a connection breaks
                await self._leave()
                await asyncio.sleep(0.1)

    async def answered(self, *ids: str, within_s: float = 90) -> dict[str, str]:
        """Wait until each of these ids has come; return their texts, the first of each."""
        async with asyncio.timeout(within_s), self._came:
            await self._came.wait_for(lambda: set(ids) <= {reply["id"] for reply in self.replies})
        return {reply["id"]: reply["text"] for reply in reversed(self.replies) if reply["id"] in ids}

    def told(self, id: str) -> list[str]:
        """Return the texts that came under an id, repeats included."""
        return [reply["text"] for reply in self.replies if reply["id"] == id]

    async def _enter(self) -> Any:
        async with self._entering:
            if self._exchange is None:
                self._putting = await aio_pika.connect(self._url)
                channel = await self._putting.channel(on_return_raises=True)
                self._exchange = await channel.get_exchange(f"{self._name}.inbound", ensure=False)
            return self._exchange

    async def _leave(self) -> None:
        connection, self._putting, self._exchange = self._putting, None, None
        if connection is not None:
            with contextlib.suppress(Exception):
                await asyncio.wait_for(connection.close(), 2)

    async def _take(self) -> None:
        while True:
            try:
                async with await aio_pika.connect(self._url) as connection:
                    channel = await connection.channel()
                    queue = await channel.declare_queue(f"{self._name}.outbound.{self._from}", passive=True)
                    async with queue.iterator() as letters:
                        async for letter in letters:
                            await letter.ack()
                            await self._note(letter)
            except Exception:  # noqa: BLE001 - as above
                await asyncio.sleep(0.1)

    async def _note(self, letter: Any) -> None:
        if "probe" not in letter.headers:
            async with self._came:
                self.replies.append(json.loads(letter.body))
                self._came.notify_all()


async def ask(daemon: Daemon, key: str, id: str, text: str, *, wait_s: float = 60) -> dict[str, Any] | None:
    """POST one message and wait for its reply; None while the daemon does not answer."""
    channel, _, _ = key.partition(":")
    body = (
        {"key": key, "text": text, "id": id}
        if channel != "web"
        else {"chat_id": key.partition(":")[2], "text": text, "id": id}
    )
    try:
        async with httpx.AsyncClient(timeout=wait_s + 10) as client:
            answer = await client.post(f"{daemon.url}/v1/messages?wait={wait_s}", json=body)
    except httpx.HTTPError:
        return None
    return answer.json() if answer.status_code == 200 else None


@contextmanager
def at_rest(workspace: Path, stem: str) -> Iterator[None]:
    """Let no daemon write a key's transcript, which it does under the lock, while it is looked at."""
    with (workspace / "state" / "keys" / f"{stem}.lock").open() as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        yield


def lines_of(workspace: Path, stem: str) -> list[dict[str, Any]]:
    """The message lines of a key, ended sessions first; fails on those that are not legal."""
    archive = workspace / "sessions" / "archive" / stem
    ended = sorted(archive.glob("*.jsonl"), key=lambda path: path.name[-32:])
    return [line for path in [*ended, workspace / "sessions" / f"{stem}.jsonl"] for line in _lines(path)]


def _lines(path: Path) -> list[dict[str, Any]]:
    data = path.read_bytes()
    assert data.endswith(b"\n"), f"{path} has a torn tail"
    head, *lines = [json.loads(line) for line in data.split(b"\n")[:-1]]
    assert head["_type"] == "metadata"
    assert all("role" in line for line in lines)
    return lines


@dataclass
class Verdict:
    """What a check over a whole run found, by guarantee."""

    messages: int = 0
    lost: list[str] = field(default_factory=list)
    twice: list[str] = field(default_factory=list)
    reordered: list[str] = field(default_factory=list)
    torn_chains: list[str] = field(default_factory=list)

    @property
    def sound(self) -> bool:
        """Whether every guarantee held."""
        return not (self.lost or self.twice or self.reordered or self.torn_chains)


def check(workspace: Path, sent: Mapping[str, Sequence[str]]) -> Verdict:
    """Check G1–G3 on the transcripts: ``sent`` has the ids of each stem in the order of their puts."""
    verdict = Verdict(messages=sum(len(ids) for ids in sent.values()))
    for stem, ids in sent.items():
        lines = lines_of(workspace, stem)
        users = [line["message_id"] for line in lines if line["role"] == "user"]
        finals = [line["message_id"] for line in lines if line.get("final")]
        verdict.lost += [one for one in ids if one not in finals]
        verdict.twice += [one for one in set(users) if users.count(one) > 1 or finals.count(one) > 1]
        if [one for one in finals if one in set(ids)] != [one for one in ids if one in set(finals)]:
            verdict.reordered.append(stem)
        calls = [call["id"] for line in lines for call in line.get("tool_calls") or []]
        results = [line["tool_call_id"] for line in lines if line["role"] == "tool"]
        if sorted(calls) != sorted(results):
            verdict.torn_chains.append(stem)
    return verdict
