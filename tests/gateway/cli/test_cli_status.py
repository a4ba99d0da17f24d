"""``status`` without a daemon: what the files of the workspace hold."""

from __future__ import annotations

import asyncio
import json
import os
from datetime import UTC, datetime, timedelta
from pathlib import Path

import pytest

from gateway.app.daemons import DaemonRegistry
from session.approvals.files import ApprovalFiles
from session.approvals.record import Approval, Call
from session.models.model import Usage
from tests.gateway.cli_place import Ran
from tests.support.usage_rows import spent, usage_row


def test_usage_and_media_without_a_daemon(tmp_path: Path) -> None:
    """Tokens and cost of today are those of the files, which are only read; uploads are seen to grow."""
    before = json.loads(Ran(tmp_path, "status", "--json").out)
    now = datetime.now(UTC)
    assert not (tmp_path / "state").exists()
    usage = Usage(prompt=10, completion=2, cost_usd=0.25)
    (tmp_path / "media" / "ab").mkdir(parents=True)
    (tmp_path / "media" / "ab" / "photo.jpg").write_bytes(bytes(3 * 2**19))
    # Midnight may pass between this line and the verb.
    rows = [
        usage_row(at, "web:ada", person, usage, turn=bool(person))
        for at in (now, now + timedelta(days=1))
        for person in ("ada", "")
    ]
    asyncio.run(spent(tmp_path, rows))
    after = json.loads(Ran(tmp_path, "status", "--json").out)
    shown = Ran(tmp_path, "status").out

    assert before["usage_today"] == {"turns": 0, **Usage().shown()}
    assert after["usage_today"] == {"turns": 1, **Usage(20, 4, 0.5).shown()}
    assert "today: 1 turn, 20 + 4 tokens, cost 0.5000 USD" in shown
    assert (before["media_bytes"], after["media_bytes"]) == (0, 3 * 2**19)
    assert "media: 1.5 MB of uploads" in shown


def test_usage_is_a_table_with_aligned_numbers(tmp_path: Path) -> None:
    """More days than are kept are refused: they were cut off without a word."""
    now = datetime.now(UTC)
    rows = [
        usage_row(now, f"web:{who}", who, Usage(prompt=tokens, completion=2, cost_usd=cost))
        for who, tokens, cost in (("ada", 12_345, 0.25), ("bob", 7, 1e-4))
    ]
    asyncio.run(spent(tmp_path, rows))

    too_many, found = (Ran(tmp_path, "usage", "--days", days) for days in ("36", "35"))
    assert (too_many.code, found.code) == (1, 0)
    assert too_many.err == "error: usage is kept for 35 days\ntry: --days 35\n"
    shown = found.out
    people = shown.splitlines()[-10:]
    (ada,) = (line for line in people if line.startswith("ada "))
    (bob,) = (line for line in people if line.startswith("bob "))
    assert ada.replace("12345", "    7").replace("0.2500", "0.0001") == bob.replace("bob", "ada")
    assert "0 background calls (titles, summaries, memory)" in shown


def test_processes_platforms_and_approvals_by_the_files(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Without a daemon that answers, files say who runs, how platforms stood, what waits for a word."""
    monkeypatch.setenv("CHAT_GATEWAY_CHANNELS__TELEGRAM__ENABLED", "true")
    monkeypatch.setenv("CHAT_GATEWAY_CHANNELS__TELEGRAM__TOKEN", "123456:AAsecret")
    now = datetime.now(UTC)
    call = Call("web:ada", "web:ada", "m1", 1, "c1", "shell", '{"command": "a secret wish"}', "/tmp")
    asked = ApprovalFiles(tmp_path / "state").ask(Approval.of(call, now, timeout_s=600))
    with DaemonRegistry(tmp_path).entry(url="http://127.0.0.1:1", role="channels"):
        shown = Ran(tmp_path, "status").out
        found = json.loads(Ran(tmp_path, "status", "--json").out)

    assert f"process {os.getpid()}: role channels, started " in shown
    assert f"approval {asked.id}: shell in web:ada, expires " in shown
    assert "telegram: down (no process runs it: chat-gateway run)" in shown
    assert "secret" not in shown + json.dumps(found)
    assert [row["role"] for row in found["daemons"]] == ["channels"]
    assert [row["id"] for row in found["approvals"]] == [asked.id]
