"""Clients that never finish what they begin: they keep nobody from being served, and cost little memory."""

from __future__ import annotations

import asyncio
import contextlib
import resource
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager, contextmanager
from pathlib import Path

import httpx
import pytest

from tests.support.guarantee import guarantee
from tests.support.harness import Daemon
from tests.system.platform_place import told

TOKEN = "correct-horse-battery-staple"
HALF_A_HEAD = b"GET /healthz HTTP/1.1\r\nHost: 127.0.0.1\r\nX-Half: "
MIB = 2**20


@contextmanager
def descriptors(number: int) -> Iterator[None]:
    """Let this process hold that many sockets."""
    before = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (max(before[0], min(number, before[1])), before[1]))
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_NOFILE, before)


@asynccontextmanager
async def half_sent(url: str, number: int, begun: bytes) -> AsyncIterator[None]:
    """Open that many connections, each with the beginning of a request."""
    address = httpx.URL(url)
    assert address.port is not None
    clients: list[asyncio.StreamWriter] = []
    try:
        for _ in range(number):
            _, writer = await asyncio.open_connection(address.host, address.port)
            with contextlib.suppress(ConnectionError):
                writer.write(begun)
                await writer.drain()
            clients.append(writer)
        yield
    finally:
        for client in clients:
            client.transport.abort()


def resident_bytes(pid: int) -> int:
    """How much memory a process holds."""
    for line in Path(f"/proc/{pid}/status").read_text().splitlines():
        if line.startswith("VmRSS:"):
            return int(line.split()[1]) * 1024
    raise AssertionError(f"process {pid} is gone")


def open_descriptors(pid: int) -> int:
    return len(list(Path(f"/proc/{pid}/fd").iterdir()))


@guarantee("security", "An incomplete HTTP request blocks no other client and takes little memory.")
async def test_half_sent_headers_keep_nobody_from_being_served(tmp_path: Path) -> None:
    """``/healthz`` answers at once, a message is answered and the clock goes on."""
    number, limit = 600, 1024
    prefix = ("prlimit", f"--nofile={limit}:{limit}")
    config = {"http.token": TOKEN}
    bearer = {"Authorization": f"Bearer {TOKEN}"}
    with descriptors(number + 500):
        async with (
            Daemon(tmp_path, config=config, prefix=prefix) as daemon,
            httpx.AsyncClient(base_url=daemon.url, timeout=5, trust_env=False) as client,
            client.stream("GET", "/v1/events?key=web:a", headers=bearer) as looker,
            half_sent(daemon.url, number, HALF_A_HEAD),
        ):
            fired = daemon.log.count(b"turn.replied")
            await told(tmp_path, "cron", "add", "--every", "1s", "--message", "tick")
            async with httpx.AsyncClient(base_url=daemon.url, timeout=150, trust_env=False) as fresh:
                alive = await fresh.get("/healthz", timeout=8)
                answer = await fresh.post(
                    "/v1/messages?wait=50", json={"chat_id": "a", "text": "hi"}, headers=bearer
                )
            await daemon.said("turn.replied", fired + 3)
            held = open_descriptors(daemon.pid)

            assert alive.status_code == 200
            assert answer.json()["reply"] == "echo: hi"
            assert held < limit * 3 // 4
            await anext(part async for part in looker.aiter_text() if "echo: hi" in part)


@guarantee("security", "An incomplete HTTP request blocks no other client and takes little memory.")
@pytest.mark.parametrize("path", ["/v1/login", "/healthz", "/v1/messages"])
@pytest.mark.parametrize("token", [TOKEN, ""], ids=["locked", "open"])
async def test_half_sent_bodies_cost_little_memory(tmp_path: Path, path: str, token: str) -> None:
    """Sixty bodies of two mebibytes that lack their end are not kept, with a token set or without."""
    head = f"POST {path} HTTP/1.1\r\nHost: 127.0.0.1\r\nContent-Type: application/json\r\n"
    begun = head.encode() + b"Content-Length: %d\r\n\r\n" % (2 * MIB - 10) + b" " * (2 * MIB - 4096)
    async with (
        Daemon(tmp_path, config={"http.token": token}) as daemon,
        httpx.AsyncClient(base_url=daemon.url, timeout=10, trust_env=False) as client,
    ):
        for _ in range(20):
            await client.get("/healthz")
        before = resident_bytes(daemon.pid)
        highest = before
        async with contextlib.AsyncExitStack() as stack:
            senders = []
            for _ in range(60):
                senders.append(asyncio.create_task(_enter(stack, daemon.url, begun)))
                await asyncio.wait(senders[-1:], timeout=0.1)
                highest = max(highest, resident_bytes(daemon.pid))
            alive = await client.get("/healthz")
            highest = max(highest, resident_bytes(daemon.pid))
            # What is not let in is still being sent.
            for sender in senders:
                sender.cancel()
            await asyncio.wait(senders)

    assert alive.status_code == 200
    assert highest - before < 20 * MIB, f"{(highest - before) / MIB:.1f} MiB"


async def _enter(stack: contextlib.AsyncExitStack, url: str, begun: bytes) -> None:
    await stack.enter_async_context(half_sent(url, 1, begun))


async def test_a_login_over_four_kibibytes_is_refused(tmp_path: Path) -> None:
    """Of what comes before any token little is read, whether it says its length or comes in pieces."""

    async def pieces() -> AsyncIterator[bytes]:
        yield b'{"token": "'
        for _ in range(9):
            yield b"x" * 512
        yield b'"}'

    async with (
        Daemon(tmp_path, config={"http.token": TOKEN}) as daemon,
        httpx.AsyncClient(base_url=daemon.url, timeout=20, trust_env=False) as client,
    ):
        sized = await client.post("/v1/login", json={"token": "x" * 4096})
        chunked = await client.post("/v1/login", content=pieces())
        fits = await client.post("/v1/login", json={"token": "x" * 4000})

    assert (sized.status_code, chunked.status_code, fits.status_code) == (413, 413, 401)
    assert "4 KiB" in sized.json()["error"]
