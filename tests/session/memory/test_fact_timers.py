"""A timer waits for the silence of a chat: it survives its process, and ends with what it waited for."""

from __future__ import annotations

import asyncio
import errno
from pathlib import Path

import pytest

from session.errors import StoreError
from session.memory import extraction
from session.models.model import Answer, Prompt
from tests.session.memory.test_extraction import (
    MILAN,
    RULES,
    exchange,
    texts,
)
from tests.session.memory_place import (
    ADA,
    Workspace,
    fact,
    noted,
    open_workspace,
    talk,
    timers_in,
)
from tests.support.until import until


async def test_a_turn_begins_a_timer_that_runs_out_when_the_chat_is_idle(tmp_path: Path) -> None:
    """A message meanwhile sets it back, and the file goes with the work."""
    async with open_workspace(tmp_path, run=True, facts=RULES, window=100) as house:
        house.model.drew = [noted(MILAN)]
        await house.turn(ADA, exchange(0, minute=0))
        assert house.jobs.shown()["facts_waiting"] == 0
        await house.turn(ADA, exchange(1, minute=1))
        house.clock.advance(minutes=4)
        await house.turn(ADA, exchange(2, minute=4))
        await _written(tmp_path)
        house.clock.advance(seconds=61)
        await house.jobs.settled()
        assert house.model.extractions == []

        house.clock.advance(minutes=4)
        await _gone(tmp_path, house)

        assert await texts(house) == ["Ada lives in Milan."]
        assert len(house.model.extractions) == 1
        assert house.jobs.shown()["facts_waiting"] == 0


async def test_a_timer_survives_its_process(tmp_path: Path) -> None:
    """It runs out at its time in the next one, not at its start."""
    async with open_workspace(tmp_path, run=True, facts=RULES, window=100) as house:
        await house.said(ADA, exchange(0, minute=0))
        await house.turn(ADA, exchange(1, minute=1))
        await _written(tmp_path)
    clock = house.clock
    clock.advance(minutes=2)

    async with open_workspace(tmp_path, run=True, facts=RULES, clock=clock, window=100) as again:
        again.model.drew = [noted(MILAN)]
        await again.jobs.looked.wait()
        await again.jobs.settled()
        assert again.model.extractions == []
        clock.advance(minutes=5)
        await _gone(tmp_path, again)

        assert await texts(again) == ["Ada lives in Milan."]


async def test_a_timer_that_was_asked_for_is_kept_at_the_end(tmp_path: Path) -> None:
    """Also where the background had not come to it."""
    async with open_workspace(tmp_path, facts=RULES) as house:
        await house.turn(ADA, [*exchange(0, minute=0), *exchange(1, minute=1)])
        await house.jobs.aclose()

    assert len(timers_in(tmp_path)) == 1


async def test_a_cleared_chat_ends_its_waiting_extraction(tmp_path: Path) -> None:
    """The timer runs out for nothing: the model is not asked, and its file goes."""
    async with open_workspace(tmp_path, run=True, facts=RULES, window=100) as house:
        await house.turn(ADA, [*exchange(0, minute=0), *exchange(1, minute=1)])
        await _written(tmp_path)

        await house.store.clear(ADA)
        house.clock.advance(minutes=6)
        await _gone(tmp_path, house)

        assert house.model.extractions == []
        assert await texts(house) == []


async def test_what_is_said_while_facts_are_drawn_is_not_forgotten(tmp_path: Path) -> None:
    """The turn of another process found the file there, and that process died: the timer goes on here."""
    async with open_workspace(tmp_path, run=True, facts=RULES, window=100) as house:

        async def meanwhile(_: Prompt) -> Answer:
            async with open_workspace(tmp_path, facts=RULES, clock=house.clock) as other:
                await other.turn(ADA, exchange(2, minute=7))
                await other.jobs.aclose()
            return noted(MILAN)

        house.model.drew = [meanwhile, noted(fact("Ada has a cat.", 5))]
        await house.turn(ADA, [*exchange(0, minute=0), *exchange(1, minute=1)])
        await _written(tmp_path)
        house.clock.advance(minutes=7)
        await until(lambda: len(house.model.drew) == 1)
        await house.jobs.settled()
        await _written(tmp_path)

        house.clock.advance(minutes=6)
        await _gone(tmp_path, house)

        assert await texts(house) == ["Ada lives in Milan.", "Ada has a cat."]


async def test_a_refused_extraction_waits_and_is_shown(tmp_path: Path) -> None:
    """At the cap of the background it is put off, not lost."""
    async with open_workspace(tmp_path, run=True, facts=RULES, window=100, calls_per_hour=2) as house:
        house.model.drew = [noted(MILAN)]
        await house.memory.budget.take()
        await house.memory.budget.take()
        await house.turn(ADA, [*exchange(0, minute=0), *exchange(1, minute=1)])
        await _written(tmp_path)
        house.clock.advance(minutes=7)
        await until(lambda: "budget" in house.jobs.shown()["reasons"])
        await house.jobs.settled()
        assert house.model.extractions == []

        house.clock.advance(minutes=120)
        await _gone(tmp_path, house)

        assert await texts(house) == ["Ada lives in Milan."]


async def test_new_leaves_the_extraction_of_what_ended(tmp_path: Path) -> None:
    """Each session has its own timer: neither the old one nor the new one is forgotten."""
    async with open_workspace(tmp_path, run=True, facts=RULES, window=100) as house:
        house.model.drew = [noted(MILAN), noted(fact("Ada has a cat.", 3))]
        await house.turn(ADA, [*exchange(0, minute=0), *exchange(1, minute=1)])
        await house.new(ADA)
        await house.turn(ADA, [*exchange(2, minute=2), *exchange(3, minute=2)])
        await _written(tmp_path, 2)

        house.clock.advance(minutes=8)
        await _gone(tmp_path, house)

        assert sorted(await texts(house)) == ["Ada has a cat.", "Ada lives in Milan."]


async def test_of_ten_thousand_facts_the_nearest_are_told(tmp_path: Path) -> None:
    async with open_workspace(tmp_path) as house:
        scope = await house.scope(ADA)
        scope.memory.mkdir(parents=True)
        rows = (
            f'{{"id": "{at:026}", "text": "Person {at} keeps dog number {at % 97} in town {at % 31}."}}\n'
            for at in range(10_000)
        )
        (scope.memory / "facts.jsonl").write_text("".join(rows))
        await house.said(ADA, talk(2))
        async with house.store.open(ADA) as session:
            near = await house.known.nearest(scope, session, "which dog does person 4711 keep?")

        assert near[0].startswith("Person 4711 keeps")
        assert len(near) == 5


async def _written(workspace: Path, count: int = 1) -> None:
    await until(lambda: len(timers_in(workspace)) == count)


async def _gone(workspace: Path, house: Workspace) -> None:
    await _written(workspace, 0)
    await house.jobs.settled()


async def test_a_transcript_that_cannot_be_looked_at_ends_no_background_work(tmp_path: Path) -> None:
    """A link to itself was the end of the daemon at each start; the others are looked at."""
    async with open_workspace(tmp_path, facts=RULES, window=100) as house:
        for minute in range(2):
            await house.said(ADA, exchange(minute, minute=minute))
        loop = house.store.layout.transcript("loop")
        loop.symlink_to(loop.name)
    clock = house.clock
    clock.advance(minutes=30)

    async with open_workspace(tmp_path, run=True, facts=RULES, clock=clock, window=100) as again:
        again.model.drew = [noted(MILAN)]
        await asyncio.wait_for(again.jobs.looked.wait(), 5)
        await until(lambda: (tmp_path / "memory/chats/telegram_1/facts.jsonl").exists())
        assert await texts(again) == ["Ada lives in Milan."]


@pytest.mark.parametrize("error", [OSError(errno.EACCES, "no"), StoreError("no")])
async def test_where_nobody_can_look_for_neglected_sessions_the_jobs_go_on(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, error: Exception
) -> None:
    def refusing(*_: object) -> None:
        raise error

    monkeypatch.setattr(extraction, "said_since", refusing)
    async with open_workspace(tmp_path, run=True, facts=RULES, window=100) as house:
        await asyncio.wait_for(house.jobs.looked.wait(), 5)
