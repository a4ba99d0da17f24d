"""What files alone tell of messages whose end is not known, and what is said where nothing tells."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import pytest

from gateway.config.settings import Settings
from gateway.outbound.send_log import SendLog
from gateway.service.trace import NotTraced, TracedTwice, Tracer
from session.transcript.line import dump, make_line

KEY, ME = "telegram:7", "telegram:1:{odd}"
NOW = datetime(2026, 3, 1, 10, tzinfo=UTC)


def stored(workspace: Path, stem: str, key: str, *lines: dict[str, Any]) -> None:
    path = workspace / "sessions" / f"{stem}.jsonl"
    path.parent.mkdir(parents=True, exist_ok=True)
    head = {"_type": "metadata", "key": key, "created_at": "2026-03-01T10:00:00.000001", "metadata": {}}
    path.write_bytes(b"".join(dump(line) + b"\n" for line in (head, *lines)))


def question(message_id: str = ME) -> dict[str, Any]:
    return make_line("user", "words", NOW.isoformat(), message_id=message_id)


def answer() -> dict[str, Any]:
    at = (NOW + timedelta(seconds=1)).isoformat()
    return make_line("assistant", "words", at, message_id=ME, final=True)


def tracer(workspace: Path) -> Tracer:
    return Tracer(Settings(workspace=workspace), mailbox=None, unasked="no broker here")


async def test_a_reply_that_its_adapter_took_and_never_confirmed(tmp_path: Path) -> None:
    stored(tmp_path, "telegram_7", KEY, question(), answer())
    clock = lambda: NOW + timedelta(seconds=2)  # noqa: E731
    async with SendLog(tmp_path / "state", "telegram", clock=clock) as send_log:
        await send_log.trying(KEY, f"{ME}#reply", 0)

    found = await tracer(tmp_path).trace(ME)

    assert (found["state"], found["key"]) == ("sending", KEY)
    assert found["words"] == "sent at 2026-03-01 10:00:02 UTC, but the platform never confirmed it"
    assert [step["step"] for step in found["steps"]] == ["begun", "model", "stored", "sending"]
    assert found["unknown"] == ["when it was accepted", "whether it waits in the queue: no broker here"]


async def test_a_turn_whose_end_is_not_stored_and_a_reply_without_a_trace(tmp_path: Path) -> None:
    stored(tmp_path, "telegram_7", KEY, question())
    begun = await tracer(tmp_path).trace(ME)
    stored(tmp_path, "telegram_7", KEY, question(), answer())
    answered = await tracer(tmp_path).trace(ME, KEY)

    assert begun["state"] == "open"
    assert "its end is not recorded" in begun["words"]
    assert answered["state"] == "answered"
    assert "no adapter recorded it" in " ".join(answered["unknown"])


async def test_several_and_none(tmp_path: Path) -> None:
    """Ids are unique in a chat and not beyond; what was searched is named."""
    for stem, key in (("telegram_7", KEY), ("telegram_8", "telegram:8")):
        stored(tmp_path, stem, key, question())

    with pytest.raises(TracedTwice, match="telegram:7, telegram:8"):
        await tracer(tmp_path).trace(ME)
    with pytest.raises(NotTraced, match=r"journal of telegram:9.*no broker here"):
        await tracer(tmp_path).trace(ME, "telegram:9")
    with pytest.raises(NotTraced, match="every chat"):
        await tracer(tmp_path).trace("telegram:0:0")
