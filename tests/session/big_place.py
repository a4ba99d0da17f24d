"""Big transcripts for the tests: what a gateway of many months has written, and how it is read."""

from __future__ import annotations

import json
import os
from array import array
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from datetime import UTC
from pathlib import Path
from typing import Any

import orjson

from session.store.store import Store
from session.transcript.index import Saved, identity_of, sample, write_index
from session.transcript.key import SessionKey
from session.transcript.line import decode, make_line
from session.transcript.lines import Lines
from session.transcript.loading import WHOLE_BYTES, load
from session.transcript.transcript import Transcript

KEY = SessionKey("cli:big")
STEM = "cli_big"
AT = "2026-03-01T10:00:00.000001+00:00"
SESSION = "01JGFJJZ000000000000000000"
HEAD: dict[str, Any] = {
    "_type": "metadata",
    "key": KEY,
    "created_at": "2026-03-01T10:00:00.000000",
    "updated_at": "2026-03-01T10:00:00.000000",
    "metadata": {"session_id": SESSION},
    "last_consolidated": 10,
}


def exchange(number: int, chars: int = 900) -> list[dict[str, Any]]:
    """A question and its answer; some are answered for another, stopped, withdrawn or noted."""
    id_ = f"cli:{number}"
    usage = {"prompt": number, "completion": 1, "cost_usd": 0.5}
    text = f"{number} " + "wörter " * (chars // 8)
    lines = [make_line("user", text, AT, message_id=id_, platform_id=str(number))]
    if number % 50 == 7:
        lines.append(
            make_line("system", "a note", AT, kind="note", edits=f"cli:{number - 1}", message_id=f"e{id_}")
        )
    if number % 50 == 8:
        lines.append(make_line("system", "", AT, kind="undo", **{"from": 2 * number}))
    answers = [id_, f"cli:{number - 1}"] if number % 50 == 9 else None
    stopped = True if number % 50 == 10 else None
    lines.append(
        make_line(
            "assistant", text, AT, message_id=id_, final=True, usage=usage, answers=answers, stopped=stopped
        )
    )
    return lines


def body(size: int = WHOLE_BYTES + 200_000, first: int = 0) -> list[bytes]:
    """Message lines of about ``size`` bytes together."""
    lines: list[bytes] = []
    number, total = first, 0
    while total < size:
        for line in exchange(number):
            lines.append(orjson.dumps(line))
            total += len(lines[-1]) + 1
        number += 1
    return lines


def whole(lines: Sequence[bytes], **head: Any) -> bytes:
    """The bytes of a file with these message lines."""
    return b"".join(raw + b"\n" for raw in [json.dumps({**HEAD, **head}).encode(), *lines])


def path_of(workspace: Path) -> Path:
    """Where the transcript of KEY lies; its folder is made."""
    path = workspace / "sessions" / f"{STEM}.jsonl"
    path.parent.mkdir(parents=True, exist_ok=True)
    return path


def index_of(workspace: Path) -> Path:
    """Where its index lies."""
    return workspace / "state" / "index" / f"{STEM}.idx"


def told(transcript: Transcript) -> dict[str, Any]:
    """All that a transcript says, in a form that can be compared."""
    index, messages = transcript.index, list(transcript.messages)
    ids = sorted({str(decode(raw).get("message_id")) for raw in [*messages[:6], *messages[-6:]]})
    return {
        "messages": messages,
        "metadata": transcript.metadata,
        "finals": list(index.finals),
        "records": list(index.records),
        "found": {id_: index.find(id_) for id_ in [*ids, "cli:1000", "ecli:507", "nobody"]},
        "totals": index.totals(),
        "offset": transcript.last_consolidated,
        "cut": (transcript.size, transcript.keep, transcript.open_end),
        "state": (transcript.torn, transcript.needs_copy, transcript.needs_checkpoint),
    }


def loaded(path: Path, index: Path | None = None) -> Transcript:
    found = load(path, STEM, index)
    assert found is not None
    return found[0]


def save(path: Path, index: Path) -> Saved:
    """Write the index of a file as the gateway does."""
    transcript = loaded(path)
    assert isinstance(transcript.messages, Lines)
    file, body_at, starts, end = transcript.messages.snapshot()
    identity = identity_of(os.fstat(file.fd))
    older = transcript.index.snapshot()()
    saved = Saved(identity, body_at, end, array("Q", starts), older, sample(file.fd, body_at, end))
    write_index(index, saved)
    return saved


def is_used(transcript: Transcript) -> bool:
    """Say whether the lines were taken from an index."""
    return isinstance(transcript.messages, Lines) and transcript.messages.saved_bytes > 0


@asynccontextmanager
async def store_at(workspace: Path, **options: Any) -> AsyncIterator[Store]:
    store = Store(workspace, zone=UTC, **options)
    try:
        yield store
    finally:
        await store.aclose()
