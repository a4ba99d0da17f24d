"""A stream that opens while an answer is being written begins with its text so far."""

from __future__ import annotations

import asyncio
from pathlib import Path
from typing import Any

import orjson

from gateway.service.chats import ChatService
from gateway.turns.event import Event
from session.models.model import Answer, OnDelta, Prompt
from tests.gateway.http_place import Place, Stream, open_place


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
    assert place.application.services is not None
    model = place.application.services.turns.model = Slow(*pieces)
    return model


async def events(place: Place, *, draft: bool) -> Any:
    return place.http.stream("GET", "/v1/events", params={"key": "web:ada", "draft": str(draft).lower()})


async def opened(answer: Any) -> Stream:
    stream = Stream(answer)
    await stream.opened()
    return stream


async def test_a_reload_shows_the_text_so_far_and_each_piece_once(tmp_path: Path) -> None:
    """The draft stands before the pieces that follow it; who does not ask for one gets none."""
    async with open_place(tmp_path) as place:
        model = slow(place, "one ", "two ", "three")
        async with await events(place, draft=False) as first:
            plain = await opened(first)
            await place.post("hello", id="m")
            for _ in range(2):
                model.go.release()
            assert [(await plain.next("delta"))[0]["text"] for _ in range(2)] == ["one ", "two "]

            async with await events(place, draft=True) as second:
                reloaded = await opened(second)
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
            with application.onlooker(
                "web:ada", "web:m", lambda work, _: tasks.append(asyncio.create_task(work))
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
