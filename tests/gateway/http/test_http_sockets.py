"""The WebSocket: the events of a chat, once each and in order, and who is refused or cut."""

from __future__ import annotations

import asyncio
import contextlib
import socket
from pathlib import Path
from typing import Any

import orjson
import pytest
from websockets.asyncio.client import ClientConnection, connect
from websockets.exceptions import ConnectionClosed, InvalidStatus

from gateway.service.records import Record
from gateway.service.tokens import Tokens
from session.errors import StoreError
from tests.gateway.http_place import Place, open_place

TOKEN = "correct-horse-battery-staple"
UPGRADE = (
    b"GET /v1/ws?key=web:ada HTTP/1.1\r\nHost: 127.0.0.1\r\nUpgrade: websocket\r\nConnection: Upgrade\r\n"
    b"Sec-WebSocket-Key: dGhlIHNhbXBsZSBub25jZQ==\r\nSec-WebSocket-Version: 13\r\n\r\n"
)


def opened(
    place: Place, key: str = "web:ada", *, token: str = "", origin: str | None = None, **query: Any
) -> connect:
    """Prepare a client of a chat's events."""
    words = "&".join(f"{name}={value}" for name, value in {"key": key, **query}.items() if value != "")
    headers = {"Authorization": f"Bearer {token}"} if token else {}
    url = place.server.url.replace("http:", "ws:")
    return connect(f"{url}v1/ws?{words}", additional_headers=headers, origin=origin, proxy=None)  # type: ignore[arg-type]


async def following(client: ClientConnection, *kinds: str) -> dict[str, Any]:
    """Receive the next event (of one of these kinds)."""
    async with asyncio.timeout(30):
        while True:
            event: dict[str, Any] = orjson.loads(await client.recv())
            if not kinds or event["kind"] in kinds:
                return event


async def test_a_turn_as_it_is_seen(place: Place) -> None:
    """Who looks on sees the same events as by server-sent events."""
    model = place.gate()
    async with opened(place) as client, place.stream("web:ada") as stream:
        await place.post("hello", id="one")
        seen = [await following(client), await following(client)]
        model.let.set()
        seen.append(await following(client))
        beside = [await stream.next() for _ in range(3)]

    assert [event["kind"] for event in seen] == ["started", "delta", "reply"]
    assert {event["in_reply_to"] for event in seen} == {"web:one"}
    assert (seen[1]["text"], seen[2]["text"], seen[2]["id"]) == ("got ", "got hello", "web:one#reply")
    assert beside == list(zip(seen, ("", "", str(seen[2]["seq"])), strict=True))


async def test_a_turn_whose_conversation_is_deleted_is_told_as_ended(place: Place) -> None:
    model = place.gate()
    async with opened(place) as client:
        await place.post("hello", id="one")
        await model.begun.wait()
        await place.http.post("/clear-session", json={"key": "web:ada"})
        told = await following(client, "notice", "reply")

    assert (told["kind"], told["id"]) == ("notice", f"{told['in_reply_to']}#notice.cleared")
    assert told["text"] == "The conversation was deleted before this message was answered."
    model.let.set()


async def test_an_answer_that_is_being_written(place: Place) -> None:
    """With ``draft`` who comes in the middle gets the text so far in one piece, and no piece twice."""
    model = place.gate()
    async with opened(place):
        await place.post("hello", id="one")
        await model.begun.wait()
        async with opened(place, draft="true") as client:
            draft = await following(client)
            model.let.set()
            reply = await following(client)

    assert (draft["kind"], draft["text"]) == ("draft", "got ")
    assert reply["kind"] == "reply"


@pytest.mark.parametrize(
    ("query", "status"),
    [({"key": ""}, 400), ({"last_id": "x"}, 400), ({"last_id": "-1"}, 400), ({"key": "a" * 5000}, 400)],
)
async def test_what_is_asked_wrongly(place: Place, query: dict[str, str], status: int) -> None:
    """A request that cannot be served is answered in our form before it becomes a WebSocket."""
    with pytest.raises(InvalidStatus) as refused:
        async with opened(place, **query):
            pass

    assert refused.value.response.status_code == status
    assert set(orjson.loads(refused.value.response.body or b"")) == {"error", "hint"}
    assert "x-request-id" in refused.value.response.headers


async def test_who_is_let_in(tmp_path: Path) -> None:
    """Without a token it is 401, from a foreign page 403; a token that may look is enough."""
    async with open_place(tmp_path, http={"token": TOKEN}) as place:
        reader = Tokens(place.application.settings.state).add("reader", "read")
        for token, origin, status in (
            ("", None, 401),
            ("wrong", None, 401),
            (TOKEN, "http://evil.example", 403),
        ):
            with pytest.raises(InvalidStatus) as refused:
                async with opened(place, token=token, origin=origin):
                    pass
            assert refused.value.response.status_code == status
            assert set(orjson.loads(refused.value.response.body or b"")) == {"error", "hint"}
        async with opened(place, token=reader) as client:
            headers = {"Authorization": f"Bearer {TOKEN}"}
            await place.http.post("/v1/messages", json={"chat_id": "ada", "text": "hi"}, headers=headers)
            assert (await following(client, "reply"))["text"] == "echo: hi"


async def test_nothing_is_read(place: Place) -> None:
    """Who sends something is told where messages go, and closed."""
    async with opened(place) as client:
        await client.send("hello")
        with pytest.raises(ConnectionClosed) as closed:
            await asyncio.wait_for(client.recv(), 30)

    assert closed.value.rcvd is not None
    assert (closed.value.rcvd.code, "POST /v1/messages" in closed.value.rcvd.reason) == (1003, True)


async def test_who_takes_nothing_holds_no_turn(place: Place) -> None:
    """A client that stops reading fills its own line alone: turns and other clients go on."""
    reading = socket.create_connection(("127.0.0.1", int(place.server.url.rsplit(":", 1)[1].rstrip("/"))))
    reading.sendall(UPGRADE)
    async with opened(place) as client:
        for number in range(12):
            await place.post(f"{number} " + "x" * 100_000, wait=30)
        told = [await following(client, "reply") for _ in range(12)]
    reading.close()

    assert [event["text"].split()[1] for event in told] == [str(number) for number in range(12)]


async def test_a_store_that_refuses_ends_both_kinds_of_streams(
    place: Place, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """Its client comes back and is told then; each that looks on would have left a traceback in the log."""

    async def refused(*_: object) -> None:
        raise StoreError("Too many open files")

    place.server.chats.heartbeat_s = 0.05
    async with opened(place) as client, place.http.stream("GET", "/v1/events?key=web:ada") as answer:
        monkeypatch.setattr(Record, "told", refused)
        async with asyncio.timeout(30):
            text = "".join([piece async for piece in answer.aiter_text()])
            with pytest.raises(ConnectionClosed) as caught:
                await client.recv()

    assert "id: 0" in text
    assert caught.value.rcvd is not None
    assert (caught.value.rcvd.code, caught.value.rcvd.reason) == (1011, "it could not be stored")
    assert "Traceback" not in caplog.text


async def test_the_end_of_the_daemon(tmp_path: Path) -> None:
    """A daemon that ends says so, and a client that comes back to the next one misses nothing."""
    async with open_place(tmp_path) as place:
        client = await opened(place).__aenter__()
        await place.post("one", wait=30)
        first = await following(client, "reply")
    await asyncio.wait_for(client.wait_closed(), 30)
    async with open_place(tmp_path) as place:
        await place.post("two", wait=30)
        async with opened(place, last_id=first["seq"]) as again:
            second = await following(again, "reply", "notice")

    assert client.close_code == 1012
    assert second["text"] == "echo: two"


async def test_a_revoked_token_sees_nothing_more(tmp_path: Path) -> None:
    """Streams that were opened with a token end with it, before the next event is shown."""
    async with open_place(tmp_path, http={"token": TOKEN}) as place:
        tokens, ours = Tokens(place.application.settings.state), {"Authorization": f"Bearer {TOKEN}"}
        reader = tokens.add("reader", "read")
        shown = {"Authorization": f"Bearer {reader}"}
        async with (
            opened(place, token=reader) as client,
            place.http.stream("GET", "/v1/events", params={"key": "web:ada"}, headers=shown) as stream,
        ):
            tokens.revoke("reader")
            await place.http.post("/v1/messages", json={"chat_id": "ada", "text": "secret"}, headers=ours)
            await asyncio.wait_for(client.wait_closed(), 30)
            streamed = "".join([text async for text in stream.aiter_text()])

    assert client.close_code == 1008
    assert "secret" not in streamed


async def test_who_takes_nothing_is_cut(tmp_path: Path) -> None:
    """A client that takes nothing for too long loses its connection."""
    async with open_place(tmp_path) as place:
        place.server.chats.slow_s = 0.2
        silent, loop = socket.socket(), asyncio.get_running_loop()
        silent.setblocking(False)
        silent.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4096)
        await loop.sock_connect(silent, ("127.0.0.1", int(place.server.url.rsplit(":", 1)[1].rstrip("/"))))
        await loop.sock_sendall(silent, UPGRADE)
        # More than the kernel keeps for it.
        for number in range(10):
            await place.post(f"{number} " + "x" * 800_000, wait=30)

        # What had left before the cut is read, then the line is broken; else there would be more to wait for.
        async with asyncio.timeout(30):
            with contextlib.suppress(ConnectionError):
                while await loop.sock_recv(silent, 2**20):
                    pass
        silent.close()


async def test_who_pings_and_takes_no_answer_is_cut(place: Place) -> None:
    """Each ping is answered; the answers of one that reads nothing would fill the memory."""
    silent, loop = socket.socket(), asyncio.get_running_loop()
    silent.setblocking(False)
    silent.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4096)
    await loop.sock_connect(silent, ("127.0.0.1", int(place.server.url.rsplit(":", 1)[1].rstrip("/"))))
    await loop.sock_sendall(silent, UPGRADE)
    assert (await loop.sock_recv(silent, 4096)).startswith(b"HTTP/1.1 101")
    # Masked, with a payload of 125 bytes.
    pings = (b"\x89\xfd" + bytes(4) + b"p" * 125) * 4_000

    async def without_end() -> None:
        for _ in range(100):
            await loop.sock_sendall(silent, pings)

    with pytest.raises(ConnectionError):
        await asyncio.wait_for(without_end(), 60)
    silent.close()
