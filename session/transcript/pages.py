"""Pages of a transcript: records for other programs, entries for a person to read; numbered from 1, pure."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping, Sequence
from datetime import UTC
from typing import Any

from session.transcript.attachments import attachments_of
from session.transcript.history import is_deletion, is_record
from session.transcript.index import usage_of
from session.transcript.line import decode, stamp, time_of
from session.transcript.repair import plain_text

SCHEMA_VERSION = 1
_ROLES = {"tool": "toolResult"}
# What is longer than this is cut, and says how long it is: a page that shows a file whole would stand still.
MAX_TEXT_CHARS = 200_000
MAX_RESULT_CHARS = 20_000
# A line may hold a number of any length; a browser counts no further than this.
MAX_COUNT = 2**53
_FLAGS = ("final", "stopped", "is_error", "interrupted")
_RECORDS = {"overlay": "overlay", "compact": "compact", "undo": "undo", "note": "edit"}


def records_page(
    messages: Sequence[bytes], *, after: int, limit: int
) -> tuple[list[dict[str, Any]], int | None]:
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
        return (
            {"recordType": "compaction", **head, **summary, "timestamp": _time(line) or ""}
            if summary
            else None
        )
    role = str(line.get("role"))
    record = {
        "recordType": "message",
        **head,
        "role": _ROLES.get(role, role),
        "content": list(_blocks(line)),
        "timestamp": _time(line) or "",
    }
    if role == "tool":
        record |= {"toolCallId": str(line.get("tool_call_id", "")), "isError": line.get("is_error") is True}
    return record


def _compaction(line: Mapping[str, Any], seq: int) -> dict[str, Any]:
    """Read an overlay, or the summary with which a session opens: all before the next line is superseded."""
    if line["kind"] not in ("overlay", "compact"):
        return {}
    return {
        "firstKeptSeq": _place(line.get("first_kept"), seq + 1),
        "summary": plain_text(line.get("content")),
        "tokensBefore": _count(line.get("tokens_before")),
        "readFiles": _names(line.get("read_files")),
        "modifiedFiles": _names(line.get("modified_files")),
    }


def _blocks(line: Mapping[str, Any]) -> Iterator[dict[str, Any]]:
    calls = _calls(line)
    text = plain_text(line.get("content"))
    if text or not calls:
        yield {"type": "text", "text": text}
    for id_, name, arguments in calls:
        yield {"type": "toolCall", "id": id_, "name": name, "arguments": _arguments(arguments)}


def _calls(line: Mapping[str, Any]) -> list[tuple[str, str, object]]:
    """List the tool calls of a line: id, name, and the arguments as they stand there."""
    found = []
    calls = line.get("tool_calls")
    for call in calls if isinstance(calls, list) else ():
        if isinstance(call, Mapping):
            function = call.get("function")
            function = function if isinstance(function, Mapping) else {}
            found.append((str(call.get("id", "")), str(function.get("name", "")), function.get("arguments")))
    return found


def _arguments(raw: object) -> dict[str, Any]:
    value = raw
    if isinstance(raw, str):
        try:
            value = json.loads(raw) if raw else {}
        except (ValueError, RecursionError):
            value = raw
    return dict(value) if isinstance(value, Mapping) else {"raw": raw}


def _names(value: object) -> list[str]:
    return [str(name) for name in value] if isinstance(value, list) else []


def entries_page(
    messages: Sequence[bytes], *, before: int | None, after: int | None, limit: int
) -> tuple[list[dict[str, Any]], int | None, int | None]:
    """Return up to ``limit`` lines as entries, oldest first.

    Args:
        messages: the message lines of a session.
        before: the entries end below this ``seq``; None: they end with the newest.
        after: the entries begin behind this ``seq``, and ``before`` does not count.
        limit: how many lines at most; our own records that show nothing are among them.

    Returns:
        The entries, the ``before`` of what stands before them and the ``after`` of what stands behind; each
        None where nothing does.
    """
    if after is not None:
        start = min(max(after, 0), len(messages))
        stop = min(start + limit, len(messages))
    else:
        stop = len(messages) if before is None else min(max(before - 1, 0), len(messages))
        start = max(stop - limit, 0)
    entries = [entry_of(decode(messages[at]), at + 1) for at in range(start, stop)]
    found = [entry for entry in entries if entry is not None]
    return found, start + 1 if start > 0 else None, stop if stop < len(messages) else None


def entry_of(line: Mapping[str, Any], seq: int) -> dict[str, Any] | None:
    """Turn a message line into its entry; None for a record of ours that shows nothing.

    An entry has ``seq``, ``kind``, ``at`` and ``text``, and of the other fields those that the line has.
    """
    role = str(line.get("role"))
    kind = _RECORDS.get(str(line.get("kind"))) if is_record(line) else role
    if kind is None:
        return None
    entry: dict[str, Any] = {"seq": seq, "kind": kind, "at": _time(line)}
    typed = line.get("typed")
    text = typed if role == "user" and isinstance(typed, str) else plain_text(line.get("content"))
    entry |= _cut(text, MAX_RESULT_CHARS if role == "tool" else MAX_TEXT_CHARS)
    if isinstance(id_ := line.get("message_id"), str):
        entry["message_id"] = id_
    entry |= {flag: True for flag in _FLAGS if line.get(flag) is True}
    return entry | _of_kind(kind, line, seq)


def _of_kind(kind: str, line: Mapping[str, Any], seq: int) -> dict[str, Any]:
    if kind == "user":
        return _of_user(line)
    if kind == "assistant":
        return _of_assistant(line)
    if kind == "tool":
        return {"call_id": str(line.get("tool_call_id", "")), "name": str(line.get("name") or "")}
    if kind in ("overlay", "compact"):
        kept = _place(line.get("first_kept"), seq + 1)
        return {"first_kept": kept, "tokens_before": _count(line.get("tokens_before"))}
    if kind == "undo":
        return {"since": _place(line.get("from"), seq)}
    if kind == "edit":
        return {"edits": str(line.get("edits", "")), "deleted": is_deletion(line)}
    return {}


def _of_user(line: Mapping[str, Any]) -> dict[str, Any]:
    found: dict[str, Any] = {}
    sender = line.get("sender")
    if isinstance(sender, Mapping):
        sender = sender.get("name") or sender.get("username") or sender.get("id")
    if sender:
        found["sender"] = str(sender)[:200]
    if files := attachments_of(line):
        found["attachments"] = [file.as_dict() for file in files]
    return found


def _of_assistant(line: Mapping[str, Any]) -> dict[str, Any]:
    found: dict[str, Any] = {}
    if calls := _calls(line):
        found["calls"] = [
            {"id": id_, "name": name, "arguments": _shown(arguments)} for id_, name, arguments in calls
        ]
    usage = line.get("usage")
    if isinstance(usage, Mapping):
        used = usage_of(line)
        counts = {"prompt": max(used.prompt, 0), "completion": max(used.completion, 0)}
        found["usage"] = used.fields() | counts
    answers = line.get("answers")
    if isinstance(answers, list):
        found["answers"] = [str(id_) for id_ in answers]
    if files := attachments_of(line):
        found["attachments"] = [file.as_dict() for file in files]
    return found


def _shown(arguments: object) -> str:
    text = arguments if isinstance(arguments, str) else json.dumps(arguments, ensure_ascii=False)
    return text[:MAX_RESULT_CHARS]


def _cut(text: str, most: int) -> dict[str, Any]:
    return {"text": text} if len(text) <= most else {"text": text[:most], "cut_from": len(text)}


def _time(line: Mapping[str, Any]) -> str | None:
    at = time_of(line)
    return stamp(at, UTC) if at is not None else None


def _count(value: object) -> int:
    return value if type(value) is int and 0 <= value < MAX_COUNT else 0


def _place(index: object, default: int) -> int:
    """Turn an index from 0 into a ``seq``."""
    return index + 1 if type(index) is int and 0 <= index < MAX_COUNT else default
