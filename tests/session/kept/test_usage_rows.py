"""Lines of what models cost are made nobody's: sums stay, and whoever reads along reads on."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta
from pathlib import Path

from session.kept.rows import ERASED, forget_usage, usage_of
from session.kept.subject import Conversation, Subject
from session.models.model import Payer, Usage
from session.models.usage_files import DayFiles
from session.models.usage_lines import Hold, SpendingRow

NOW = datetime(2026, 5, 4, 12, tzinfo=UTC)
ADA, BOB, GROUP = "telegram:1", "telegram:2", "telegram:-5"
ROWS = [
    SpendingRow(NOW, ADA, "people/ada", Usage(1, 2, 0.5), id="m0"),
    SpendingRow(NOW, GROUP, "people/ada", Usage(3, 4, 0.25), job="cron:9"),
    SpendingRow(NOW, BOB, BOB, Usage(5, 6, 0.125)),
]
HELD = Hold(NOW, NOW + timedelta(hours=1), Payer(ADA, "people/ada", "", "m1"), Usage(9, 9, 9.0))


def subject(*, is_person: bool) -> Subject:
    name = "ada" if is_person else ADA
    return Subject(name, is_person, (Conversation(ADA, "telegram_1"),), (), (), {})


def test_of_a_person_all_lines_are_nobodys_and_cost_what_they_did(tmp_path: Path) -> None:
    """Also those in a group; a hold is gone, and what a daemon appends meanwhile is read behind them."""
    files, reader = DayFiles(tmp_path / "usage"), DayFiles(tmp_path / "usage")
    files.exchange([*ROWS, HELD], NOW)
    assert len(reader.exchange([], NOW).found) == 4
    assert len(usage_of(tmp_path, subject(is_person=True))) == 3

    assert forget_usage(tmp_path, subject(is_person=True)) == 3
    files.exchange([SpendingRow(NOW, BOB, BOB, Usage(7, 8, 0.0625))], NOW)

    data = (tmp_path / "usage" / "2026-05-04.jsonl").read_bytes()
    assert b"ada" not in data
    assert ADA.encode() + b'"' not in data
    assert [line.key for line in reader.exchange([], NOW).found if isinstance(line, SpendingRow)] == [BOB]
    rows = DayFiles(tmp_path / "usage").exchange([], NOW).found
    assert [(row.key, row.person) for row in rows if isinstance(row, SpendingRow)] == [
        (ERASED, ""),
        (GROUP, ""),
        (BOB, BOB),
        (BOB, BOB),
    ]
    assert [row.usage.prompt for row in rows if isinstance(row, SpendingRow)] == [1, 3, 5, 7]
    assert not [row for row in rows if isinstance(row, Hold)]


def test_of_a_chat_what_was_asked_elsewhere_stays(tmp_path: Path) -> None:
    DayFiles(tmp_path / "usage").exchange(ROWS, NOW)

    assert forget_usage(tmp_path, subject(is_person=False)) == 1
    assert forget_usage(tmp_path, subject(is_person=False)) == 0

    data = (tmp_path / "usage" / "2026-05-04.jsonl").read_bytes()
    assert data.count(b"people/ada") == 1
