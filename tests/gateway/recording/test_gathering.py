"""Of what a workspace keeps, each message of the time is gathered once, and no other."""

from __future__ import annotations

import json
import time
from collections.abc import Iterator
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

from gateway.recording.gathering import gather
from gateway.recording.letter import Recording
from session.disk.layout import Layout
from session.store.asked import EDITS, UNBEGUN, Conversation

AT = datetime(2026, 11, 27, 8, tzinfo=UTC)


def exchanges(count: int) -> Iterator[dict[str, Any]]:
    for number in range(count):
        at = (AT + timedelta(seconds=number)).isoformat()
        common = {"timestamp": at, "message_id": f"telegram:7:{number}"}
        yield {"role": "user", "content": f"question {number}", **common}
        yield {"role": "assistant", "content": f"answer {number}", "final": True, **common}


def chat(path: Path, *lines: dict[str, Any], key: str = "telegram:1") -> None:
    head = {"_type": "metadata", "key": key, "metadata": {"session_id": "01HZZZZZZZZZZZZZZZZZZZZZZZ"}}
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text("".join(json.dumps(each) + "\n" for each in (head, *lines)))


def journal(workspace: Path, *entries: dict[str, Any], key: str = "telegram:1") -> None:
    keys = workspace / "state" / "keys"
    keys.mkdir(parents=True, exist_ok=True)
    lines = ({"v": 1, "key": key}, *entries)
    (keys / f"{key.replace(':', '_')}.log").write_text("".join(json.dumps(each) + "\n" for each in lines))


def gathered(workspace: Path, *, since: datetime = AT, hours: float = 24) -> Recording:
    found, unread = gather(workspace, since=since, until=since + timedelta(hours=hours))
    assert unread == []
    return found


def test_a_long_chat_is_gathered_in_a_time_that_grows_with_its_length(tmp_path: Path) -> None:
    chat(tmp_path / "sessions" / "telegram_1.jsonl", *exchanges(4000))

    begun = time.thread_time()
    letters = gathered(tmp_path).letters

    assert time.thread_time() - begun < 6
    assert [each.text for each in letters] == [f"question {number}" for number in range(4000)]
    assert {each.outcome.word for each in letters} == {"answered"}
    assert letters[-1].reply == "answer 3999"


def command(text: str, **more: Any) -> dict[str, Any]:
    at = AT.isoformat()
    return {
        "at": at,
        "do": "end",
        "id": "telegram:7:9",
        "kind": "command",
        "text": "ok",
        "said": text,
        **more,
    }


def test_a_chat_in_which_nothing_but_commands_was_written_is_gathered(tmp_path: Path) -> None:
    journal(tmp_path, command("/help"))
    lock = {"v": 1, "key": "telegram:1", "owner": "", "epoch": 1}
    (tmp_path / "state" / "keys" / "telegram_1.lock").write_text(json.dumps(lock))

    (only,) = gathered(tmp_path).letters

    assert (only.key, only.text, only.reply) == ("telegram:1", "/help", "ok")


def test_what_was_cleared_or_handed_on_is_not_counted_as_left_out(tmp_path: Path) -> None:
    chat(tmp_path / "sessions" / "telegram_1.jsonl", *exchanges(1))
    end = {"at": AT.isoformat(), "do": "end"}
    handed_on = {"kind": "silent", "reason": "handed_on", "to": "cron:daily"}
    journal(
        tmp_path,
        {**end, "id": "telegram:7:5", "kind": "cleared"},
        {**end, "id": "cron:daily:1", **handed_on},
        {**end, "id": "telegram:7:6", "kind": "notice", "reason": "quota"},
        {**end, "id": "telegram:7:2#edit", "kind": "silent", "reason": "edit"},
    )

    assert gathered(tmp_path).left_out == {UNBEGUN: 1, EDITS: 1}


def test_a_session_that_ended_within_the_first_second_is_of_the_time(tmp_path: Path) -> None:
    ended = "20261127T080000Z-01HZZZZZZZZZZZZZZZZZZZZZZZ.jsonl"
    at = (AT + timedelta(milliseconds=600)).isoformat()
    line = {"role": "user", "content": "late", "timestamp": at, "message_id": "telegram:7:1"}
    chat(tmp_path / "sessions" / "archive" / "telegram_1" / ended, line)

    (only,) = gathered(tmp_path, since=AT + timedelta(milliseconds=500)).letters

    assert only.text == "late"


class Ending(Conversation):
    """One whose session ends between the look at its files and the reading of them."""

    def _paths(self) -> Iterator[tuple[Path, str]]:
        found = [*super()._paths()]
        active = self.layout.transcript(self.stem)
        if active.exists():
            folder = self.layout.archive(self.stem)
            folder.mkdir(parents=True)
            active.rename(folder / "20261127T090000Z-01HZZZZZZZZZZZZZZZZZZZZZZZ.jsonl")
        yield from found


def test_a_session_that_ends_while_it_is_read_is_gathered(tmp_path: Path) -> None:
    chat(tmp_path / "sessions" / "telegram_1.jsonl", *exchanges(1))
    ending = Ending(Layout(tmp_path), "telegram_1", AT, AT + timedelta(hours=1))

    assert ending.read()
    assert [each.text for each in ending.messages()] == ["question 0"]
