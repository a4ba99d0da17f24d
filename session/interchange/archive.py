"""A current file that a summary opens, and archives beside it that are never written again."""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Any

from session.interchange.conversation import (
    Call,
    Conversation,
    Files,
    Fit,
    Line,
    Losses,
    Written,
    after_summary,
    call_line,
    calls_of,
    json_lines,
    live,
    stem_of,
    time_text,
)
from session.transcript.line import ROLES, dump, make_line, read_time

CURRENT = "current.jsonl"
_ARCHIVE = re.compile(r"\d{8}T\d{6}Z?(-[0-9A-Z]{26})?")
_KEPT = ("role", "content", "timestamp", "tool_calls", "tool_call_id", "name", "is_error", "metadata")
_FOREIGN = frozenset({"_type", "type", "recordType"})
_READ = frozenset(
    [
        *("ts", "role", "content", "metadata", "toolCalls", "tool_calls"),
        *("toolCallId", "tool_call_id", "name", "isError"),
    ]
)
_KEPT_SUMMARY = ("role", "kind", "content", "timestamp", "metadata")


def encode(conversation: Conversation) -> Written:
    """Write the newest summary and the lines that it does not stand for, as ``current.jsonl``."""
    losses = Losses()
    losses.of_session(conversation, ())
    if conversation.key:
        losses.add(f"the key {conversation.key}")
    losses.add("the ULID", bool(conversation.session_id))
    summary, messages = after_summary(live(conversation, losses), losses)
    records = []
    if summary is not None:
        metadata = summary.get("metadata")
        losses.fields(summary, (*_KEPT_SUMMARY, "first_kept"))
        records.append(
            {
                "ts": _epoch(summary, conversation),
                "role": "system",
                "content": summary.get("content"),
                "metadata": {"type": "compact", **(metadata if isinstance(metadata, dict) else {})},
            }
        )
    records += [_record(line, conversation, losses) for _, line in messages]
    return Written({CURRENT: b"".join(dump(record) + b"\n" for record in records)}, losses.words())


def _epoch(line: Line, conversation: Conversation) -> int | float:
    at = read_time(line.get("timestamp")) or conversation.created_at
    seconds = round(at.timestamp(), 6) if at is not None else 0
    return int(seconds) if seconds == int(seconds) else seconds


def _record(line: Line, conversation: Conversation, losses: Losses) -> dict[str, Any]:
    losses.fields(line, _KEPT)
    record: dict[str, Any] = {
        "ts": _epoch(line, conversation),
        "role": line["role"],
        "content": line.get("content"),
    }
    if calls := calls_of(line):
        record["toolCalls"] = [{"id": one.id, "name": one.name, "arguments": one.arguments} for one in calls]
    for ours, theirs in (("tool_call_id", "toolCallId"), ("name", "name"), ("metadata", "metadata")):
        if line.get(ours) is not None:
            record[theirs] = line[ours]
    if line.get("is_error") is True:
        record["isError"] = True
    return record


def decode(files: Files) -> list[Conversation]:
    """Read each file, archives before what follows them."""
    paths = sorted(
        (path for path in files if path.endswith(".jsonl") or len(files) == 1),
        key=lambda path: (path.rpartition("/")[0], stem_of(path) == "current", path),
    )
    return [_decode(path, files[path]) for path in paths]


def _decode(path: str, data: bytes) -> Conversation:
    losses, fit = Losses(), Fit(path, data)
    lines = []
    for record in json_lines(data, losses):
        if fit.count(record.get("role") in ROLES and not _FOREIGN & record.keys()):
            lines.append(_line(record, losses))
        else:
            role = record.get("role")
            losses.add(f"records with the role {role}" if role else "records without a role")
    fit.check("a message with its role")
    folder = path.rpartition("/")[0].rpartition("/")[2]
    stem = stem_of(path)
    among = bool(folder) and (stem == "current" or _ARCHIVE.fullmatch(stem) is not None)
    first = read_time(lines[0]["timestamp"]) if lines else None
    return Conversation(
        tuple(lines),
        session_id=folder if among else stem,
        origin=path,
        created_at=first,
        lost=losses.words(),
    )


def _line(record: Mapping[str, Any], losses: Losses) -> Line:
    metadata = record.get("metadata")
    compact = record["role"] == "system" and isinstance(metadata, dict) and metadata.get("type") == "compact"
    found = record.get("toolCalls", record.get("tool_calls"))
    calls = [call for one in found if (call := _call(one))] if isinstance(found, list) else []
    losses.fields(record, _READ)
    return make_line(
        str(record["role"]),
        record.get("content"),
        time_text(record.get("ts", record.get("timestamp"))),
        tool_calls=calls or None,
        tool_call_id=record.get("toolCallId", record.get("tool_call_id")),
        name=record.get("name"),
        kind="compact" if compact else None,
        is_error=True if record.get("isError") is True else None,
        metadata=metadata,
    )


def _call(found: object) -> dict[str, Any] | None:
    if not isinstance(found, dict):
        return None
    if isinstance(found.get("function"), dict):
        return found
    arguments = found.get("arguments", {})
    return call_line(Call(str(found.get("id", "")), str(found.get("name", "")), arguments))
