"""``sessions new`` begins a session, also of a key that had none."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from gateway.__main__ import main

KEY = "telegram:1"


def run(workspace: Path, *argv: str) -> None:
    assert main(["sessions", *argv, "--workspace", str(workspace)]) == 0


def listed(workspace: Path, capsys: pytest.CaptureFixture[str]) -> list[dict[str, Any]]:
    capsys.readouterr()
    run(workspace, "list", "--json")
    found: list[dict[str, Any]] = json.loads(capsys.readouterr().out)
    return found


def test_the_first_session_of_a_key_is_an_empty_log_with_its_metadata(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """S7.1: it has its ULID, is listed, shown and exported; said again it goes on."""
    run(tmp_path, "new", KEY)
    assert "a new session is open" in capsys.readouterr().err

    [row] = listed(tmp_path, capsys)
    assert (row["key"], row["message_count"], row["last_message_at"]) == (KEY, 0, None)
    assert row["active"] is True
    [head] = (tmp_path / "sessions" / "telegram_1.jsonl").read_text().splitlines()
    assert json.loads(head)["metadata"]["session_id"] == row["id"]
    run(tmp_path, "show", row["id"], "--json")
    assert json.loads(capsys.readouterr().out)["messages"] == []
    run(tmp_path, "export", "--to", "overlay", KEY, "-o", str(tmp_path / "out"))
    about = json.loads((tmp_path / "out" / row["id"] / "metadata.json").read_text())
    assert (about["id"], about["messageCount"]) == (row["id"], 0)

    run(tmp_path, "new", KEY)
    assert "stays open" in capsys.readouterr().err
    assert [again["id"] for again in listed(tmp_path, capsys)] == [row["id"]]
    assert not (tmp_path / "sessions" / "archive").exists()


@pytest.mark.parametrize("key", ["", "telegram", "Telegram:1", "cli:" + "k" * 2000])
def test_a_key_that_no_chat_can_have_gets_no_session(
    tmp_path: Path, key: str, capsys: pytest.CaptureFixture[str]
) -> None:
    """An empty variable of a script, or a channel alone, left a session that nobody talks to."""
    assert main(["sessions", "new", key, "--workspace", str(tmp_path)]) == 1

    assert "is not a valid chat key: key is" in capsys.readouterr().err
    assert listed(tmp_path, capsys) == []


def test_one_that_was_taken_over_with_such_a_key_can_begin_anew(tmp_path: Path) -> None:
    (tmp_path / "sessions").mkdir()
    head = {"_type": "metadata", "key": "heartbeat", "created_at": "2026-01-01T00:00:00", "metadata": {}}
    lines = (head, {"role": "user", "content": "hi", "timestamp": "2026-01-01T00:00:00"})
    (tmp_path / "sessions" / "heartbeat.jsonl").write_text("".join(f"{json.dumps(each)}\n" for each in lines))

    run(tmp_path, "new", "heartbeat")

    assert len(list((tmp_path / "sessions" / "archive").rglob("*.jsonl"))) == 1
