"""How many streams a token may have open, what strangers get, and how wrong tokens are counted."""

from __future__ import annotations

import asyncio
import contextlib
import os
import resource
from pathlib import Path

import httpx
import pytest
from structlog.testing import capture_logs

from gateway.app import daemons
from gateway.http.security import (
    MAX_ADDRESSES,
    MAX_IN_ALL,
    MAX_OF_ADDRESS,
    MAX_STREAMS,
    WINDOW_S,
    LoginThrottle,
    Streams,
)
from gateway.service.tokens import Tokens
from tests.gateway.http_place import Place, open_place
from tests.support.clock import Clock
from tests.support.guarantee import guarantee
from tests.support.until import until

TOKEN = "correct-horse-battery-staple"


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


@guarantee("security", "One token cannot shut others out of HTTP, however many streams it opens.")
async def test_a_token_has_64_streams_and_shuts_nobody_out(tmp_path: Path) -> None:
    """One more is refused; health, short requests and everybody else go on."""
    async with open_place(tmp_path, http={"token": TOKEN}) as place, contextlib.AsyncExitStack() as opened:
        reader_token = Tokens(place.application.settings.state).add("viewer", "read")

        async def look(token: str) -> tuple[bytes, asyncio.StreamWriter]:
            reader, writer = await begin(place, whole("/v1/events?key=web:a", token=token))
            opened.callback(writer.transport.abort)
            answer = await reader.readuntil(b"\r\n\r\n")
            return answer, writer

        streams = [await look(reader_token) for _ in range(MAX_STREAMS)]
        refused, _ = await look(reader_token)
        alive = await place.http.get("/healthz")
        short = [
            await place.http.get("/v1/status", headers={"Authorization": f"Bearer {token}"})
            for token in (TOKEN, reader_token)
        ]
        others, _ = await look(TOKEN)
        streams[0][1].transport.abort()

        async def free() -> bool:
            return b"200 OK" in (await look(reader_token))[0]

        await until(free, 10)

    assert {answer.split()[1] for answer, _ in streams} == {b"200"}
    assert b"429 Too Many Requests" in refused
    assert [alive.status_code, *(answer.status_code for answer in short)] == [200] * 3
    assert b"200 OK" in others


def test_streams_leave_places_for_short_requests() -> None:
    streams = Streams(descriptors=80)
    assert [streams.enter("", bounded=False) for _ in range(25)] == [True] * 24 + [False]
    streams.leave("")
    assert streams.enter("viewer", bounded=True)


async def test_refusals_of_strangers_do_not_fill_the_log(tmp_path: Path) -> None:
    """One line for the first, then one in ten seconds with their number."""
    async with open_place(tmp_path, http={"token": TOKEN}) as place:
        with capture_logs() as logs:
            for _ in range(20):
                await place.http.get("/v1/status")

    assert [line["count"] for line in logs if line["event"] == "request.refused"] == [1]


async def test_a_post_that_asks_for_a_websocket_is_answered(tmp_path: Path) -> None:
    head = f"POST /v1/messages HTTP/1.1\r\nHost: 127.0.0.1\r\nAuthorization: Bearer {TOKEN}\r\n"
    head += "Connection: Upgrade\r\nUpgrade: websocket\r\nContent-Length: 20\r\n\r\n" + "x" * 20
    async with open_place(tmp_path, http={"token": TOKEN}) as place:
        reader, writer = await begin(place, head)
        answer = await asyncio.wait_for(reader.readuntil(b"\r\n"), 10)
        writer.close()

    assert answer.split()[1].startswith(b"4")


async def test_headers_over_their_limit(tmp_path: Path) -> None:
    """A head without end is answered 400 as soon as it is too long."""
    async with open_place(tmp_path) as place:
        reader, sending = await begin(place, "GET / HTTP/1.1\r\nX: " + "x" * 17_000)
        answer = await asyncio.wait_for(rest_of(reader), 5)
        sending.close()

    assert answer.startswith(b"HTTP/1.1 400 ")


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


def test_guesses_from_many_addresses() -> None:
    """Over a hundred in all, whoever guessed wrong once has to wait; who did not is looked at."""
    clock = Clock()
    guesses = LoginThrottle(clock.monotonic)
    for number in range(MAX_IN_ALL):
        assert guesses.wait_s(f"10.0.0.{number}") == 0
        guesses.note(f"10.0.0.{number}")

    assert guesses.wait_s("10.0.0.7") == WINDOW_S
    assert guesses.wait_s("10.1.0.1") == 0
    clock.forward(WINDOW_S)
    assert guesses.wait_s("10.0.0.7") == 0

    # The wait of one address lasts until the oldest of its ten is a minute old.
    for _ in range(MAX_OF_ADDRESS):
        guesses.note("a")
        clock.forward(2)
    assert guesses.wait_s("a") == WINDOW_S - 2 * MAX_OF_ADDRESS
    clock.forward(WINDOW_S - 2 * MAX_OF_ADDRESS)
    assert guesses.wait_s("a") == 0


def test_addresses_of_one_client() -> None:
    """The addresses of an IPv6 network are one client's; an IPv4 address is the same in either form.

    A flood of addresses pushes the oldest out.
    """
    guesses = LoginThrottle(Clock().monotonic)
    for number in range(MAX_OF_ADDRESS):
        guesses.note(f"2001:db8::{number:x}")
        guesses.note("::ffff:10.0.0.1")

    assert guesses.wait_s("2001:db8::ffff") > 0
    assert guesses.wait_s("2001:db8:0:1::1") == 0
    assert guesses.wait_s("10.0.0.1") > 0
    for number in range(MAX_ADDRESSES + 10):
        guesses.note(f"host{number}")
    assert len(guesses) == MAX_ADDRESSES


def test_the_soft_limit_is_raised_to_the_hard_one() -> None:
    """A process may hold as many descriptors as it is allowed to."""
    reading, writing = os.pipe()
    pid = os.fork()
    if not pid:
        resource.setrlimit(resource.RLIMIT_NOFILE, (64, 200))
        os.write(writing, b"%d" % daemons.raise_limit())
        os._exit(0)
    os.waitpid(pid, 0)
    os.close(writing)

    assert os.read(reading, 16) == b"200"
    os.close(reading)
