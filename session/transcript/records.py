"""A transcript as records for other programs: content in blocks, numbered from 1; pure."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping, Sequence
from datetime import UTC
from typing import Any

from session.transcript.history import is_record
from session.transcript.line import decode, read_time, stamp
from session.transcript.repair import plain_text

SCHEMA_VERSION = 1
_ROLES = {"tool": "toolResult"}


def page(messages: Sequence[bytes], *, after: int, limit: int) -> tuple[list[dict[str, Any]], int | None]:
    """Return up to ``limit`` records with a ``seq`` above ``after``, oldest first, and where the next begin.

    Returns:
        The records, and the ``after`` of the next page; None where this one is the last.
    """
    found: list[dict[str, Any]] = []
    for seq in range(max(after, 0) + 1, len(messages) + 1):
        if len(found) == limit:
            return found, seq - 1
        record = record_of(decode(messages[seq - 1]), seq)
        if record is not None:
            found.append(record)
    return found, None


def record_of(line: Mapping[str, Any], seq: int) -> dict[str, Any] | None:
    """Turn a message line into its record; None for our own lines that are neither message nor summary."""
    head = {"schemaVersion": SCHEMA_VERSION, "seq": seq}
    if is_record(line):
        summary = _compaction(line, seq)
        return {"recordType": "compaction", **head, **summary, "timestamp": _time(line)} if summary else None
    role = str(line.get("role"))
    record = {
        "recordType": "message",
        **head,
        "role": _ROLES.get(role, role),
        "content": list(_blocks(line)),
        "timestamp": _time(line),
    }
    if role == "tool":
        record |= {"toolCallId": str(line.get("tool_call_id", "")), "isError": line.get("is_error") is True}
    return record


def _compaction(line: Mapping[str, Any], seq: int) -> dict[str, Any]:
    """Read an overlay, or the summary with which a session opens: all before the next line is superseded."""
    if line["kind"] not in ("overlay", "compact"):
        return {}
    first = line.get("first_kept")
    return {
        "firstKeptSeq": first + 1 if type(first) is int and first >= 0 else seq + 1,
        "summary": plain_text(line.get("content")),
        "tokensBefore": _count(line.get("tokens_before")),
        "readFiles": _names(line.get("read_files")),
        "modifiedFiles": _names(line.get("modified_files")),
    }


def _blocks(line: Mapping[str, Any]) -> Iterator[dict[str, Any]]:
    calls = line.get("tool_calls")
    found = [call for call in calls if isinstance(call, Mapping)] if isinstance(calls, list) else []
    text = plain_text(line.get("content"))
    if text or not found:
        yield {"type": "text", "text": text}
    for call in found:
        function = call.get("function")
        function = function if isinstance(function, Mapping) else {}
        yield {
            "type": "toolCall",
            "id": str(call.get("id", "")),
            "name": str(function.get("name", "")),
            "arguments": _arguments(function.get("arguments")),
        }


def _arguments(raw: object) -> dict[str, Any]:
    """Read a call's arguments; what is no object stands under ``raw``."""
    value = raw
    if isinstance(raw, str):
        try:
            value = json.loads(raw) if raw else {}
        except (ValueError, RecursionError):
            value = raw
    return dict(value) if isinstance(value, Mapping) else {"raw": raw}


def _time(line: Mapping[str, Any]) -> str:
    at = read_time(line.get("timestamp")) or read_time(line.get("created_at"))
    return stamp(at, UTC) if at is not None else ""


def _count(value: object) -> int:
    return value if type(value) is int and value >= 0 else 0


def _names(value: object) -> list[str]:
    return [str(name) for name in value] if isinstance(value, list) else []
