"""Whoever looks on is told all, however long an answer is written and whatever other chats of the slot do."""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncGenerator, AsyncIterator
from contextlib import aclosing, asynccontextmanager
from itertools import count
from pathlib import Path
from typing import Any

import pytest

from gateway.dispatch.events import Event
from gateway.service import chats
from gateway.service.client_message import inbound
from gateway.service.outcome import Outcome
from session.models.model import Answer, OnDelta, Prompt
from session.transcript.key import slot_of
from tests.gateway.http_place import Place, open_place
from tests.support.until import until
from tests.support.world import set_world

KEY = "web:ada"
NEIGHBOUR = next(key for number in count() if slot_of(key := f"web:n{number}") == slot_of(KEY))
WITHIN_S = 10.0
PIECES, BETWEEN_S = 30, 10.0


class Slow:
    """A plain model that writes its next piece when it is let."""

    name = "slow"
    plain = True

    def __init__(self) -> None:
        self.next = asyncio.Event()

    async def ask(self, prompt: Prompt, on_delta: OnDelta | None = None) -> Answer:
        assert on_delta is not None
        for number in range(PIECES):
            on_delta(f"{number} ")
            await self.next.wait()
            self.next.clear()
        return Answer("".join(f"{number} " for number in range(PIECES)))


async def followed(place: Place) -> AsyncGenerator[Event | Outcome | None]:
    async with aclosing(place.server.chats.follow(inbound(KEY, "write"))) as shown:
        async for each in shown:
            yield each


async def streamed(place: Place) -> AsyncGenerator[Event | Outcome | None]:
    async with aclosing(place.server.chats.stream(KEY)) as shown:
        first = asyncio.ensure_future(anext(shown))
        await until(lambda: place.application.events.watched(KEY))
        await place.server.chats.accept(inbound(KEY, "write"))
        yield (await first)[0]
        async for each, _ in shown:
            yield each


@pytest.mark.parametrize("looking", [followed, streamed])
async def test_an_answer_that_is_written_for_minutes_is_shown_whole(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, looking: Any
) -> None:
    """No pause ever comes in which the record is looked at: the watch goes on all the same."""
    clock, passed_s = time.monotonic, 0.0
    monkeypatch.setattr(time, "monotonic", lambda: clock() + passed_s)
    set_world(monkeypatch, monotonic=lambda: clock() + passed_s)
    monkeypatch.setattr(chats, "LOOK_AFTER_S", (3600.0,))
    model = Slow()
    async with open_place(tmp_path) as place:
        place.server.chats.heartbeat_s = 3600.0
        place.services.turns.model = model
        pieces: list[str] = []
        async with aclosing(looking(place)) as shown:
            while len(pieces) < PIECES:
                each = await asyncio.wait_for(anext(shown), WITHIN_S)
                if isinstance(each, Event) and each.kind == "delta":
                    pieces.append(each.text)
                    passed_s += BETWEEN_S
                    model.next.set()

    assert pieces == [f"{number} " for number in range(PIECES)]


@asynccontextmanager
async def beside_a_busy_one(workspace: Path, busy: str = NEIGHBOUR) -> AsyncIterator[Place]:
    """A place in which one message in ``busy`` is told of all the time, and no other in ``KEY`` at all."""
    async with open_place(workspace) as place:
        events = place.application.events
        tell = events.tell

        async def told(kind: Any, key: str, *args: Any, **more: Any) -> None:
            if key != KEY:
                await tell(kind, key, *args, **more)

        async def chatter() -> None:
            while True:
                await tell("tool", busy, "web:m", text="look")
                await asyncio.sleep(0.01)

        events.tell = told  # type: ignore[method-assign]
        chattering = asyncio.create_task(chatter())
        try:
            yield place
        finally:
            chattering.cancel()


async def test_a_busy_neighbour_keeps_no_heartbeat_back(tmp_path: Path) -> None:
    """The stream says that it is still there, and makes up for what was lost."""
    async with beside_a_busy_one(tmp_path) as place, aclosing(place.server.chats.stream(KEY)) as shown:
        place.server.chats.heartbeat_s = 0.1
        begun = await asyncio.wait_for(anext(shown), WITHIN_S)
        quiet = await asyncio.wait_for(anext(shown), WITHIN_S)
        await place.server.chats.accept(inbound(KEY, "hello", "m1"))

        async with asyncio.timeout(WITHIN_S):
            found = [event async for event, _ in _until_told(shown)]

    assert (begun, quiet) == ((None, 0), (None, None))
    assert [event.text for event in found if event is not None] == ["echo: hello"]


async def _until_told(shown: AsyncIterator[chats.Shown]) -> AsyncIterator[chats.Shown]:
    async for event, seq in shown:
        yield event, seq
        if event is not None:
            return


@pytest.mark.parametrize("busy", [NEIGHBOUR, KEY])
async def test_a_busy_neighbour_keeps_no_answer_back(tmp_path: Path, busy: str) -> None:
    """Whoever waits for an answer whose event was lost gets it from the record, in a busy chat as well."""
    async with beside_a_busy_one(tmp_path, busy) as place:
        async with asyncio.timeout(WITHIN_S):
            asked = await place.server.chats.ask(inbound(KEY, "one"), within_s=None)
        async with asyncio.timeout(WITHIN_S):
            shown = [each async for each in place.server.chats.follow(inbound(KEY, "two"))]

    assert asked == Outcome("reply", "echo: one")
    assert shown[-1] == Outcome("reply", "echo: two")
