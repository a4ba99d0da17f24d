"""The event stream: replies and notices once each and in order, over every kind of interruption."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, MutableMapping
from pathlib import Path
from typing import Any

import pytest

from gateway.http.events import EventStream
from gateway.service.client_message import inbound
from gateway.service.records import Record
from gateway.turns.event import read_event
from session.errors import StoreError
from session.transcript.key import SessionKey
from tests.gateway.http_place import Place, open_place


@pytest.fixture
async def place(tmp_path: Path) -> AsyncIterator[Place]:
    async with open_place(tmp_path) as place:
        yield place


async def test_a_turn_as_it_is_seen(place: Place) -> None:
    """Who looks on sees a turn start, its pieces, and its reply under the seq to resume from."""
    model = place.gate()
    async with place.stream("web:ada") as stream:
        await place.post("hello", id="one")
        started = await stream.next()
        delta = await stream.next()
        model.let.set()
        reply = await stream.next()

    assert [event["kind"] for event, _ in (started, delta, reply)] == ["started", "delta", "reply"]
    assert {event["in_reply_to"] for event, _ in (started, delta, reply)} == {"web:one"}
    assert (delta[0]["text"], reply[0]["text"]) == ("got ", "got hello")
    assert (started[1], delta[1], reply[1]) == ("", "", str(reply[0]["seq"]))
    assert reply[0]["id"] == "web:one#reply"


async def test_other_chats_are_not_seen(place: Place) -> None:
    """A stream shows its own chat alone."""
    async with place.stream("web:ada") as stream:
        await place.post("not for ada", chat="bob", wait=30)
        await place.post("for ada")
        event, _ = await stream.next("reply")

    assert event["text"] == "echo: for ada"


async def test_resume_without_gap_or_repeat(place: Place) -> None:
    """After Last-Event-ID come exactly the later replies and notices, those of ended sessions included."""
    for text in ("one", "two", "/help", "three", "/new", "four"):
        await place.post(text, wait=30)
    async with place.stream("web:ada", 0) as stream:
        everything = [await stream.next() for _ in range(6)]
    second = int(everything[1][1])

    async with place.stream("web:ada", second) as stream:
        later = [await stream.next() for _ in range(4)]
        await place.post("five")
        live = await stream.next("reply")

    texts = [event["text"] for event, _ in everything]
    assert texts[:2] == ["echo: one", "echo: two"]
    assert "/stop" in texts[2]
    assert (texts[3], texts[5]) == ("echo: three", "echo: four")
    assert [number for _, number in everything] == ["1", "2", "3", "4", "5", "6"]
    assert later == everything[2:]
    assert (live[0]["text"], live[1]) == ("echo: five", "7")


async def test_who_has_nothing_yet_can_come_back(place: Place) -> None:
    """A stream begins with the id to go on from, in no event; one that is resumed needs none."""
    await place.post("before", wait=30)
    async with place.stream("web:ada") as stream:
        begins = await stream.begins()
    await place.post("meanwhile", wait=30)
    async with place.stream("web:ada", int(begins)) as stream:
        missed = await stream.next()
    async with place.stream("web:bob") as stream:
        none = await stream.begins()
    await place.post("first", chat="bob", wait=30)
    async with place.stream("web:bob", int(none)) as stream:
        first = await stream.next()

    assert (begins, none) == ("1", "0")
    assert [(event["text"], number) for event, number in (missed, first)] == [
        ("echo: meanwhile", "2"),
        ("echo: first", "1"),
    ]


async def test_last_id_from_the_future(place: Place) -> None:
    """A client whose count is ahead of the journal's (all of the chat was deleted) hears what comes next."""
    async with place.stream("web:ada", 999) as stream:
        await place.post("hello")
        event, _ = await stream.next("reply")

    assert event["text"] == "echo: hello"


async def test_redelivered_reply_comes_once(place: Place) -> None:
    """A message that is handed in again is answered again, but a stream shows its reply once."""
    async with place.stream("web:ada") as stream:
        await place.post("one", id="one")
        first, _ = await stream.next("reply")
        await place.post("one", id="one")
        await place.post("two", id="two")
        second, _ = await stream.next("reply")

    assert (first["text"], second["text"]) == ("echo: one", "echo: two")


async def test_lost_event_is_made_up(tmp_path: Path) -> None:
    """A reply whose event was lost is shown from the record, at a heartbeat or before the next reply."""

    def quick(server: Any) -> None:
        server.chats.heartbeat_s = 0.2

    async with open_place(tmp_path, prepare=quick) as place, place.stream("web:ada", 0) as stream:
        tell, place.application.events.tell = place.application.events.tell, _silence  # type: ignore[method-assign]
        await place.post("lost", wait=30)
        lost = await stream.next("reply")
        place.server.chats.heartbeat_s = 60
        await stream.heartbeat()
        await place.post("lost too", wait=30)
        place.application.events.tell = tell  # type: ignore[method-assign]
        await place.post("heard", wait=30)
        after = [await stream.next("reply"), await stream.next("reply")]

    assert (lost[0]["text"], lost[1]) == ("echo: lost", "1")
    assert [(event["text"], number) for event, number in after] == [
        ("echo: lost too", "2"),
        ("echo: heard", "3"),
    ]


async def _silence(*_: Any, **__: Any) -> None:
    """Lose an event, as a broken connection to the broker does."""


async def test_late_event_does_not_move_the_resume_point(place: Place) -> None:
    """A reply that is told after one with a higher seq is shown, without an id that would lead back."""
    async with place.stream("web:ada", 0) as stream:
        for seq in (2, 1, 3):
            await place.application.events.tell(
                "reply", "web:ada", f"web:{seq}", text=f"text {seq}", seq=seq, event_id=f"web:{seq}#reply"
            )
        seen = [await stream.next() for _ in range(3)]

    assert [(event["seq"], number) for event, number in seen] == [(2, "2"), (1, ""), (3, "3")]


async def test_heartbeats(tmp_path: Path) -> None:
    """A quiet stream says that it is still there."""

    def quick(server: Any) -> None:
        server.chats.heartbeat_s = 0.05

    async with open_place(tmp_path, prepare=quick) as place, place.stream("web:ada") as stream:
        for _ in range(3):
            await stream.heartbeat()


async def test_a_store_that_refuses_ends_a_stream(
    place: Place, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """Its client comes back and is told then; each that looks on would have left a traceback in the log."""

    async def refused(*_: object) -> None:
        raise StoreError("Too many open files")

    place.server.chats.heartbeat_s = 0.05
    async with place.http.stream("GET", "/v1/events", params={"key": "web:ada"}) as answer:
        monkeypatch.setattr(Record, "told", refused)
        async with asyncio.timeout(30):
            text = "".join([piece async for piece in answer.aiter_text()])

    assert "id: 0" in text
    assert "Traceback" not in caplog.text


async def test_deltas_only_while_somebody_looks(place: Place) -> None:
    """Nobody looks, nobody pays: without a stream the slot is not watched."""
    assert not place.application.events.watched("web:ada")
    async with place.stream("web:ada"):
        assert place.application.events.watched("web:ada")
        assert not place.application.events.watched("web:bob")


@pytest.mark.parametrize("last", ["x", "-1", "1.5", "9" * 20])
async def test_bad_last_event_id(place: Place, last: str) -> None:
    """A Last-Event-ID that no stream of ours ever gave is refused."""
    answer = await place.http.get("/v1/events", params={"key": "web:ada"}, headers={"Last-Event-ID": last})

    assert answer.status_code == 400
    assert set(answer.json()) == {"error", "hint"}


async def test_key_is_needed(place: Place) -> None:
    """A stream is of one chat."""
    assert (await place.http.get("/v1/events")).status_code == 400


async def test_open_streams_do_not_hold_up_the_end(tmp_path: Path) -> None:
    """With streams open the application closes, and the streams end cleanly: none waits until it is cut."""
    async with asyncio.TaskGroup() as group, open_place(tmp_path) as place:
        opened = asyncio.Event()
        looking = group.create_task(_until_end(place, opened))
        await opened.wait()
        place.server.chats.closing.set()
        async with asyncio.timeout(30):
            # The server still serves: only the end itself can have ended the stream.
            await looking
        assert (await place.http.get("/healthz")).status_code == 200
        # Uptime monitors ask with HEAD.
        for path in ("/", "/healthz", "/readyz"):
            head = await place.http.head(path)
            assert (head.status_code, head.content) == (200, b"")


async def _until_end(place: Place, opened: asyncio.Event) -> None:
    async with place.stream("web:ada") as stream:
        opened.set()
        with pytest.raises(EOFError):
            await stream.next()


async def test_slow_client_is_cut() -> None:
    """A client that takes nothing is left after its time, whatever is still to be sent."""

    async def endless() -> AsyncIterator[bytes]:
        while True:
            yield b"data: {}\n\n"

    async def stuck(message: MutableMapping[str, Any]) -> None:
        if message["type"] == "http.response.body":
            await asyncio.Event().wait()

    stream = EventStream(endless())
    stream.slow_s = 0.05
    async with asyncio.timeout(30):
        await stream.stream_response(stuck)


async def test_notice_of_a_wait_does_not_end_it(place: Place) -> None:
    """A notice that only asks for patience does not end the wait for the answer."""
    model = place.gate()

    async with asyncio.TaskGroup() as group:
        waiting = group.create_task(place.post("hello", id="one", wait=30))
        await model.begun.wait()
        await place.application.events.tell(
            "notice", "web:ada", "web:one", text="wait", event_id="web:one#notice.model_away"
        )
        model.let.set()

    assert waiting.result().json()["reply"] == "got hello"


@pytest.mark.parametrize(
    "body", [b"", b"[]", b"{}", b'{"key":"a:b","kind":"reply"}', b'{"key":1,"kind":"x","seq":1}']
)
def test_what_is_no_event(body: bytes) -> None:
    """What another program tells that is no Event is left out."""
    assert read_event(body) is None


async def test_stream_of_a_chat_that_was_used_by_a_former_process(tmp_path: Path) -> None:
    """Replies of an earlier process are resumed from, too: the count survives a restart."""
    async with open_place(tmp_path) as place:
        await place.post("one", wait=30)
        await place.post("two", wait=30)
    async with open_place(tmp_path) as place:
        async with place.stream("web:ada", 1) as stream:
            second, number = await stream.next()
            await place.post("three")
            third, following = await stream.next("reply")
        view = await place.server.chats.store.look(SessionKey("web:ada"))

    assert (second["text"], number) == ("echo: two", "2")
    assert (third["text"], following) == ("echo: three", "3")
    assert view.seq == 3


def test_ids_of_clients() -> None:
    """A client's id is the same with or without its prefix; none gives a new one each time."""
    assert inbound("web:a", "x", "one").id == inbound("web:a", "x", "web:one").id == "web:one"
    assert inbound("cli:a", "x", "one").id == "cli:one"
    assert inbound("web:a", "x").id != inbound("web:a", "x").id
