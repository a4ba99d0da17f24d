"""Two tables in one JSON document: sessions, and messages whose tool calls lie in their metadata."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from session.interchange.conversation import (
    BadFormat,
    Conversation,
    Files,
    Line,
    Losses,
    Written,
    calls_of,
    count_other_blocks,
    document,
    exchanges,
    from_texts,
    iso,
    json_object,
    live,
    look,
    new_call,
    newest_overlay,
    result_line,
    text_of,
    time_text,
)
from session.transcript.history import is_record
from session.transcript.line import make_line, read_time

_KEPT = ("role", "content", "timestamp", "tool_calls", "tool_call_id", "name", "is_error")

_READ_SESSION = frozenset(
    ["id", "status", "started_at", "updated_at", "ended_at", "summary", "compaction_summary"]
)
_READ_ROW = frozenset(["id", "session_id", "sequence_number", "role", "content", "metadata", "created_at"])


def encode(conversation: Conversation) -> Written:
    """Write a document with one session: a row for each question and each answer."""
    losses = Losses()
    losses.of_session(conversation, ("summary", "ended_at"))
    if conversation.key:
        losses.add(f"the key {conversation.key}")
    lines = live(conversation, losses)
    summary = newest_overlay(lines)
    if summary is not None:
        losses.add("the place where the summary ends")
    compact = next((line for _, line in lines if is_record(line) and line["kind"] == "compact"), None)
    if summary is None and compact is not None:
        summary = (0, compact)
    records = sum(is_record(line) for _, line in lines)
    losses.add("earlier summaries, notes of edits and other records", records - (summary is not None))
    rows: list[dict[str, Any]] = []
    for part in exchanges([(at, line) for at, line in lines if not is_record(line)]):
        rows += _exchange([line for _, line in part], losses)
    inner, ended = conversation.inner, iso(read_time(conversation.inner.get("ended_at")))
    session = {
        "id": conversation.session_id,
        "status": "archived" if ended else "active",
        "started_at": iso(conversation.created_at or conversation.last_at) or None,
        "updated_at": iso(conversation.last_at) or None,
        "ended_at": ended or None,
        "summary": inner.get("summary"),
        "compaction_summary": text_of(summary[1].get("content")) if summary is not None else None,
    }
    numbered = [
        {"session_id": conversation.session_id, "sequence_number": number, **row}
        for number, row in enumerate(rows, 1)
    ]
    found = document({"chat_sessions": [session], "session_messages": numbered})
    return Written({f"{conversation.session_id or 'session'}.json": found}, losses.words())


def _exchange(lines: list[Line], losses: Losses) -> list[dict[str, Any]]:
    rows: list[dict[str, Any]] = []
    history: list[dict[str, Any]] = []
    losses.add("times of lines", sum("timestamp" in line for line in lines))
    for line in lines:
        losses.fields(line, _KEPT)
        count_other_blocks(line.get("content"), losses)
        role, text = str(line.get("role")), text_of(line.get("content"))
        calls = calls_of(line)
        if role == "tool":
            history.append(_result(line))
        elif role == "assistant" and calls:
            if line.get("content") is not None or (history and history[-1]["type"] != "tool_result"):
                history.append({"type": "text", "text": text})
            history += [
                {"type": "tool_use", "id": one.id, "name": one.name, "input": one.arguments} for one in calls
            ]
        else:
            losses.add("empty answers after tools", role == "assistant" and not text and bool(history))
            if role != "assistant" and history:
                rows.append(_row("assistant", "", history))
                history = []
            rows.append(_row(role, text, history))
            history = []
    if history:
        rows.append(_row("assistant", "", history))
    return rows


def _row(role: str, content: str, history: list[dict[str, Any]]) -> dict[str, Any]:
    return {"role": role, "content": content, "metadata": {"tool_history": history} if history else {}}


def _result(line: Line) -> dict[str, Any]:
    found = {
        "type": "tool_result",
        "tool_use_id": str(line.get("tool_call_id", "")),
        "name": line.get("name"),
        "content": text_of(line.get("content")),
    }
    return found | ({"is_error": True} if line.get("is_error") is True else {})


def decode(files: Files) -> list[Conversation]:
    """Read every session of the documents, those that began first first."""
    found = []
    for path, data in files.items():
        if not path.endswith(".json") and len(files) > 1:
            continue
        content = json_object(data)
        sessions, messages = content.get("chat_sessions"), content.get("session_messages")
        if not isinstance(sessions, list) or not isinstance(messages, list):
            guess = look(data)
            cure = f"it looks like --from {guess}" if guess else "it needs chat_sessions and session_messages"
            raise BadFormat(f"{path} is not a document of this format", hint=cure)
        rows = [row for row in sessions if isinstance(row, dict)]
        if messages and not rows:
            raise BadFormat(f"{path} has messages but no session", hint="each needs its row in chat_sessions")
        found += _decode_all(path, rows, messages)
    return sorted(found, key=lambda one: one.created_at.timestamp() if one.created_at else 0.0)


def _decode_all(path: str, sessions: list[dict[str, Any]], messages: list[Any]) -> list[Conversation]:
    """Read the sessions of one document; the first of them says how many messages are of none."""
    by_session: dict[object, list[dict[str, Any]]] = {_id_of(row.get("id")): [] for row in sessions}
    of_none = 0
    for row in messages:
        mine = by_session.get(_id_of(row.get("session_id"))) if isinstance(row, dict) else None
        if mine is None:
            of_none += 1
        else:
            mine.append(row)
    found = []
    for at, session in enumerate(sessions):
        losses = Losses()
        losses.add("messages without a session", of_none if at == 0 else 0)
        found.append(_decode(path, session, by_session[_id_of(session.get("id"))], losses))
    return found


def _id_of(value: object) -> tuple[bool, str]:
    """Return what tells ids apart; a number is the same as its digits, in whichever table it is a text."""
    if isinstance(value, float) and value.is_integer():
        value = int(value)
    plain = type(value) in (str, int)
    return plain, str(value) if plain else repr(value)


def _decode(
    path: str, session: Mapping[str, Any], mine: list[dict[str, Any]], losses: Losses
) -> Conversation:
    losses.others("sessions'", session, _READ_SESSION)
    began = time_text(session.get("started_at"))
    lines: list[Line] = []
    count_other_blocks(session.get("compaction_summary"), losses)
    if summary := text_of(session.get("compaction_summary")):
        at = time_text(session.get("updated_at"), began)
        lines.append(make_line("system", summary, at, kind="overlay", first_kept=0))
    for row in sorted(mine, key=_number):
        losses.others("messages'", row, _READ_ROW)
        if isinstance(row.get("metadata"), dict):
            losses.others("messages' metadata", row["metadata"], ("tool_history",))
        stamp = time_text(row.get("created_at"), began)
        lines += _lines(row, stamp, losses)
    inner = {"summary": session.get("summary"), "ended_at": session.get("ended_at")}
    return Conversation(
        tuple(lines),
        session_id=str(session.get("id") or ""),
        origin=path,
        created_at=read_time(session.get("started_at")),
        inner={name: value for name, value in inner.items() if isinstance(value, str) and value},
        lost=losses.words(),
    )


def _number(row: Mapping[str, Any]) -> float:
    number = row.get("sequence_number")
    return number if isinstance(number, int | float) else 0


def _lines(row: Mapping[str, Any], stamp: str, losses: Losses) -> list[Line]:
    """Turn a row back into lines: the calls and results of its tool history, then its own text."""
    role, content = row.get("role"), row.get("content")
    if role not in ("user", "assistant", "system", "tool"):
        losses.unread("messages", role)
        return []
    metadata = row.get("metadata")
    history = metadata.get("tool_history") if isinstance(metadata, dict) else None
    found = _chain(history, stamp, losses) if isinstance(history, list) else []
    count_other_blocks(content, losses)
    if not found or text_of(content):
        found.append(make_line(str(role), text_of(content), stamp))
    return found


def _chain(history: list[Any], stamp: str, losses: Losses) -> list[Line]:
    lines: list[Line] = []
    texts: list[str] = []
    calls: list[dict[str, Any]] = []
    names: dict[str, str] = {}

    def flush() -> None:
        if texts or calls:
            content = from_texts(list(texts), calls=bool(calls))
            lines.append(make_line("assistant", content, stamp, tool_calls=list(calls) or None))
            texts.clear()
            calls.clear()

    for entry in history:
        kind = entry.get("type") if isinstance(entry, dict) else None
        if kind == "text":
            flush()
            texts.append(str(entry.get("text", entry.get("content", ""))))
        elif kind in ("tool_use", "tool_call"):
            id_, name = entry.get("id", ""), entry.get("name", "")
            calls.append(new_call(id_, name, entry.get("input"), names))
        elif kind == "tool_result":
            flush()
            lines.append(_result_line(entry, stamp, names))
        else:
            losses.unread("entries of a tool history", kind)
    flush()
    return lines


def _result_line(entry: Mapping[str, Any], stamp: str, names: Mapping[str, str]) -> Line:
    id_ = str(entry.get("tool_use_id", ""))
    name = entry.get("name") or names.get(id_)
    return result_line(id_, entry.get("content"), stamp, name=name, is_error=entry.get("is_error"))
