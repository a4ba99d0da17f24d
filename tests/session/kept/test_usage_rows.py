"""Rows of what models cost are made nobody's: sums stay."""

from __future__ import annotations

import json
from datetime import UTC, datetime

from session.kept.rows import forget_usage, usage_of
from session.kept.subject import Conversation, Subject
from session.models.caps import Amount, Total
from session.models.model import Payer, Usage
from session.models.usage_rows import ERASED, Held, UsageRow, add_row, add_to_totals, day_of, keep, totals_of
from tests.session.spending_place import MemoryRows

NOW = datetime(2026, 5, 4, 12, tzinfo=UTC)
DAY = day_of(NOW)
ADA, BOB, GROUP, JOB = "telegram:1", "telegram:2", "telegram:-5", "cron:9"
ROWS = [
    UsageRow(NOW, Payer(ADA, "people/ada", id="m0"), Usage(1, 2, 0.5), turn=True, model="big"),
    UsageRow(NOW, Payer(GROUP, "people/ada", "9"), Usage(3, 4, 0.25), turn=True, model="big"),
    UsageRow(NOW, Payer(BOB, BOB), Usage(5, 6, 0.125), turn=False, model="big"),
]
RUNNING = Payer(ADA, "people/ada", "", "m1")


def subject(name: str, *, is_person: bool = False) -> Subject:
    key = ADA if is_person else name
    return Subject(name, is_person, (Conversation(key, "stem"),), (), (), {})


async def spent() -> MemoryRows:
    """Count the rows, and a turn of Ada that is under way."""
    rows = MemoryRows()
    held = Total(Amount(7, 7), Amount(9, 9))
    totals = [change for row in ROWS for change in add_to_totals(DAY, row.payer, Total(Amount.of(row.usage)))]
    running = [keep(RUNNING, 1, Held(DAY, held)), *add_to_totals(DAY, RUNNING, held)]
    await rows.write([*map(add_row, ROWS), *totals, *running])
    return rows


async def names(rows: MemoryRows) -> str:
    tables = ("usage", "totals", "reservations")
    return str([await rows.read(f"SELECT * FROM {table}") for table in tables])


async def test_of_a_person_all_rows_are_nobodys_and_cost_what_they_did() -> None:
    """Also those in a group; what is reserved for a turn of theirs is not reserved any more."""
    rows, ada = await spent(), subject("ada", is_person=True)
    [part] = await usage_of(rows, ada)
    before = [json.loads(line) for line in part.data.splitlines()]

    assert await forget_usage(rows, ada) == 2

    assert {(row["key"], row["cost_usd"], row.get("job")) for row in before} == {
        (ADA, 0.5, None),
        (GROUP, 0.25, "9"),
    }
    left = await names(rows)
    assert "ada" not in left
    assert f"'{ADA}'" not in left
    assert await rows.read("SELECT key, person, prompt FROM usage ORDER BY prompt") == [
        (ERASED, "", 1),
        (GROUP, "", 3),
        (BOB, BOB, 5),
    ]
    spent_today = Total(Amount(875_000_000 + 7, 21 + 7))
    assert (await totals_of(rows, DAY))["day", ""] == spent_today


async def test_of_a_chat_what_was_asked_elsewhere_stays() -> None:
    rows = await spent()

    assert await forget_usage(rows, subject(ADA)) == 1
    assert await forget_usage(rows, subject(ADA)) == 0
    assert (await names(rows)).count("people/ada") == 2


async def test_the_chat_of_a_job_takes_the_job_along() -> None:
    rows = await spent()

    assert await forget_usage(rows, subject(JOB)) == 1
    assert await rows.read("SELECT count(*) FROM usage WHERE job <> ''") == [(0,)]
