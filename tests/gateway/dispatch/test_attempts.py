"""What a letter that came again may do beside others, and what is charged to it."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from datetime import UTC
from pathlib import Path
from typing import Any

import pytest

from gateway.dispatch.crash_guard import Attempt
from gateway.dispatch.lanes import PendingMessage
from gateway.dispatch.policy import FENCED_TRIES
from gateway.dispatch.worker import DispatchRules
from session.errors import ModelAway
from session.models.model import Answer, OnDelta, Prompt
from session.store.store import Session, Store
from session.transcript.key import SessionKey
from tests.contracts.models import Script
from tests.gateway.handed_letter import HandedLetter
from tests.gateway.worker_rig import ADA, Rig, letter
from tests.support.guarantee import guarantee
from tests.support.until import until

BOB, CY = SessionKey("foreign:bob"), SessionKey("foreign:cy")


class Held(Script):
    """Answers a text when the test says so; the others at once."""

    def __init__(self) -> None:
        super().__init__()
        self.asked: list[str] = []
        self.gates: dict[str, asyncio.Event] = {}

    def gate(self, text: str) -> asyncio.Event:
        return self.gates.setdefault(text, asyncio.Event())

    async def ask(self, prompt: Prompt, on_delta: OnDelta | None = None) -> Answer:
        text = str(prompt.messages[-1]["content"])
        self.asked.append(text)
        if text in self.gates:
            await self.gates[text].wait()
        return Answer(f"about {text}")


@asynccontextmanager
async def came_again(
    folder: Path, *deaths: tuple[SessionKey, int], **rules: Any
) -> AsyncIterator[tuple[Rig, Held]]:
    """Open a rig whose queue holds, from an earlier life, a letter of each key that so many deaths met.

    The model has been asked of the first one, and of no other.
    """
    earlier = Rig(folder, Script(), DispatchRules())
    async with asyncio.TaskGroup() as group:
        serve = group.create_task(earlier.mailbox.serve())
        await earlier.mailbox.ready()
        for key, count in deaths:
            await earlier.put(f"of {key}", "m1", key=key)
            async with earlier.store.open(key) as session:
                for _ in range(count):
                    await session.journal.begin("m1", transcript_held_lines=False)
        serve.cancel()
    await earlier.store.aclose()
    model = Held()
    for key, _ in deaths:
        model.gate(f"of {key}")
    rig = Rig(folder, model, DispatchRules(**rules))
    opening = rig.store.open

    @asynccontextmanager
    async def open_in_order(key: SessionKey) -> AsyncIterator[Session]:
        # Threads read the conversations, so that any of the letters could come first.
        if key != deaths[0][0]:
            await until(lambda: bool(model.asked))
        async with opening(key) as session:
            yield session

    rig.store.open = open_in_order  # type: ignore[method-assign]
    async with rig.open() as r:
        await until(lambda: model.asked == [f"of {deaths[0][0]}"])
        yield r, model


async def test_a_suspect_that_waits_holds_no_place_among_the_running(tmp_path: Path) -> None:
    """Two places: one suspect runs, another waits, and a chat that no death met is answered."""
    async with came_again(tmp_path, (ADA, 2), (BOB, 2), concurrent_turns=2) as (r, model):
        assert await r.say("hello", "x1", key=CY) == "about hello"
        assert len(model.asked) == 2
        model.gate(f"of {ADA}").set()
        model.gate(f"of {BOB}").set()
        assert await r.texts(2) == [f"about of {ADA}", f"about of {BOB}"]


async def test_a_suspect_waits_for_those_that_one_death_met(tmp_path: Path) -> None:
    """One of them may be the poison: its death would be charged to the suspect."""
    async with came_again(tmp_path, (ADA, 1), (BOB, 2)) as (r, model):
        await r.say("hello", "x1", key=CY)

        assert f"of {BOB}" not in model.asked
        model.gate(f"of {BOB}").set()
        model.gate(f"of {ADA}").set()
        assert await r.texts(2) == [f"about of {ADA}", f"about of {BOB}"]


async def test_a_suspect_that_waits_can_be_stopped(tmp_path: Path) -> None:
    async with came_again(tmp_path, (ADA, 2), (BOB, 2)) as (r, model):
        await until(lambda: r.worker.lanes.begun(BOB) is not None)
        assert await r.say("/stop", "s1", key=BOB) == "Stopped."
        await r.until_in_lane(0, BOB)
        assert model.asked == [f"of {ADA}"]
        model.gate(f"of {ADA}").set()
        await r.texts(1)


async def test_a_first_try_that_met_an_outage_is_no_attempt(tmp_path: Path) -> None:
    """Its question is stored by then; a death while it waits is charged to nobody."""

    class Slow(Script):
        async def ask(self, prompt: Prompt, on_delta: OnDelta | None = None) -> Answer:
            self.prompts.append(prompt)
            if len(self.prompts) > 1:
                return Answer("back")
            await until(lambda: any((tmp_path / "sessions").glob("*.jsonl")))
            raise ModelAway("503", cause="unreachable")

    built = Rig(tmp_path, Slow(), DispatchRules())
    async with built.open() as r:
        await r.put("hello", "m1")
        await until(lambda: r.worker.outage.since is not None)

        async with r.store.open(ADA) as session:
            assert session.find("m1") is not None
            assert await session.journal.begin("m1", transcript_held_lines=True) == 1
        assert await r.texts(1) == ["back"]


async def test_a_turn_cancelled_as_it_begins_is_struck_out(tmp_path: Path) -> None:
    """The record is on its way to the disk when the drain ends: it is undone, and no older one with it."""
    store = Store(tmp_path, zone=UTC)
    async with store.open(ADA) as session:
        await session.journal.begin("m1", transcript_held_lines=False)
        begun = asyncio.create_task(attempt(session).__aenter__())
        await asyncio.sleep(0)
        begun.cancel()

        with pytest.raises(asyncio.CancelledError):
            await begun
        assert session.journal.attempts("m1") == 1
    await store.aclose()


def attempt(session: Session) -> Attempt:
    delivery = HandedLetter("m1", suspect=True)
    return Attempt(PendingMessage(letter("hello", "m1"), delivery, 0.0, heads=True), session)


class Clearing(Script):
    """Another process clears the chat whenever this one asks."""

    def __init__(self) -> None:
        super().__init__()
        self.store: Store | None = None
        self.cleared = 0

    async def ask(self, prompt: Prompt, on_delta: OnDelta | None = None) -> Answer:
        if prompt.messages[-1]["content"] == "fought for":
            assert self.store is not None
            self.store.forget(ADA, cleared=True)
            self.cleared += 1
        return Answer("fine")


@guarantee("failures", "A message whose turns are all cut off is parked at last, and its chat continues.")
async def test_whatever_is_fenced_again_and_again_is_parked_at_last(tmp_path: Path) -> None:
    """Its chat is told, and its lane goes on."""
    model = Clearing()
    async with Rig(tmp_path, model, DispatchRules(fenced_tries=4)).open() as r:
        model.store = r.store
        await r.put("fought for", "m1")
        await r.put("hello", "m2")

        notice, reply = await r.replies(2)

        assert notice.id == "m1#notice.failed"
        assert (reply.id, reply.text) == ("m2#reply", "fine")
        assert model.cleared == 4
        (parked,) = await r.mailbox.parked()
        assert (parked.id, parked.reason.partition(":")[0]) == ("m1", "failed")


async def test_a_fenced_letter_that_is_lost_is_let_go(tmp_path: Path) -> None:
    """At once, however often it was fenced before: its next delivery is tried, here or in another process."""
    r: Rig

    class Losing(Clearing):
        async def ask(self, prompt: Prompt, on_delta: OnDelta | None = None) -> Answer:
            answer = await super().ask(prompt, on_delta)
            entry = r.worker.lanes.begun(ADA)
            assert entry is not None
            entry.letter = HandedLetter(entry.letter.id, entry.letter.body, lost=True)
            entry.tries.fenced = FENCED_TRIES - 2
            return answer

    model = Losing()
    async with Rig(tmp_path, model, DispatchRules()).open() as r:
        model.store = r.store
        await r.put("fought for", "m1")
        await until(lambda: model.cleared > 0 and r.worker.lanes.get(ADA) is None)

        assert model.cleared == 1
