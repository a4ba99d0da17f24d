"""What the codecs share in taking a conversation apart: exchanges, texts, calls of tools; pure."""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any

from session.interchange.conversation import Conversation, Line, Losses
from session.transcript.history import deleted, edited
from session.transcript.line import dump, make_line


def is_record(line: Mapping[str, Any]) -> bool:
    """Say whether a line is one of our own: overlay, undo, note, compact."""
    return line.get("role") == "system" and isinstance(line.get("kind"), str)


def live(conversation: Conversation, losses: Losses) -> list[tuple[int, Line]]:
    """List the lines, as edited, with their indexes; without ``undo`` records and what those took back."""
    gone: set[int] = set()
    for at, line in enumerate(conversation.lines):
        begin = line.get("from")
        if is_record(line) and line["kind"] == "undo" and type(begin) is int and begin >= 0:
            gone.add(at)
            taken = {n for n in range(begin, at) if not is_record(conversation.lines[n])} - gone
            losses.add("messages that were withdrawn", len(taken))
            gone |= taken
    taken = deleted(conversation.lines) - gone
    losses.add("messages that were deleted", len(taken))
    gone |= taken
    return [(at, dict(line)) for at, line in enumerate(edited(conversation.lines)) if at not in gone]


def newest_overlay(lines: Iterable[tuple[int, Line]]) -> tuple[int, Line] | None:
    """Return the summary that is in force, with its index."""
    found = None
    for at, line in lines:
        if is_record(line) and line["kind"] == "overlay":
            found = (at, line)
    return found


def first_kept(overlay: tuple[int, Line]) -> int:
    """Return the index of the first line that a summary does not stand for."""
    at, line = overlay
    kept = line.get("first_kept")
    return kept if type(kept) is int and 0 <= kept <= at else at


def after_summary(
    lines: list[tuple[int, Line]], losses: Losses
) -> tuple[Line | None, list[tuple[int, Line]]]:
    """Take a conversation apart for a format in which a summary opens the file.

    Returns:
        The newest summary (an overlay, or a ``compact`` line at the beginning), and the messages after it.
    """
    summary: Line | None = None
    begin = 0
    for at, line in lines:
        if is_record(line) and line["kind"] in ("overlay", "compact"):
            summary, begin = line, first_kept((at, line)) if line["kind"] == "overlay" else at
    messages = [(at, line) for at, line in lines if not is_record(line)]
    kept = [(at, line) for at, line in messages if at >= begin]
    losses.add("messages that the summary replaces", len(messages) - len(kept))
    known = sum(1 for _, line in lines if is_record(line) and line["kind"] in ("overlay", "compact"))
    losses.add("earlier summaries", max(0, known - 1))
    others = sum(1 for _, line in lines if is_record(line)) - known
    losses.add("notes of edits and other records", others)
    return summary, kept


def text_of(content: object) -> str:
    """Return a content's text; of a list, its text blocks."""
    if isinstance(content, str):
        return content
    return "\n".join(texts_of(content))


def texts_of(content: object) -> list[str]:
    """List the text blocks of a content."""
    if isinstance(content, str):
        return [content]
    blocks = content if isinstance(content, list) else []
    return [
        block["text"]
        for block in blocks
        if isinstance(block, dict) and block.get("type") == "text" and isinstance(block.get("text"), str)
    ]


def count_other_blocks(content: object, losses: Losses) -> None:
    """Count the blocks of a content that are no text: images and the like; and one that is neither."""
    if isinstance(content, list):
        losses.add("blocks that are not text", len(content) - len(texts_of(content)))
    count_odd(content, losses)


def count_odd(content: object, losses: Losses) -> None:
    """Count a content that is neither a text nor a list of blocks."""
    losses.add("contents that are not text", not isinstance(content, str | list) and content is not None)


def from_texts(texts: list[str], *, calls: bool = False) -> str | list[dict[str, str]] | None:
    """Make a line's content of text blocks: null where there is none beside tool calls."""
    if not texts:
        return None if calls else ""
    return texts[0] if len(texts) == 1 else [{"type": "text", "text": text} for text in texts]


@dataclass(frozen=True, slots=True)
class Call:
    """A tool call of an assistant line."""

    id: str
    name: str
    arguments: Any


def calls_of(line: Mapping[str, Any]) -> list[Call]:
    """List the tool calls of a line; arguments are an object, or the text that is none."""
    found = line.get("tool_calls")
    calls = []
    for call in found if isinstance(found, list) else []:
        function = call.get("function") if isinstance(call, dict) else None
        if isinstance(function, dict):
            calls.append(
                Call(
                    str(call.get("id", "")),
                    str(function.get("name", "")),
                    _arguments(function.get("arguments")),
                )
            )
    return calls


def _arguments(value: object) -> Any:
    if not isinstance(value, str):
        return {} if value is None else value
    try:
        found = json.loads(value)
    except (ValueError, RecursionError):
        return value
    return found if isinstance(found, dict) else value


def call_line(call: Call) -> dict[str, Any]:
    """Write a tool call as a transcript does."""
    function = {"name": call.name, "arguments": _as_text(call.arguments)}
    return {"id": call.id, "type": "function", "function": function}


def result_line(id_: str, value: object, stamp: str, *, name: Any = None, is_error: bool = False) -> Line:
    """Write a tool's result as a transcript does; one that is no text as JSON."""
    return make_line(
        "tool", _as_text(value), stamp, tool_call_id=id_, name=name, is_error=True if is_error else None
    )


def _as_text(value: object) -> str:
    # What the writer takes as a field's value need not be an object: it goes in and out within one.
    return value if isinstance(value, str) else dump({"": value})[4:-1].decode()


def exchanges(lines: list[tuple[int, Line]]) -> list[list[tuple[int, Line]]]:
    """Cut lines into exchanges: a user line and all up to the next one; the first may lack its user line."""
    found: list[list[tuple[int, Line]]] = []
    for at, line in lines:
        if line.get("role") == "user" or not found:
            found.append([])
        found[-1].append((at, line))
    return found


def is_sound(line: Mapping[str, Any]) -> bool:
    """Say whether a line read from elsewhere has a role that every reader knows."""
    return line.get("role") in ("user", "assistant", "tool", "system")
