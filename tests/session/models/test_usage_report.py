"""What models cost, summed up by day, chat, person and model, whatever version wrote the lines."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta
from pathlib import Path

from session.models.model import Usage
from session.models.usage_lines import Hold, SpendingRow
from session.models.usage_report import report

NOW = datetime(2026, 3, 10, 12, tzinfo=UTC)


def test_sums_by_day_chat_person_and_model(tmp_path: Path) -> None:
    """Turns and other calls apart; holds, headings and torn lines are none; the dearest first."""
    earlier = NOW - timedelta(days=2)
    rows = {
        NOW: [
            SpendingRow(NOW, "web:a", "people/ada", Usage(10, 2, 0.25), model="big"),
            SpendingRow(NOW, "web:b", "web:b", Usage(100, 1, 0.5), model="big"),
            SpendingRow(NOW, "web:a", "", Usage(7, 1, 0.01), turn=False, model="small"),
            Hold(NOW, NOW, SpendingRow(NOW, "web:a", "x", Usage()).payer),
        ],
        earlier: [SpendingRow(earlier, "web:a", "people/ada", Usage(1, 1, 0.0))],
    }
    for at, lines in rows.items():
        data = b'{"v": 1}\n' + b"".join(line.to_bytes() for line in lines) + b'{"at": "2026-'
        (tmp_path / f"{at:%Y-%m-%d}.jsonl").write_bytes(data)

    found = report(tmp_path, today=NOW.date(), days=3)
    of_one = report(tmp_path, today=NOW.date(), days=1, key="web:b")

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
        (None, 1),
    ]
    assert found["total"] == {"turns": 3, "calls": 1, **Usage(118, 5, 0.76).shown()}
    assert (of_one["total"]["turns"], len(of_one["days"])) == (1, 1)


def test_what_has_no_price_is_unknown_and_no_part_of_a_sum(tmp_path: Path) -> None:
    """Lines of an older version have no word of caches, and 0 where no price was known."""
    older = b'{"at": "%s", "key": "web:a", "person": "", "prompt": %d, "completion": 1, "cost_usd": %s}\n'
    at = NOW.isoformat().encode()
    rows = [
        SpendingRow(NOW, "web:b", "", Usage(100, 10, 0.25, 80, 5), model="big"),
        SpendingRow(NOW, "web:c", "", Usage(50, 5, unpriced=55), model="odd"),
        SpendingRow(NOW, "web:d", "", Usage(7, 1), model="ollama/own"),
    ]
    lines = [older % (at, 10, b"0.0"), older % (at, 20, b"0.5"), *(row.to_bytes() for row in rows)]
    (tmp_path / f"{NOW:%Y-%m-%d}.jsonl").write_bytes(b'{"v": 1}\n' + b"".join(lines))

    found = report(tmp_path, today=NOW.date(), days=1)

    models = {row["model"]: row for row in found["models"]}
    costs = {name: (row["cost_usd"], row["unpriced_tokens"]) for name, row in models.items()}
    assert costs == {"big": (0.25, 0), "odd": (None, 55), "ollama/own": (0.0, 0), None: (0.5, 11)}
    assert (models["big"]["cached_tokens"], models["big"]["cache_written_tokens"]) == (80, 5)
    assert (found["total"]["cost_usd"], found["total"]["unpriced_tokens"]) == (0.75, 66)


def test_without_any_files_all_is_nothing(tmp_path: Path) -> None:
    found = report(tmp_path / "usage", today=NOW.date(), days=2)

    assert found["total"]["turns"] == 0
    assert (found["chats"], found["people"], found["models"]) == ([], [], [])
