"""What models cost is a row for each turn and call, summed up over restarts, processes and days."""

from __future__ import annotations

import asyncio
import gc
import tracemalloc
from datetime import UTC, datetime, timedelta
from pathlib import Path

from session.models.caps import Caps
from session.models.model import Need, Payer, Totals, Usage
from session.models.spending import Spending
from session.models.usage_rows import KEPT_DAYS, UsageRow, add_row, report
from session.store.state import workspace_state
from session.store.store import SessionKey, Store
from session.transcript.line import make_line
from tests.session.spending_place import MemoryRows, spending_in
from tests.support.clock import Clock
from tests.support.guarantee import guarantee

NOON = datetime(2027, 1, 1, 12, tzinfo=UTC)
ONE = Usage(10, 2, 0.5, 4, 3, 2)
ADA = Payer("cli:ada", "people/ada", id="m1")


@guarantee("operation", "The cost of a turn is committed with its answer, and is there after a crash.")
async def test_a_turn_is_counted_in_the_commit_of_its_last_lines(tmp_path: Path) -> None:
    """Handed over behind them it costs no sync of its own."""
    commits: list[str] = []
    store = Store(tmp_path, zone=UTC)
    await store.state.open()
    workspace_state(tmp_path / "state").at = commits.append
    spending = Spending(store.state, clock=lambda: NOON)
    async with store.open(SessionKey("cli:ada")) as session:
        await session.append([make_line("user", "hello", NOON.isoformat())])
        commits.clear()
        await session.append_ahead([make_line("assistant", "hi", NOON.isoformat())])
        spending.record(ADA, ONE)
    assert commits.count("committed") == 1
    await store.aclose()

    again = Store(tmp_path, zone=UTC)
    spending = Spending(again.state, clock=lambda: NOON)
    assert await spending.today() == Totals(1, ONE)
    assert await spending.within_hour("people/ada") == [NOON]
    await again.aclose()


async def test_processes_count_each_others_turns_once() -> None:
    rows = MemoryRows()
    one, other = (spending_in(rows, clock=lambda: NOON) for _ in range(2))
    for _ in range(50):
        one.record(ADA, ONE)
        other.record(ADA, ONE)

    assert (await one.today()).turns == (await other.today()).turns == 100
    assert len(await one.within_hour("people/ada")) == 100


async def test_a_day_and_an_hour_end() -> None:
    rows, clock = MemoryRows(), Clock(datetime(2027, 1, 1, 23, 30, tzinfo=UTC))
    one = spending_in(rows, clock=clock)
    one.record(ADA, ONE)
    clock.forward(minutes=45)

    # The last hour began yesterday.
    for each in (one, spending_in(rows, clock=clock)):
        assert await each.today() == Totals()
        assert len(await each.within_hour("people/ada")) == 1
    clock.forward(minutes=15)
    assert await one.within_hour("people/ada") == []


async def test_rows_older_than_they_are_kept_go_with_the_first_of_a_day() -> None:
    rows, clock = MemoryRows(), Clock(NOON)
    one = spending_in(rows, clock=clock)
    for days in (1, KEPT_DAYS, 1):
        one.record(ADA, ONE)
        clock.forward(days=days)
    one.record(ADA, ONE)

    [(first, count)] = await rows.read("SELECT min(at_ms), count(*) FROM usage")
    assert (first, count) == ((NOON + timedelta(days=KEPT_DAYS + 1)).timestamp() * 1000, 2)
    assert await rows.read("SELECT count(DISTINCT day) FROM totals") == [(2,)]


async def test_a_disk_that_refuses_costs_no_count() -> None:
    """What could not be written is written when the disk takes rows again, at the end at the latest."""
    rows = MemoryRows()
    one = spending_in(rows, clock=lambda: NOON)
    rows.refuses = True
    one.record(ADA, ONE)
    await asyncio.sleep(0)
    await one.aclose()
    rows.refuses = False
    one.record(ADA, ONE)
    assert (await one.today()).turns == 2

    rows.refuses = True
    one.record(ADA, ONE)
    await asyncio.sleep(0)
    rows.refuses = False
    await one.aclose()
    assert (await one.today()).turns == 3


async def test_a_call_that_is_no_turn_counts_in_all_but_turns() -> None:
    """For nobody it is one of the hour."""
    one = spending_in(clock=lambda: NOON)
    one.record(ADA, ONE)
    one.record(Payer("cli:ada"), Usage(100, 20, 2.0), turn=False)

    assert await one.today() == Totals(1, Usage(110, 22, 2.5, 4, 3, 2))
    assert (len(await one.within_hour("people/ada")), await one.within_hour("")) == (1, [])


TURNS = 1_000


@guarantee("operation", "The memory for usage limits does not grow with the number of turns.")
async def test_whoever_writes_day_and_night_leaves_no_memory_behind() -> None:
    """With a cap as well: what a turn held is forgotten with its row."""
    clock, held = Clock(NOON), []
    spending = spending_in(clock=clock, caps=Caps(cost_per_day_usd=10**6))
    tracemalloc.start()
    try:
        for turns in (10, TURNS):
            for number in range(turns):
                clock.forward(seconds=30)
                payer = Payer("cli:ada", "people/ada", id=f"m{turns}.{number}")
                assert await spending.reserve(payer, Need(10, 0.1), Usage()) is None
                spending.settle(payer, ONE)
                spending.record(payer, ONE)
            gc.collect()
            held.append(tracemalloc.get_traced_memory()[0])
    finally:
        tracemalloc.stop()

    assert len(await spending.within_hour("people/ada")) == 120
    assert held[1] < held[0] + 20 * TURNS


NOW = datetime(2026, 3, 10, 12, tzinfo=UTC)


async def test_sums_by_day_chat_person_and_model() -> None:
    """Turns and other calls apart; the dearest first."""
    earlier, rows = NOW - timedelta(days=2), MemoryRows()
    written = [
        UsageRow(NOW, Payer("web:a", "people/ada"), Usage(10, 2, 0.25), turn=True, model="big"),
        UsageRow(NOW, Payer("web:b", "web:b"), Usage(100, 1, 0.5), turn=True, model="big"),
        UsageRow(NOW, Payer("web:a"), Usage(7, 1, 0.01), turn=False, model="small"),
        UsageRow(earlier, Payer("web:a", "people/ada"), Usage(1, 1, 0.0), turn=True, model="old"),
        UsageRow(NOW - timedelta(days=9), Payer("web:a"), Usage(1, 1, 0.0), turn=True, model="big"),
    ]
    await rows.write([add_row(row) for row in written])

    found = await report(rows, today=NOW.date(), days=3)
    of_one = await report(rows, today=NOW.date(), days=1, key="web:b")

    assert (found["from"], found["to"]) == ("2026-03-08", "2026-03-10")
    assert [(day["day"][-2:], day["turns"], day["calls"]) for day in found["days"]] == [
        ("08", 1, 0),
        ("09", 0, 0),
        ("10", 2, 1),
    ]
    assert [(chat["key"], chat["cost_usd"]) for chat in found["chats"]] == [("web:b", 0.5), ("web:a", 0.26)]
    assert [(who["person"], who["turns"]) for who in found["people"]] == [("web:b", 1), ("people/ada", 2)]
    assert [(each["model"], each["prompt_tokens"]) for each in found["models"]] == [
        ("big", 110),
        ("small", 7),
        ("old", 1),
    ]
    assert found["total"] == {"turns": 3, "calls": 1, **Usage(118, 5, 0.76).shown()}
    assert (of_one["total"]["turns"], len(of_one["days"])) == (1, 1)


async def test_what_has_no_price_is_unknown_and_no_part_of_a_sum() -> None:
    rows = MemoryRows()
    used = {
        "big": Usage(100, 10, 0.25, 80, 5),
        "odd": Usage(50, 5, unpriced=55),
        "ollama/own": Usage(7, 1),
        "mixed": Usage(30, 2, 0.5, unpriced=11),
    }
    await rows.write(
        [
            add_row(UsageRow(NOW, Payer("web:b"), usage, turn=True, model=model))
            for model, usage in used.items()
        ]
    )

    found = await report(rows, today=NOW.date(), days=1)

    models = {row["model"]: row for row in found["models"]}
    costs = {name: (row["cost_usd"], row["unpriced_tokens"]) for name, row in models.items()}
    assert costs == {"big": (0.25, 0), "odd": (None, 55), "ollama/own": (0.0, 0), "mixed": (0.5, 11)}
    assert (models["big"]["cached_tokens"], models["big"]["cache_written_tokens"]) == (80, 5)
    assert (found["total"]["cost_usd"], found["total"]["unpriced_tokens"]) == (0.75, 66)
    assert (await report(MemoryRows(), today=NOW.date(), days=1))["total"]["turns"] == 0
