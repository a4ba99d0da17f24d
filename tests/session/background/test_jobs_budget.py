"""Background calls stay within their budget, and cost what they cost."""

from __future__ import annotations

from dataclasses import replace
from datetime import UTC, datetime, timedelta
from functools import partial
from pathlib import Path

import pytest

from session.errors import ModelAway, NotNow
from session.memory.budget import Budget
from session.models.model import Answer, Totals, Usage
from session.models.spending import Spending
from tests.session.memory_place import ADA, BOB, START, Clock, open_workspace, saved, spending_of, talk
from tests.session.spending_victim import AtOnce

AWAY = ModelAway("gone", cause="unreachable")


async def test_budget_per_hour(tmp_path: Path) -> None:
    """At the cap work waits, visibly, over a restart too, and goes on when calls have left the hour."""
    clock = Clock()
    async with open_workspace(tmp_path, run=True, clock=clock, calls_per_hour=1) as workspace:
        await workspace.turn(ADA, talk(10))
        await workspace.jobs.settled()
    async with open_workspace(tmp_path, run=True, clock=clock, calls_per_hour=1) as workspace:
        await workspace.turn(BOB, talk(10))
        await workspace.jobs.settled()
        shown = workspace.jobs.shown()
        assert workspace.model.seen == []
        assert shown["reasons"] == ["budget"]
        assert shown["budget"]["calls_last_hour"] == 1
        assert shown["budget"]["reached_until"] == (START + timedelta(hours=1)).isoformat()

        clock.advance(3600)
        await workspace.model.asked(1)
        await workspace.jobs.settled()

        assert await workspace.pointer(BOB) == 5
        assert workspace.jobs.shown()["budget"]["reached_until"] is None


async def test_a_day_whose_money_is_spent(tmp_path: Path) -> None:
    """Work waits until midnight UTC, visibly; who asks for it is told so, and nothing is asked or counted."""
    clock = Clock()
    spending = spending_of(clock, per_day_usd=1.0)
    dear = replace(saved(), usage=Usage(100, 10, 1.5))
    async with open_workspace(tmp_path, dear, run=True, clock=clock, spending=spending) as workspace:
        await workspace.turn(ADA, talk(10))
        await workspace.jobs.settled()
        assert spending.today() == Totals(0, Usage(100, 10, 1.5))

        await workspace.turn(BOB, talk(10))
        assert await workspace.new(ADA)
        await workspace.jobs.settled()
        with pytest.raises(NotNow) as caught:
            await workspace.jobs.at_once(BOB)
        shown = workspace.jobs.shown()
        midnight = datetime(2026, 2, 1, tzinfo=UTC)
        assert (caught.value.reason, "cost_per_day_usd" in caught.value.hint) == ("cost", True)
        assert (shown["waiting"], shown["reasons"]) == (3, ["cost"])
        assert shown["next_at"] == shown["budget"]["cost_reached_until"] == midnight.isoformat()
        assert (shown["budget"]["reached_until"], shown["budget"]["calls_last_hour"]) == (None, 1)
        assert (len(workspace.model.seen), workspace.model.prose) == (1, [])

        clock.advance((midnight - START).total_seconds())
        await workspace.model.asked(3)
        await workspace.jobs.settled()

        assert await workspace.pointer(BOB) == 5
        assert len(workspace.model.prose) == 1
        assert workspace.jobs.shown()["budget"]["cost_reached_until"] is None


async def test_an_answer_that_cannot_be_used_has_cost_what_it_cost(tmp_path: Path) -> None:
    """Of a consolidation, and of a summary."""
    clock = Clock()
    spending = spending_of(clock)
    useless = Answer("", usage=Usage(100, 10, 0.5))
    async with open_workspace(tmp_path, useless, run=True, clock=clock, spending=spending) as workspace:
        workspace.model.wrote.append(useless)
        await workspace.said(ADA, talk(4))
        assert await workspace.new(ADA)
        await workspace.jobs.settled()

        assert workspace.jobs.shown()["reasons"] == ["failed"]
        assert spending.today() == Totals(0, Usage(200, 20, 1.0))


async def test_budget_per_day(tmp_path: Path) -> None:
    """The cap of the day holds over the hours, and counts the calls of all daemons."""
    clock = Clock()
    async with (
        open_workspace(tmp_path, clock=clock, calls_per_day=2) as one,
        open_workspace(tmp_path, clock=clock, calls_per_day=2) as two,
    ):
        await one.memory.budget.take()
        clock.advance(5 * 3600)
        await two.memory.budget.take()
        clock.advance(5 * 3600)
        with pytest.raises(NotNow) as raised:
            await one.memory.budget.take()
        assert raised.value.until == START + timedelta(days=1)

        clock.advance(14 * 3600)
        await one.memory.budget.take()


async def test_failed_calls_count(tmp_path: Path) -> None:
    """A call that came to nothing was a call."""
    async with open_workspace(tmp_path, AWAY, run=True) as workspace:
        await workspace.turn(ADA, talk(10))
        await workspace.jobs.settled()

        assert workspace.memory.budget.shown()["calls_last_hour"] == 1


@pytest.mark.parametrize(("hour", "day", "held"), [(0, 0, None), (0, 2, "day"), (2, 0, "hour")])
async def test_a_limit_of_0_is_none(tmp_path: Path, hour: int, day: int, held: str | None) -> None:
    """As everywhere in ``[limits]``; the other one holds, and what is called is counted all the same."""
    clock = Clock()
    budget = Budget(tmp_path / "budget.json", per_hour=hour, per_day=day, clock=clock)
    await budget.take()
    await budget.take()
    spans = {"hour": timedelta(hours=1), "day": timedelta(days=1)}
    if held is None:
        await budget.take()
    else:
        with pytest.raises(NotNow) as raised:
            await budget.take()
        assert raised.value.until == START + spans[held]

    shown = budget.shown()
    assert shown["calls_last_hour"] == shown["calls_last_day"] == (3 if held is None else 2)
    assert (shown["reached_until"] is None) == (held is None)


@pytest.mark.parametrize("damage", [b"", b"{", b'{"v": 1, "minutes": []}', b"\x00\xff"])
async def test_a_count_that_is_damaged_lifts_no_cap(tmp_path: Path, damage: bytes) -> None:
    """What has cost something in the last hours stands for it; turns are none of it."""
    clock = Clock()
    spending = Spending(tmp_path / "usage", disk=AtOnce(), clock=clock, durable=True)
    budget = partial(Budget, tmp_path / "budget.json", clock=clock, cost_meter=spending)
    for hours in (20, 3, 0):
        clock.now = START - timedelta(hours=hours)
        spending.pay("cli:ada", Usage(1, 1, 0.1))
        spending.record("cli:ada", "cli:ada", Usage(1, 1, 0.1))
        await spending.refresh()
    (tmp_path / "budget.json").write_bytes(damage)

    with pytest.raises(NotNow):
        await budget(per_hour=1, per_day=9).take()
    with pytest.raises(NotNow):
        await budget(per_hour=9, per_day=3).take()
    await budget(per_hour=2, per_day=4).take()

    with pytest.raises(NotNow):
        await budget(per_hour=9, per_day=4).take()
