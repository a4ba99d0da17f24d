"""The event stream: replies and notices once each and in order, over every kind of interruption."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, MutableMapping
from pathlib import Path
from typing import Any

import orjson
import pytest

from gateway.dispatch.events import Event, Onlooker, read_event
from gateway.http.events import EventStream
from gateway.service.chats import ChatService
from session.models.model import Answer, OnDelta, Prompt
from tests.gateway.http_place import Place, Stream, open_place


async def test_other_chats_are_not_seen(place: Place) -> None:
    """A stream shows its own chat alone; where nobody looks, nobody pays: its slot is not watched."""
    assert not place.application.events.watched("web:ada")
    async with place.stream("web:ada") as stream:
        assert place.application.events.watched("web:ada")
        assert not place.application.events.watched("web:bob")
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


async def test_lost_event_is_made_up(place: Place) -> None:
    """A reply whose event was lost is shown from the record, at a heartbeat or before the next reply."""
    place.server.chats.heartbeat_s = 0.2
    async with place.stream("web:ada", 0) as stream:
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


@pytest.mark.parametrize("last", ["x", "-1", "1.5", "9" * 20])
async def test_bad_last_event_id(place: Place, last: str) -> None:
    """A Last-Event-ID that no stream of ours ever gave is refused; so is a stream of no chat."""
    assert (await place.http.get("/v1/events")).status_code == 400
    answer = await place.http.get("/v1/events", params={"key": "web:ada"}, headers={"Last-Event-ID": last})

    assert answer.status_code == 400
    assert set(answer.json()) == {"error", "hint"}


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


class Slow:
    """A plain model that writes the next piece when it is told to."""

    name = "slow"
    plain = True

    def __init__(self, *pieces: str) -> None:
        self._pieces = pieces
        self.go = asyncio.Semaphore(0)

    async def ask(self, prompt: Prompt, on_delta: OnDelta | None = None) -> Answer:
        for piece in self._pieces:
            await self.go.acquire()
            if on_delta is not None:
                on_delta(piece)
        return Answer("".join(self._pieces))


def slow(place: Place, *pieces: str) -> Slow:
    model = place.services.turns.model = Slow(*pieces)
    return model


async def drafted(place: Place, *, draft: bool) -> Any:
    return place.http.stream("GET", "/v1/events", params={"key": "web:ada", "draft": str(draft).lower()})


async def opened_stream(answer: Any) -> Stream:
    stream = Stream(answer)
    await stream.opened()
    return stream


async def test_a_reload_shows_the_text_so_far_and_each_piece_once(tmp_path: Path) -> None:
    """The draft stands before the pieces that follow it; who does not ask for one gets none."""
    async with open_place(tmp_path) as place:
        model = slow(place, "one ", "two ", "three")
        async with await drafted(place, draft=False) as first:
            plain = await opened_stream(first)
            await place.post("hello", id="m")
            for _ in range(2):
                model.go.release()
            assert [(await plain.next("delta"))[0]["text"] for _ in range(2)] == ["one ", "two "]

            async with await drafted(place, draft=True) as second:
                reloaded = await opened_stream(second)
                draft, resume = await reloaded.next()
                model.go.release()
                piece, _ = await reloaded.next()
                reply, number = await reloaded.next()
            seen = [(await plain.next())[0]["kind"] for _ in range(2)]

    assert (draft["kind"], draft["text"], draft["in_reply_to"], resume) == ("draft", "one two ", "web:m", "")
    assert (piece["kind"], piece["text"]) == ("delta", "three")
    assert (reply["text"], number) == ("one two three", "1")
    assert seen == ["delta", "reply"]


async def test_pieces_that_have_no_place_are_left_out(tmp_path: Path) -> None:
    """Behind a lost beginning nothing is shown in part; the next turn's pieces come again."""
    async with open_place(tmp_path) as place:
        chats = ChatService(place.application)
        stream = chats.stream("web:ada", drafts=True)
        kinds: list[Event] = []

        async def read() -> None:
            async for event, _ in stream:
                if event is not None:
                    kinds.append(event)

        reading = asyncio.create_task(read())
        tell = place.application.events.tell
        async with asyncio.timeout(20):
            while not kinds:
                await tell("tool", "web:ada", "web:m", text="grep")
                await asyncio.sleep(0.01)
            kinds.clear()
            for kind, message, text in (
                ("delta", "web:m", "lost"),
                ("started", "web:m", ""),
                ("delta", "web:m", "a"),
                ("delta", "web:other", "b"),
                ("draft", "web:other", "c"),
                ("delta", "web:other", "d"),
            ):
                await tell(kind, "web:ada", message, text=text)  # type: ignore[arg-type]
            await tell("reply", "web:ada", "web:other", text="end", seq=1)
            while not kinds or kinds[-1].kind != "reply":
                await asyncio.sleep(0.01)
        reading.cancel()

    heard = [(event.kind, event.text) for event in kinds if event.kind != "tool"]
    assert heard == [("started", ""), ("delta", "a"), ("draft", "c"), ("delta", "d"), ("reply", "end")]


async def test_a_draft_ends_with_its_turn_and_begins_anew_after_a_tool(tmp_path: Path) -> None:
    """Nothing is shown of a turn that is over, nor of what was written before a tool ran."""
    async with open_place(tmp_path) as place:
        tasks: list[asyncio.Task[None]] = []
        application = place.application.events
        application.watch(None, 60)
        async with place.application.mailbox.listen("events") as bodies, asyncio.timeout(20):
            with Onlooker(
                *(application, "web:ada", "web:m"),
                lambda work, _: tasks.append(asyncio.create_task(work)),
            ) as on:
                on.delta("before")
                on.tool("grep")
                on.delta("behind ")
                on.delta("it")
                application.draft("web:ada")
                application.draft("web:bob")
            application.draft("web:ada")
            await application.tell("reply", "web:ada", "web:m", text="end", seq=1)
            await asyncio.gather(*tasks)
            told = [orjson.loads(await anext(bodies)) for _ in range(6)]

    assert [event["text"] for event in told if event["kind"] == "draft"] == ["behind it"]
