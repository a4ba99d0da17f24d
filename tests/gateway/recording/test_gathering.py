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
