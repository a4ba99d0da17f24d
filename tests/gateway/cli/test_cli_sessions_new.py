"""``sessions new`` begins a session, also of a key that had none."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from gateway.cli import root as known
from tests.gateway.cli_place import Ran, listed, session_file, shown

KEY = "telegram:1"


def run(workspace: Path, *argv: str) -> Ran:
    ran = Ran(workspace, "sessions", *argv)
    assert ran.code == 0
    return ran


def test_the_first_session_of_a_key_is_an_empty_log_with_its_metadata(tmp_path: Path) -> None:
    """S7.1: it has its ULID, is listed, shown and exported; said again it goes on."""
    assert "a new session is open" in run(tmp_path, "new", KEY).err

    [row] = listed(tmp_path)
    assert (row["key"], row["message_count"], row["last_message_at"]) == (KEY, 0, None)
    assert row["active"] is True
    [head] = (tmp_path / "sessions" / "telegram_1.jsonl").read_text().splitlines()
    assert json.loads(head)["metadata"]["session_id"] == row["id"]
    assert shown(tmp_path, row["id"]) == []
    run(tmp_path, "export", "--to", "overlay", KEY, "-o", str(tmp_path / "out"))
    about = json.loads((tmp_path / "out" / row["id"] / "metadata.json").read_text())
    assert (about["id"], about["messageCount"]) == (row["id"], 0)

    assert "stays open" in run(tmp_path, "new", KEY).err
    assert [again["id"] for again in listed(tmp_path)] == [row["id"]]
    assert not (tmp_path / "sessions" / "archive").exists()


@pytest.mark.parametrize("key", ["", "telegram", "Telegram:1", "cli:" + "k" * 2000])
def test_a_key_that_no_chat_can_have_gets_no_session(tmp_path: Path, key: str) -> None:
    """An empty variable of a script, or a channel alone, left a session that nobody talks to."""
    ran = Ran(tmp_path, "sessions", "new", key)

    assert ran.code == 1
    assert "is not a valid chat key: key is" in ran.err
    assert listed(tmp_path) == []


def test_one_that_was_taken_over_with_such_a_key_can_begin_anew(tmp_path: Path) -> None:
    session_file(tmp_path / "sessions" / "heartbeat.jsonl", "heartbeat", "hi")

    run(tmp_path, "new", "heartbeat")

    assert len(list((tmp_path / "sessions" / "archive").rglob("*.jsonl"))) == 1


@pytest.mark.parametrize("odd", ["cli:\udcff", "cli:a\nb", "cli:\x1b[2J"])
def test_a_key_that_nobody_can_type_is_not_offered_and_hides_no_other(tmp_path: Path, odd: str) -> None:
    """Half of a surrogate pair cannot be written: the shell got no name at all."""
    (tmp_path / "sessions").mkdir()
    for number, key in enumerate((odd, "cli:größe")):
        head = json.dumps({"_type": "metadata", "key": key, "metadata": {}})
        (tmp_path / "sessions" / f"{number}.jsonl").write_text(f"{head}\n")

    assert list(known.keys(tmp_path)) == ["cli:größe"]
