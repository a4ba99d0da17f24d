"""Append-only sessions with compaction records: a folder per session, content always as blocks."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from session.interchange.conversation import (
    BadFormat,
    Conversation,
    Files,
    Fit,
    Line,
    Losses,
    Written,
    calls_of,
    count_odd,
    count_other_blocks,
    document,
    first_kept,
    from_texts,
    iso,
    json_lines,
    json_object,
    live,
    new_call,
    strings,
    texts_of,
    time_text,
)
from session.transcript.history import is_record
from session.transcript.index import usage_of
from session.transcript.line import dump, make_line, read_time

# Stands for arguments that are no object, which the format does not know.
RAW = "_raw"
_INNER = ("name", "model", "source", "cron_job_id", "instructions")
_KEPT = ("role", "content", "timestamp", "tool_calls", "tool_call_id", "name", "is_error")
_KEPT_OVERLAY = (
    "role",
    "kind",
    "content",
    "timestamp",
    "first_kept",
    "tokens_before",
    "read_files",
    "modified_files",
)
_READ = frozenset(
    [
        "recordType",
        "schemaVersion",
        "seq",
        "role",
        "content",
        "toolCallId",
        "isError",
        "timestamp",
        "summary",
        "firstKeptSeq",
        "tokensBefore",
        "readFiles",
        "modifiedFiles",
    ]
)
_READ_METADATA = frozenset(
    [
        "id",
        "name",
        "createdAt",
        "lastMessageAt",
        "model",
        "messageCount",
        "source",
        "cronJobId",
        "systemPromptOverride",
        "metrics",
    ]
)
_ROLES = {"user": "user", "assistant": "assistant", "toolResult": "tool"}


def encode(conversation: Conversation) -> Written:
    """Write ``<id>/session.jsonl`` and ``<id>/metadata.json``; a record's seq is its line's index + 1."""
    losses = Losses()
    losses.of_session(conversation, _INNER)
    names: dict[str, str] = {}
    records = []
    for at, line in live(conversation, losses):
        record = _compaction(at, line, losses) if is_record(line) else _message(line, names, losses)
        if record is not None:
            kind, fields = record
            stamp = iso(read_time(line.get("timestamp")) or conversation.created_at)
            records.append(
                {"recordType": kind, "schemaVersion": 1, "seq": at + 1, **fields, "timestamp": stamp}
            )
    if conversation.key:
        losses.add(f"the key {conversation.key}")
    folder = conversation.session_id
    files = {
        f"{folder}/session.jsonl": b"".join(dump(record) + b"\n" for record in records),
        f"{folder}/metadata.json": document(_metadata(conversation, records)),
    }
    return Written(files, losses.words())


def _message(line: Line, names: dict[str, str], losses: Losses) -> tuple[str, dict[str, Any]] | None:
    role = next((theirs for theirs, ours in _ROLES.items() if ours == line.get("role")), None)
    if role is None:
        losses.add("system messages")
        return None
    losses.fields(line, _KEPT)
    count_other_blocks(line.get("content"), losses)
    content: list[dict[str, Any]] = [{"type": "text", "text": text} for text in texts_of(line.get("content"))]
    fields: dict[str, Any] = {"role": role, "content": content}
    if role == "assistant":
        for call in calls_of(line):
            names[call.id] = call.name
            plain = isinstance(call.arguments, dict) and call.arguments.keys() != {RAW}
            arguments = call.arguments if plain else {RAW: call.arguments}
            content.append({"type": "toolCall", "id": call.id, "name": call.name, "arguments": arguments})
    if role == "toolResult":
        fields["toolCallId"] = str(line.get("tool_call_id", ""))
        fields["isError"] = line.get("is_error") is True
        if line.get("name") and names.get(fields["toolCallId"]) != line["name"]:
            losses.add("tool names of results without a call")
    return "message", fields


def _compaction(at: int, line: Line, losses: Losses) -> tuple[str, dict[str, Any]] | None:
    if line["kind"] not in ("overlay", "compact"):
        losses.add("notes of edits and other records")
        return None
    if line["kind"] == "compact":
        losses.add("names of archives that a summary replaces")
        kept = at + 1
    else:
        losses.fields(line, _KEPT_OVERLAY)
        kept = first_kept((at, line))
    tokens = line.get("tokens_before")
    return "compaction", {
        "firstKeptSeq": kept + 1,
        "summary": "\n".join(texts_of(line.get("content"))),
        "tokensBefore": tokens if type(tokens) is int else 0,
        "readFiles": strings(line.get("read_files")),
        "modifiedFiles": strings(line.get("modified_files")),
    }


def _metadata(conversation: Conversation, records: list[dict[str, Any]]) -> dict[str, Any]:
    inner = conversation.inner
    sums = [usage_of(line) for line in conversation.lines]
    fields: dict[str, Any] = {
        "id": conversation.session_id,
        "name": inner.get("name"),
        "createdAt": iso(conversation.created_at or conversation.last_at),
        "lastMessageAt": iso(conversation.last_at),
        "model": inner.get("model") or "",
        "messageCount": sum(record["recordType"] == "message" for record in records),
        "source": inner.get("source") or "interactive",
        "cronJobId": inner.get("cron_job_id"),
        "systemPromptOverride": inner.get("instructions"),
        "metrics": {
            "promptTokens": sum(one.prompt for one in sums),
            "completionTokens": sum(one.completion for one in sums),
            "costUsd": sum(one.cost_usd for one in sums),
        },
    }
    return {name: value for name, value in fields.items() if value is not None}


def decode(files: Files) -> list[Conversation]:
    """Read each ``session.jsonl`` with the ``metadata.json`` beside it."""
    paths = [path for path in files if path.endswith(".jsonl")]
    if not paths:
        raise BadFormat(
            "it contains no session.jsonl", hint="choose the folder of a session, or the one above"
        )
    return [
        _decode(path, files[path], json_object(files.get(f"{path.rpartition('/')[0]}/metadata.json", b"{}")))
        for path in paths
    ]


def _decode(path: str, data: bytes, about: Mapping[str, Any]) -> Conversation:
    losses, fit = Losses(), Fit(path, data)
    records = []
    for record in json_lines(data, losses):
        kind = record.get("recordType")
        fit.count(isinstance(kind, str))
        role = record.get("role")
        if kind == "message" and not (isinstance(role, str) and role in _ROLES):
            losses.unread("messages", role)
        elif kind in ("message", "compaction"):
            losses.others("records'", record, _READ)
            records.append(record)
        else:
            losses.unread("records", kind)
    fit.check("a record with its recordType")
    losses.others("metadata.json's", about, _READ_METADATA)
    created = read_time(about.get("createdAt")) or next(
        (at for record in records if (at := read_time(record.get("timestamp")))), None
    )
    session_id = about.get("id")
    folder = path.rpartition("/")[0].rpartition("/")[2]
    inner = {
        "name": about.get("name"),
        "model": about.get("model"),
        "source": about.get("source"),
        "cron_job_id": about.get("cronJobId"),
        "instructions": about.get("systemPromptOverride"),
    }
    return Conversation(
        lines=tuple(_lines(records, losses, time_text(about.get("createdAt")))),
        session_id=session_id if isinstance(session_id, str) and session_id else folder,
        origin=path,
        created_at=created,
        inner={name: value for name, value in inner.items() if isinstance(value, str) and value},
        lost=losses.words(),
    )


def _lines(records: list[dict[str, Any]], losses: Losses, began: str) -> list[Line]:
    seqs = [
        record.get("seq") if type(record.get("seq")) is int else at for at, record in enumerate(records, 1)
    ]
    names: dict[str, str] = {}
    lines: list[Line] = []
    for at, record in enumerate(records):
        stamp = time_text(record.get("timestamp"), lines[-1]["timestamp"] if lines else began)
        if record["recordType"] == "message":
            lines.append(_message_line(record, stamp, names, losses))
            continue
        seq = record.get("firstKeptSeq")
        kept = at if type(seq) is not int else next((n for n in range(at) if (seqs[n] or 0) >= seq), at + 1)
        lines.append(
            make_line(
                "system",
                str(record.get("summary", "")),
                stamp,
                kind="overlay",
                first_kept=min(kept, at),
                tokens_before=record.get("tokensBefore") if type(record.get("tokensBefore")) is int else 0,
                read_files=strings(record.get("readFiles")),
                modified_files=strings(record.get("modifiedFiles")),
            )
        )
    return lines


def _message_line(record: dict[str, Any], stamp: str, names: dict[str, str], losses: Losses) -> Line:
    content = record.get("content")
    count_odd(content, losses)
    blocks = content if isinstance(content, list) else []
    calls = []
    for block in blocks:
        kind = block.get("type") if isinstance(block, dict) else None
        if kind == "toolCall":
            arguments = block.get("arguments")
            if isinstance(arguments, dict) and arguments.keys() == {RAW}:
                arguments = arguments[RAW]
            calls.append(new_call(block.get("id", ""), block.get("name", ""), arguments, names))
        elif kind != "text":
            losses.unread("blocks", kind)
    texts = texts_of(content)
    if record["role"] != "toolResult":
        found = from_texts(texts, calls=bool(calls))
        return make_line(_ROLES[record["role"]], found, stamp, tool_calls=calls or None)
    id_ = str(record.get("toolCallId", ""))
    return make_line(
        "tool",
        from_texts(texts),
        stamp,
        tool_call_id=id_,
        name=names.get(id_),
        is_error=True if record.get("isError") is True else None,
    )
