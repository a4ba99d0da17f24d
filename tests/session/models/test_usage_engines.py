"""Every statement on what models cost, on each engine of the state database."""

from __future__ import annotations

from collections.abc import Iterator
from datetime import UTC, datetime
from pathlib import Path

import pytest

from durable import StateWriter
from session.errors import NotNow
from session.memory.budget import Budget
from session.models.caps import Caps
from session.models.model import Need, Payer, Totals, Usage
from session.models.spending import Spending
from session.models.usage_rows import forget, of_subject, of_turn, release, report
from tests.support.postgres import Postgres

NOON = datetime(2027, 1, 1, 12, tzinfo=UTC)
ADA, BOB = Payer("cli:ada", "ada", "daily", "m1"), Payer("cli:bob", "bob", id="m2")
ONE = Usage(10, 2, 0.5, 4, 3, 2)


@pytest.fixture(params=["sqlite", "postgres"])
def url(request: pytest.FixtureRequest) -> Iterator[str]:
    if request.param == "sqlite":
        yield ""
        return
    with Postgres() as server:
        yield server.url


async def test_counted_reserved_refused_released_shown_and_forgotten(tmp_path: Path, url: str) -> None:
    writer = StateWriter(tmp_path / "state", replay=lambda _: None, url=url)
    async with writer.opened() as state:
        caps = Caps(cost_per_day_usd=1.0, tokens_per_day=1_000, cost_per_person_per_day_usd=0.8)
        mine = Spending(state, clock=lambda: NOON, caps=caps)
        mine.record(ADA, ONE, model="big")
        mine.record(Payer("cli:ada"), ONE, model="small", turn=False)
        assert await mine.today() == Totals(1, Usage(20, 4, 1.0, 8, 6, 4))
        assert await mine.within_hour("ada") == [NOON]
        refusal = await mine.reserve(BOB, Need(1, 0.1), Usage())
        assert refusal is not None
        assert not refusal.passes
        assert await forget(state, ["cli:ada", "cron:daily"], ["ada"]) == 2
        assert await of_subject(state, ["cli:ada"], []) == []

        other = Spending(state, clock=lambda: NOON.replace(day=2), caps=caps)
        assert await other.reserve(ADA, Need(10, 0.5), Usage()) is None
        later = await other.reserve(BOB, Need(10, 0.6), Usage())
        assert later is not None
        assert later.passes
        [(owner,)] = await state.read("SELECT DISTINCT owner FROM reservations WHERE day > 0")
        await release(state, owner)
        assert await other.reserve(BOB, Need(10, 0.6), Usage()) is None
        other.settle(BOB, Usage(5, 5, 0.3))
        other.record(BOB, Usage(5, 5, 0.3), model="big")
        shown = {str(row["limit"]): row for row in await other.shown() or ()}
        assert (shown["cost_per_day_usd"]["used"], shown["cost_per_day_usd"]["reserved"]) == (0.3, 0)
        assert [row.usage for row in await of_turn(state, "cli:bob", "m2", NOON)] == [Usage(5, 5, 0.3)]

        found = await report(state, today=NOON.replace(day=2).date(), days=2)
        assert (found["total"]["turns"], found["total"]["calls"], found["total"]["cost_usd"]) == (2, 1, 1.3)
        assert [row["key"] for row in found["chats"]] == ["-", "cli:bob"]

        budget = Budget(state, per_hour=2, per_day=3, clock=lambda: NOON)
        await budget.take()
        await budget.take()
        with pytest.raises(NotNow):
            await budget.take()
        await budget.take(unasked=False)
        assert budget.shown()["calls_last_hour"] == 3
        await state.compact()
