"""Parked letters over HTTP: seen, put back so that they run again, and dropped."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from urllib.parse import quote

import pytest

from gateway.queue.mailbox import INBOUND, Letter, ParkedAs, Post
from session.errors import ModelRefused
from session.models.model import Answer, OnDelta, Prompt
from tests.gateway.http_place import Place
from tests.support.until import until

ODD_IDS = ["plain", "a/b c#d?e%20f", "ü/retry", "telegram:1:2", "..;", "x" * 190]


class Refuses:
    """A plain model that refuses once, then answers."""

    name = "refuses"
    plain = True

    def __init__(self) -> None:
        self.asked = 0

    async def ask(self, prompt: Prompt, on_delta: OnDelta | None = None) -> Answer:
        self.asked += 1
        if self.asked == 1:
            raise ModelRefused("no")
        return Answer("now it goes")


async def park(place: Place, message_id: str, *, key: str = "web:ada", body: bytes = b"{") -> None:
    """Have the worker park a letter that is no Inbound."""
    mailbox = place.application.mailbox

    async def is_parked() -> bool:
        return message_id in {one.id for one in await mailbox.parked()}

    await mailbox.put(Post(INBOUND, key, message_id, body))
    await until(is_parked)


async def rows(place: Place) -> list[str]:
    return [row["id"] for row in (await place.http.get("/v1/parked")).json()["parked"]]


async def test_rows(place: Place) -> None:
    """A parked letter is listed with everything but its body, and shown with it."""
    await park(place, "web:bad", body=b"\xff{")

    (row,) = (await place.http.get("/v1/parked")).json()["parked"]
    shown = (await place.http.get("/v1/parked/web:bad")).json()

    assert list(row) == ["id", "box", "key", "reason", "from", "attempts", "parked_at"]
    assert (row["id"], row["box"], row["key"], row["attempts"]) == ("web:bad", "inbound", None, 0)
    assert shown == row | {"body_base64": "/3s="}


@pytest.mark.parametrize("message_id", ODD_IDS)
async def test_odd_ids(place: Place, message_id: str) -> None:
    """Any id can be named, percent-encoded: shown, put back (and parked again), dropped."""
    await park(place, message_id)
    path = f"/v1/parked/{quote(message_id, safe='')}"

    shown = await place.http.get(path)
    retried = await place.http.post(f"{path}/retry")
    await park(place, message_id)
    dropped = await place.http.delete(path)

    assert (shown.status_code, retried.status_code, dropped.status_code) == (200, 200, 200)
    assert shown.json()["id"] == retried.json()["id"] == dropped.json()["id"] == message_id
    assert await rows(place) == []


async def test_retry_of_a_letter_that_is_just_being_parked(place: Place) -> None:
    """It is listed already, but its letter is not gone yet: put back, it is not taken for that one."""
    place.services.turns.model = Refuses()
    park, begun, let = place.application.mailbox.park, asyncio.Event(), asyncio.Event()

    async def slowly(letter: Letter, listed: ParkedAs, *, mark: Callable[[], Awaitable[object]]) -> None:
        async def held() -> None:
            begun.set()
            await let.wait()
            await mark()

        await park(letter, listed, mark=held)

    place.application.mailbox.park = slowly  # type: ignore[method-assign, assignment]
    await place.post("please", id="one")
    await begun.wait()
    assert await rows(place) == ["web:one"]
    async with place.stream("web:ada") as stream:
        retrying = asyncio.create_task(place.http.post(f"/v1/parked/{quote('web:one')}/retry"))
        # A retry that nothing held would have put the letter back by then.
        for _ in range(20):
            await place.http.get("/healthz")
        let.set()
        event, _ = await stream.next("reply")

    assert (await retrying).status_code == 200
    assert event["text"] == "now it goes"
    assert await rows(place) == []


async def test_one_id_of_two_chats(place: Place) -> None:
    """An id that two chats have parked needs ?key=; without it nothing happens."""
    for chat in ("ada", "bob"):
        place.services.turns.model = Refuses()
        await place.post("please", id="one", chat=chat, wait=30)

    for method, path in (("POST", "/v1/parked/web:one/retry"), ("DELETE", "/v1/parked/web:one")):
        ambiguous = await place.http.request(method, path)
        assert ambiguous.status_code == 409
        assert set(ambiguous.json()) == {"error", "hint"}
    gone = await place.http.delete("/v1/parked/web:one", params={"key": "web:bob"})
    left = (await place.http.get("/v1/parked")).json()["parked"]

    assert gone.json()["key"] == "web:bob"
    assert [row["key"] for row in left] == ["web:ada"]


async def test_unknown_id(place: Place) -> None:
    """What is not parked is 404."""
    for method, path in (("GET", "/v1/parked/x"), ("POST", "/v1/parked/x/retry"), ("DELETE", "/v1/parked/x")):
        assert (await place.http.request(method, path)).status_code == 404
