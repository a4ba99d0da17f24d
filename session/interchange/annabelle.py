"""One file per chat with a header, a line per exchange, and a compaction that opens what is left."""

from __future__ import annotations

import re
from collections.abc import Mapping
from datetime import datetime
from typing import Any

from session.interchange.conversation import (
    NO_TIME,
    Conversation,
    Files,
    Fit,
    Line,
    Losses,
    Written,
    after_summary,
    calls_of,
    count_odd,
    count_other_blocks,
    each_session,
    exchanges,
    from_texts,
    iso,
    json_lines,
    live,
    new_call,
    result_line,
    stem_of,
    strings,
    text_of,
    texts_of,
    time_text,
)
from session.transcript.index import usage_of
from session.transcript.key import split
from session.transcript.line import dump, make_line, read_time

AGENT = "annabelle"
_KEPT = (
    "role",
    "content",
    "timestamp",
    "tool_calls",
    "tool_call_id",
    "name",
    "is_error",
    "usage",
    "tools_used",
)
_TYPES = ("header", "turn", "compaction")
_HEADER = ("type", "chatId", "agentId", "createdAt", "version")
_TURN = ("type", "user", "assistant", "timestamp", "toolsUsed", "tokens", "messages")
_COMPACTION = ("type", "summary", "compactedTurns", "timestamp")
_UNSAFE = re.compile(r"[^\w.@+-]")


def encode(conversation: Conversation) -> Written:
    """Write the header, the newest summary, then the exchanges that it does not stand for."""
    losses = Losses()
    losses.of_session(conversation, ("agent_id",))
    summary, messages = after_summary(live(conversation, losses), losses)
    channel, chat_id = split(conversation.key)
    if channel:
        losses.add(f"the channel {channel}")
    losses.add("the ULID", bool(conversation.session_id))
    began = iso(conversation.created_at or conversation.last_at) or NO_TIME
    header = {"type": "header", "chatId": chat_id, "agentId": _agent(conversation), "createdAt": began}
    records: list[dict[str, Any]] = [{**header, "version": 1}]
    if summary is not None:
        turns = summary.get("compacted_turns")
        records.append(
            {
                "type": "compaction",
                "summary": text_of(summary.get("content")),
                "compactedTurns": turns if type(turns) is int else 0,
                "timestamp": iso(read_time(summary.get("timestamp"))) or began,
            }
        )
        losses.fields(summary, ("role", "kind", "content", "timestamp", "compacted_turns", "first_kept"))
    records += [_turn([line for _, line in part], began, losses) for part in exchanges(messages)]
    name = f"{_UNSAFE.sub('_', chat_id)[:200] or 'chat'}.jsonl"
    return Written({name: b"".join(dump(record) + b"\n" for record in records)}, losses.words())


def _agent(conversation: Conversation) -> str:
    found = conversation.inner.get("agent_id")
    return found if isinstance(found, str) and found else AGENT


def _turn(lines: list[Line], began: str, losses: Losses) -> dict[str, Any]:
    names: dict[str, str] = {}
    times = [read_time(line.get("timestamp")) for line in lines]
    losses.add("times within an exchange", sum(at is not None and at != times[0] for at in times[1:]))
    for line in lines:
        losses.fields(line, _KEPT)
        count_other_blocks(line.get("content"), losses)
    answers = [line for line in lines if line.get("role") == "assistant" and not calls_of(line)]
    # A turn that came in without its chain has the names of its tools alone.
    called = [call.name for line in lines for call in calls_of(line)]
    named = [name for line in lines for name in strings(line.get("tools_used"))]
    used = list(dict.fromkeys(called + named))
    turn: dict[str, Any] = {
        "type": "turn",
        "user": text_of(lines[0].get("content")) if lines[0].get("role") == "user" else "",
        "assistant": text_of(answers[-1].get("content")) if answers else "",
        "timestamp": iso(times[0]) or began,
    }
    if used:
        turn["toolsUsed"] = used
    sums = [usage_of(line) for line in lines]
    if any(one.prompt or one.completion for one in sums):
        turn["tokens"] = {
            "prompt": sum(one.prompt for one in sums),
            "completion": sum(one.completion for one in sums),
        }
        losses.add("prices of answers", sum(one.cost_usd > 0 for one in sums))
        losses.add("tokens of single requests", max(0, sum(one.prompt > 0 for one in sums) - 1))
    if not _is_plain(lines):
        turn["messages"] = [_message(line, names) for line in lines]
    return turn


def _is_plain(lines: list[Line]) -> bool:
    return (
        [line.get("role") for line in lines] == ["user", "assistant"]
        and all(isinstance(line.get("content"), str) for line in lines)
        and not calls_of(lines[1])
    )


def _message(line: Line, names: dict[str, str]) -> dict[str, Any]:
    role, content = line.get("role"), line.get("content")
    if role == "tool":
        id_ = str(line.get("tool_call_id", ""))
        part: dict[str, Any] = {
            "type": "tool-result",
            "toolCallId": id_,
            "toolName": str(line.get("name") or names.get(id_, "")),
            "result": text_of(content),
        }
        if line.get("is_error") is True:
            part["isError"] = True
        return {"role": "tool", "content": [part]}
    calls = calls_of(line)
    if not calls and isinstance(content, str):
        return {"role": role, "content": content}
    parts: list[dict[str, Any]] = [{"type": "text", "text": text} for text in texts_of(content)]
    for call in calls:
        names[call.id] = call.name
        parts.append(
            {"type": "tool-call", "toolCallId": call.id, "toolName": call.name, "args": call.arguments}
        )
    return {"role": role, "content": parts}


def decode(files: Files) -> list[Conversation]:
    """Read each chat's file."""
    return each_session(files, _decode)


def _decode(path: str, data: bytes) -> Conversation:
    losses, fit = Losses(), Fit(path, data)
    records = []
    for record in json_lines(data, losses):
        if fit.count(_is_record(record)):
            records.append(record)
        else:
            losses.unread("records", record.get("type"))
    fit.check("a header, a turn or a compaction")
    chat, agent, began, lines = "", "", None, list[Line]()
    for record in records:
        if record["type"] == "header":
            chat = str(record.get("chatId") or chat)
            agent = str(record.get("agentId") or agent)
            began = read_time(record.get("createdAt")) or began
            losses.others("the header's", record, _HEADER)
        elif record["type"] == "turn":
            lines += _lines(record, began, losses)
        else:
            lines.append(_overlay(record, len(lines), losses))
    return Conversation(
        tuple(lines),
        session_id=chat or stem_of(path),
        origin=path,
        created_at=began,
        inner={"agent_id": agent} if agent else {},
        lost=losses.words(),
    )


def _is_record(record: Mapping[str, Any]) -> bool:
    """Say whether a record is of this format: pi has a ``compaction`` too, with its place in a tree."""
    return record.get("type") in _TYPES and "parentId" not in record and "firstKeptEntryId" not in record


def _overlay(record: Mapping[str, Any], at: int, losses: Losses) -> Line:
    losses.others("compactions'", record, _COMPACTION)
    turns = record.get("compactedTurns")
    # It keeps all that follows it: ``first_kept`` is its own index.
    return make_line(
        "system",
        str(record.get("summary", "")),
        time_text(record.get("timestamp")),
        kind="overlay",
        first_kept=at,
        compacted_turns=turns if type(turns) is int else 0,
    )


def _lines(turn: Mapping[str, Any], began: datetime | None, losses: Losses) -> list[Line]:
    stamp = time_text(turn.get("timestamp"), time_text(began and began.isoformat()))
    user, answer = text_of(turn.get("user")), text_of(turn.get("assistant"))
    chain = turn.get("messages")
    losses.others("turns'", turn, _TURN)
    if chain and not isinstance(chain, list):
        losses.unread("messages", None)
    lines: list[Line] = []
    names: dict[str, str] = {}
    for message in chain if isinstance(chain, list) else []:
        found = _message_lines(message, stamp, names, losses) if isinstance(message, dict) else []
        if not found:
            losses.unread("messages", message.get("role") if isinstance(message, dict) else None)
        lines += found
    if not chain or (user and not any(line["role"] == "user" for line in lines)):
        count_other_blocks(turn.get("user"), losses)
        lines.insert(0, make_line("user", user, stamp))
    told = [line for line in lines if line["role"] == "assistant" and text_of(line["content"]) == answer]
    if not chain or (answer and not told):
        count_other_blocks(turn.get("assistant"), losses)
        lines.append(make_line("assistant", answer, stamp))
    tokens = turn.get("tokens")
    last = next((line for line in reversed(lines) if line["role"] == "assistant"), None)
    if isinstance(tokens, dict) and last is not None:
        losses.others("turns' tokens'", tokens, ("prompt", "completion"))
        last["usage"] = {"prompt": tokens.get("prompt", 0), "completion": tokens.get("completion", 0)}
    called = {call.name for line in lines for call in calls_of(line)}
    used = strings(turn.get("toolsUsed"))
    if last is not None and set(used) - called:
        last["tools_used"] = used
    return lines


def _message_lines(
    message: Mapping[str, Any], stamp: str, names: dict[str, str], losses: Losses
) -> list[Line]:
    role, content = message.get("role"), message.get("content")
    blocks = content if isinstance(content, list) else []
    parts = [part for part in blocks if isinstance(part, dict)]
    losses.add("parts without a type", len(blocks) - len(parts))
    if role == "tool":
        results = [part for part in parts if part.get("type") == "tool-result"]
        for part in parts if results else ():
            if part.get("type") != "tool-result":
                losses.unread("parts", part.get("type"))
        return [_result(part, stamp, names) for part in results]
    if role not in ("user", "assistant", "system"):
        return []
    count_odd(content, losses)
    calls = []
    for part in parts:
        if part.get("type") == "tool-call":
            arguments = part.get("args", part.get("input"))
            id_, name = part.get("toolCallId", ""), part.get("toolName", "")
            calls.append(new_call(id_, name, arguments, names))
        elif part.get("type") != "text":
            losses.unread("parts", part.get("type"))
    text = content if isinstance(content, str) else from_texts(texts_of(content), calls=bool(calls))
    return [make_line(str(role), text, stamp, tool_calls=calls or None)]


def _result(part: Mapping[str, Any], stamp: str, names: Mapping[str, str]) -> Line:
    value = part.get("result", part.get("output"))
    # Later versions of their kit wrap the value.
    if isinstance(value, dict) and value.keys() == {"type", "value"}:
        value = value["value"]
    id_ = str(part.get("toolCallId", ""))
    name = part.get("toolName") or names.get(id_)
    return result_line(id_, value, stamp, name=name, is_error=part.get("isError"))
