"""Which connection gives way to a new one, and how wrong tokens are counted."""

from __future__ import annotations

import asyncio
import contextlib
import os
import resource
from collections.abc import AsyncIterator
from pathlib import Path

import httpx
import pytest

from gateway.app import descriptors
from gateway.http.guesses import MAX_ADDRESSES, MAX_IN_ALL, MAX_OF_ADDRESS, WINDOW_S, Guesses
from gateway.http.server import HttpServer
from tests.gateway.http_place import Place, open_place
from tests.support.guarantee import guarantee

TOKEN = "correct-horse-battery-staple"


@pytest.fixture
async def tight(tmp_path: Path) -> AsyncIterator[Place]:
    """A server with a token that may hold 48 descriptors: 24 connections."""

    def prepare(server: HttpServer) -> None:
        server.descriptors = 48

    async with open_place(tmp_path, http={"token": TOKEN}, prepare=prepare) as place:
        yield place


async def begin(place: Place, text: str = "") -> tuple[asyncio.StreamReader, asyncio.StreamWriter]:
    """Open a connection and send the beginning of a request; it is closed once the writer is let go."""
    url = httpx.URL(place.server.url)
    assert url.port is not None
    reader, writer = await asyncio.open_connection(url.host, url.port)
    writer.write(text.encode())
    await writer.drain()
    return reader, writer


async def rest_of(reader: asyncio.StreamReader) -> bytes:
    with contextlib.suppress(ConnectionError):
        return await reader.read()
    return b""


def whole(path: str, *, token: str = TOKEN) -> str:
    return f"GET {path} HTTP/1.1\r\nHost: 127.0.0.1\r\nAuthorization: Bearer {token}\r\n\r\n"


async def test_the_oldest_stranger_gives_way_and_no_stream_does(tight: Place) -> None:
    """Half a head gives way to newer ones in the order in which they came; an open stream never does."""
    stream, looking = await begin(tight, whole("/v1/events?key=web:a"))
    await stream.readuntil(b": listening\n\n")
    strangers = [await begin(tight, "GET / HTTP/1.1\r\n") for _ in range(50)]

    async with asyncio.timeout(8):
        for reader, _ in strangers[:20]:
            assert await rest_of(reader) == b""
        reader, writer = strangers[-1]
        writer.write(b"Host: 127.0.0.1\r\nConnection: close\r\n\r\n")
        assert b"200 OK" in await rest_of(reader)
        await tight.http.post(
            "/v1/messages", json={"chat_id": "a", "text": "hi"}, headers={"Authorization": f"Bearer {TOKEN}"}
        )
        await stream.readuntil(b"echo: hi")
    assert not looking.is_closing()


async def test_where_only_streams_are_open_a_new_client_is_told_at_once(tight: Place) -> None:
    """A connection too many is answered 503 in our form; when a stream ends there is room again."""
    streams = [await begin(tight, whole(f"/v1/events?key=web:{number}")) for number in range(24)]
    for reader, _ in streams:
        await reader.readuntil(b": listening\n\n")

    refused = await tight.http.get("/healthz")
    streams[0][1].transport.abort()
    async with asyncio.timeout(10):
        while (again := await tight.http.get("/healthz")).status_code == 503:
            await asyncio.sleep(0.05)

    assert refused.status_code == 503
    assert set(refused.json()) == {"error", "hint"}
    assert refused.headers["retry-after"]
    assert again.status_code == 200


async def test_a_wrong_token_is_no_ticket_to_stay(tight: Place) -> None:
    """A request that was refused leaves its connection among those that give way."""
    first, asking = await begin(tight, whole("/v1/events?key=web:a", token="wrong"))
    await first.readuntil(b"401 ")
    others = [await begin(tight, "GET") for _ in range(30)]

    async with asyncio.timeout(4):
        await rest_of(first)
    assert len(others) == 30
    asking.close()


async def test_headers_over_their_limit(tight: Place) -> None:
    """A head without end is answered 400 in our form as soon as it is too long."""
    reader, sending = await begin(tight, "GET / HTTP/1.1\r\nX: " + "x" * 17_000)

    answer = await asyncio.wait_for(rest_of(reader), 5)

    assert answer.startswith(b"HTTP/1.1 400 ")
    assert b'{"error":' in answer
    sending.close()


async def from_address(place: Place, address: str, path: str, token: str) -> httpx.Response:
    """Ask from one of the addresses of this machine."""
    transport = httpx.AsyncHTTPTransport(local_address=address)
    async with httpx.AsyncClient(transport=transport, base_url=place.server.url, trust_env=False) as client:
        if path == "/v1/login":
            return await client.post(path, json={"token": token})
        return await client.get(path, headers={"Authorization": f"Bearer {token}"})


@guarantee("security", "A client that guesses tokens has to wait, and no other client does.")
@pytest.mark.parametrize("path", ["/v1/login", "/v1/status"])
async def test_guessing_ends_after_ten(tmp_path: Path, path: str) -> None:
    """Then not even the right token is looked at from there; from elsewhere it is."""
    async with open_place(tmp_path, http={"token": TOKEN}) as place:
        wrong = [
            await from_address(place, "127.0.0.1", path, f"wrong-{i}") for i in range(MAX_OF_ADDRESS + 5)
        ]
        right = await from_address(place, "127.0.0.1", path, TOKEN)
        elsewhere = await from_address(place, "127.0.0.2", path, TOKEN)
        alive = await place.http.get("/healthz")

    statuses = [answer.status_code for answer in wrong]
    assert statuses == [401] * (MAX_OF_ADDRESS - 1) + [429] * 6
    assert right.status_code == 429
    assert 0 < int(right.headers["retry-after"]) <= WINDOW_S
    assert elsewhere.status_code == alive.status_code == 200


@pytest.mark.parametrize("shown", [{"Cookie": "chat_gateway=abcdef"}, {"Authorization": "Bearer revoked"}])
async def test_a_former_token_is_one_guess(tmp_path: Path, shown: dict[str, str]) -> None:
    """A page or a program that goes on with a revoked token does not lock its own address out."""
    async with open_place(tmp_path, http={"token": TOKEN}) as place:
        for _ in range(MAX_OF_ADDRESS * 2):
            stale = await place.http.get("/v1/status", headers=shown)
        right = await place.http.get("/v1/status", headers={"Authorization": f"Bearer {TOKEN}"})

    assert (stale.status_code, right.status_code) == (401, 200)


class Time:
    def __init__(self) -> None:
        self.now = 1000.0

    def __call__(self) -> float:
        return self.now


def test_guesses_from_many_addresses() -> None:
    """Over a hundred in all, whoever guessed wrong once has to wait; who did not is looked at."""
    time = Time()
    guesses = Guesses(time)
    for number in range(MAX_IN_ALL):
        assert guesses.wait_s(f"10.0.0.{number}") == 0
        guesses.note(f"10.0.0.{number}")

    assert guesses.wait_s("10.0.0.7") == WINDOW_S
    assert guesses.wait_s("10.1.0.1") == 0
    time.now += WINDOW_S
    assert guesses.wait_s("10.0.0.7") == 0


def test_a_guess_is_forgotten_after_a_minute() -> None:
    """The wait lasts until the oldest of the ten is a minute old."""
    time = Time()
    guesses = Guesses(time)
    for _ in range(MAX_OF_ADDRESS):
        guesses.note("a")
        time.now += 2

    assert guesses.wait_s("a") == WINDOW_S - 2 * MAX_OF_ADDRESS
    time.now += WINDOW_S - 2 * MAX_OF_ADDRESS
    assert guesses.wait_s("a") == 0


def test_addresses_of_one_client() -> None:
    """The addresses of an IPv6 network are one client's; an IPv4 address is the same in either form."""
    guesses = Guesses(Time())
    for number in range(MAX_OF_ADDRESS):
        guesses.note(f"2001:db8::{number:x}")
        guesses.note("::ffff:10.0.0.1")

    assert guesses.wait_s("2001:db8::ffff") > 0
    assert guesses.wait_s("2001:db8:0:1::1") == 0
    assert guesses.wait_s("10.0.0.1") > 0


def test_addresses_are_bounded() -> None:
    """A flood of addresses pushes the oldest out."""
    guesses = Guesses(Time())
    for number in range(MAX_ADDRESSES + 10):
        guesses.note(f"host{number}")

    assert len(guesses) == MAX_ADDRESSES


def test_the_soft_limit_is_raised_to_the_hard_one() -> None:
    """A process may hold as many descriptors as it is allowed to."""
    reading, writing = os.pipe()
    pid = os.fork()
    if not pid:
        resource.setrlimit(resource.RLIMIT_NOFILE, (64, 200))
        os.write(writing, b"%d" % descriptors.raise_limit())
        os._exit(0)
    os.waitpid(pid, 0)
    os.close(writing)

    assert os.read(reading, 16) == b"200"
    os.close(reading)
