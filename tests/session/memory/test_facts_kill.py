"""Wherever a process dies while it draws facts, the next one ends with each fact once."""

from __future__ import annotations

import signal
from pathlib import Path

import pytest

from session.memory.extraction import FactRules
from session.memory.facts import active
from tests.session.dying import victim
from tests.session.facts_victim import Counting, main
from tests.session.memory.test_extraction import MILAN, exchange
from tests.session.memory_place import ADA, noted, open_workspace, timers_in
from tests.support.guarantee import guarantee
from tests.support.until import until

pytestmark = guarantee(
    "once", "Facts are extracted once from each part of a conversation, across kills and processes."
)


@pytest.mark.parametrize(("point", "asked"), [("ask.after", 2), ("facts.after", 1), ("strike.before", 1)])
async def test_killed_at_any_step_it_loses_and_repeats_nothing(
    tmp_path: Path, point: str, asked: int
) -> None:
    """Asked again the model would use other words; it is asked again only if nothing was stored."""
    async with open_workspace(tmp_path, facts=FactRules()) as house:
        await house.turn(ADA, [*exchange(0, minute=0), *exchange(1, minute=1)])
        await house.jobs.aclose()

    assert await victim("facts_victim", tmp_path, point) == -signal.SIGKILL
    await main(tmp_path, "none")

    async with open_workspace(tmp_path) as house:
        assert len(active(await house.known.facts(await house.scope(ADA)))) == 1
    assert (Counting.workspace / "calls").read_text().split() == ["call"] * asked
    assert timers_in(tmp_path) == []


@guarantee("once", "Facts are extracted once from each part of a conversation, across kills and processes.")
@guarantee(
    "sessions", "A kill before the extraction timer is stored does not lose the facts of a conversation."
)
@pytest.mark.parametrize("ended", [False, True])
async def test_killed_before_its_timer_is_written_a_stretch_is_not_lost(tmp_path: Path, ended: bool) -> None:
    """The next process finds it, also where its first message is the ``/new`` that ends the session."""
    assert await victim("facts_victim", tmp_path, "timer.before") == -signal.SIGKILL
    assert timers_in(tmp_path) == []

    async with open_workspace(tmp_path, facts=FactRules()) as house:
        if ended:
            await house.new(ADA)
            await house.jobs.aclose()
    clock = house.clock
    clock.advance(minutes=30)
    async with open_workspace(tmp_path, run=True, clock=clock, facts=FactRules(), window=99) as house:
        house.model.drew = [noted(MILAN)]
        await until(lambda: (tmp_path / "memory/chats/telegram_1/facts.jsonl").exists())
        await until(lambda: timers_in(tmp_path) == [])
        facts = active(await house.known.facts(await house.scope(ADA)))
    async with open_workspace(tmp_path, run=True, clock=clock, facts=FactRules(), window=99) as again:
        await again.jobs.looked.wait()
        await again.jobs.settled()

        # What was looked at is not looked at again.
        assert again.jobs.shown()["facts_waiting"] == 0
        assert again.model.extractions == []
    assert [each.text for each in facts] == ["Ada lives in Milan."]
    assert len(house.model.extractions) == 1
