"""A client that leaves stops the turn of its own message, and no other one."""

from __future__ import annotations

import asyncio
from pathlib import Path
from typing import Any

from gateway.dispatch.control_order import WatchOrder
from gateway.dispatch.events import Event
from gateway.queue.mailbox import Topic
from gateway.service.client_message import inbound
from gateway.service.completion import Completion
from gateway.service.outcome import Outcome
from session.store.store import Session
from session.transcript.key import slot_of
from session.turn.turn import Request, TurnContext
from tests.gateway.http_place import Place, open_place
from tests.support.guarantee import guarantee
from tests.support.until import until

KEY = "web:ada"
ELSEWHERE = "web:bob"
TOGETHER = Outcome("reply", "got about m1\n\nabout m2")


def completion(place: Place, message_id: str) -> Completion:
    message = inbound(KEY, f"about {message_id}", message_id)
    return Completion(place.server.chats, message, goes_on=False, reads=True)


async def begun(place: Place, message_id: str, *, shown: str = "delta") -> Completion:
    """Ask, and read until the turn shows something; the model still writes."""
    asked = completion(place, message_id)
    await asked.begin()
    async for each in asked.events():
        if isinstance(each, Event) and each.kind == shown:
            return asked
    raise EOFError


async def orders_are_taken(place: Place) -> None:
    """Wait until all orders up to now are acted on."""
    assert slot_of(ELSEWHERE) != slot_of(KEY)
    order = WatchOrder(slots=[slot_of(ELSEWHERE)], for_s=60)
    await place.application.mailbox.tell("control", slot_of(ELSEWHERE), order.to_bytes())
    await until(lambda: place.application.events.watched(ELSEWHERE))


def orders_to_stop(place: Place) -> list[bytes]:
    """Return the list into which all orders to stop come."""
    told: list[bytes] = []
    tell = place.application.mailbox.tell

    async def noted(topic: Topic, slot: int, body: bytes) -> None:
        if topic == "control" and b'"do":"stop"' in body:
            told.append(body)
        await tell(topic, slot, body)

    place.application.mailbox.tell = noted  # type: ignore[method-assign]
    return told


async def ended(place: Place, message_id: str) -> Outcome:
    async def outcome() -> Any:
        return (await place.server.chats.record.standing(KEY, f"web:{message_id}")).outcome

    found: Outcome = await until(outcome)
    return found


@guarantee("interfaces", "A client that disconnects stops its own turn and no other.")
async def test_the_turn_behind_its_own_goes_on(tmp_path: Path) -> None:
    """The end of its own was on the way to it: what is asked to stop by then is the next one."""
    async with open_place(tmp_path) as place:
        model = place.gate()
        asked = await begun(place, "m1")
        model.let.set()
        await ended(place, "m1")
        model.let.clear()
        model.begun.clear()
        await place.server.chats.accept(inbound(KEY, "about m2", "m2"))
        await model.begun.wait()
        stops = orders_to_stop(place)

        await asked.broken_off()

        await orders_are_taken(place)
        model.let.set()
        assert await ended(place, "m2") == Outcome("reply", "got about m2")
        assert stops == []


async def test_a_turn_that_answers_another_message_too_goes_on(tmp_path: Path) -> None:
    """Whoever wrote the message that was stopped for this one waits for the same answer."""
    async with open_place(tmp_path, limits={"queue_mode": "interrupt"}) as place:
        model = place.gate()
        first = completion(place, "m1")
        await first.begin()
        await model.begun.wait()
        model.begun.clear()
        second = await begun(place, "m2")

        await second.broken_off()

        await orders_are_taken(place)
        model.let.set()
        assert await first.outcome() == TOGETHER


async def test_a_turn_that_begins_for_two_messages_goes_on(tmp_path: Path) -> None:
    """Its own message is not stored yet, and the one that was stopped for it is."""
    async with open_place(tmp_path, limits={"queue_mode": "interrupt"}) as place:
        model = place.gate()
        first = await begun(place, "m1")
        turns = place.services.turns
        turn_context, goes_on = turns.turn_context, asyncio.Event()

        async def held(session: Session, request: Request) -> TurnContext:
            await goes_on.wait()
            return await turn_context(session, request)

        turns.turn_context = held
        second = await begun(place, "m2", shown="started")

        await second.broken_off()

        await orders_are_taken(place)
        goes_on.set()
        model.let.set()
        assert await first.outcome() == TOGETHER


async def test_the_turn_that_stopped_its_own_goes_on(tmp_path: Path) -> None:
    async with open_place(tmp_path, limits={"queue_mode": "interrupt"}) as place:
        model = place.gate()
        first = await begun(place, "m1")
        model.begun.clear()
        await place.server.chats.accept(inbound(KEY, "about m2", "m2"))
        await model.begun.wait()

        await first.broken_off()

        await orders_are_taken(place)
        model.let.set()
        assert await ended(place, "m2") == TOGETHER
