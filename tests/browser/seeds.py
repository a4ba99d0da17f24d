"""Workspaces with conversations in them, written as the store writes them."""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping, Sequence
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

from ulid import ULID

from session.transcript.line import make_line, naive, stamp

NOW = datetime.now(UTC).replace(microsecond=0)
Line = Mapping[str, Any]


def write_session(
    workspace: Path,
    key: str,
    lines: Sequence[Line],
    *,
    name: str | None = None,
    begun: datetime | None = None,
    ended: datetime | None = None,
) -> str:
    """Write one session, active or ended; return its ULID."""
    begun = begun or NOW - timedelta(hours=1)
    stem = key.replace(":", "_")
    session_id = str(ULID.from_datetime(begun))
    inner: dict[str, Any] = {"session_id": session_id, "source": "interactive"}
    inner |= {"name": name} if name else {}
    inner |= {"ended_at": stamp(ended, UTC)} if ended else {}
    head = {
        "_type": "metadata",
        "key": key,
        "created_at": naive(begun),
        "updated_at": naive(ended or NOW),
        "metadata": inner,
        "last_consolidated": 0,
    }
    if ended is None:
        path = workspace / "sessions" / f"{stem}.jsonl"
    else:
        path = workspace / "sessions" / "archive" / stem / f"{ended:%Y%m%dT%H%M%SZ}-{session_id}.jsonl"
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text("".join(json.dumps(line, ensure_ascii=False) + "\n" for line in (head, *lines)))
    return session_id


def exchange(number: int, question: str, answer: str, at: datetime, **final: Any) -> Iterable[Line]:
    """Build a question with its answer."""
    id_ = f"web:m{number}"
    yield make_line("user", question, stamp(at, UTC), message_id=id_)
    usage = {"prompt": 900 + number % 400, "completion": 40 + number % 90, "cost_usd": 0.0021}
    later = stamp(at + timedelta(seconds=4), UTC)
    yield make_line("assistant", answer, later, message_id=id_, final=True, usage=usage, **final)


def many_chats(workspace: Path, count: int) -> None:
    """Write so many chats of one exchange each."""
    for number in range(count):
        at = NOW - timedelta(minutes=number)
        lines = list(exchange(number, f"Question {number} about the delivery", f"Answer {number}", at))
        write_session(workspace, f"telegram:{100000 + number}", lines, name=f"Customer {number:04}", begun=at)


def long_chat(workspace: Path, key: str, messages: int) -> str:
    """Write one conversation of so many messages, of changing heights."""
    lines: list[Line] = []
    begun = NOW - timedelta(minutes=messages)
    for number in range(messages // 2):
        at = begun + timedelta(minutes=2 * number)
        answer = f"**Answer {number}.** " + "It goes on for a while. " * (number % 17)
        if number % 9 == 0:
            answer += f"\n\n```python\nprint({number})\n```\n\n- one\n- two"
        lines += exchange(number, f"Question {number}", answer, at)
    return write_session(workspace, key, lines, name="A long conversation", begun=begun)
