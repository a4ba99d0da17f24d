"""A conversation as flat text, so that a model sums it up instead of going on with it."""

from __future__ import annotations

import json
import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any

from session.transcript.attachments import with_references
from session.transcript.repair import plain_text

Line = Mapping[str, Any]

MAX_RESULT_CHARS = 2_000
CONVERSATION, PREVIOUS, SUMMARY = "conversation", "previous-summary", "summary"
READ_FILES, MODIFIED_FILES = "read-files", "modified-files"
_LABELS = {"user": "User", "assistant": "Assistant", "tool": "Tool result", "system": "System"}
_CALLS = "Assistant tool calls"
_TAG = rf"\\*+\s*+(?:/\s*+)?(?:{'|'.join((CONVERSATION, PREVIOUS, SUMMARY, READ_FILES, MODIFIED_FILES))})\b"
_LABEL = rf"\\*+\[(?:{'|'.join((*_LABELS.values(), _CALLS))})(?:, continued)?\]:"
_FLAGS = re.IGNORECASE | re.MULTILINE
_LIKE_A_TAG, _ESCAPED_TAG = re.compile(f"<(?={_TAG})", _FLAGS), re.compile(rf"<\\(?={_TAG})", _FLAGS)
_LIKE_A_LABEL, _ESCAPED_LABEL = re.compile(f"^(?={_LABEL})", _FLAGS), re.compile(rf"^\\(?={_LABEL})", _FLAGS)


def escaped(text: str) -> str:
    """Put a backslash into what looks like our tags, or like the beginning of a message."""
    return _LIKE_A_LABEL.sub(r"\\", _LIKE_A_TAG.sub(r"<\\", text))


def unescaped(text: str) -> str:
    """Take off what ``escaped`` put in."""
    return _ESCAPED_LABEL.sub("", _ESCAPED_TAG.sub("<", text))


def capped(text: str, max_chars: int) -> str:
    """Cut a text and say how much is missing."""
    if len(text) <= max_chars:
        return text
    return f"{text[:max_chars]}… ({len(text) - max_chars} more characters)"


def flat(lines: Iterable[Line]) -> list[str]:
    """Write the lines as ``[User]: …``, ``[Assistant]: …`` and so on, without those that say nothing."""
    return [f"[{label}]: {text}" for line in lines for label, text in _spoken(line)]


def first_part(pieces: Sequence[str], max_chars: int) -> tuple[str, list[str]]:
    """Return as many pieces as fit, joined, and the rest, where one that is too long is continued."""
    taken, left = 0, max_chars
    while taken < len(pieces) and len(pieces[taken]) + 1 <= left:
        left -= len(pieces[taken]) + 1
        taken += 1
    if taken or not pieces:
        return "\n".join(pieces[:taken]), list(pieces[taken:])
    long, label = pieces[0], pieces[0][1 : pieces[0].index("]:")].removesuffix(", continued")
    return long[:max_chars], [f"[{label}, continued]: {long[max_chars:]}", *pieces[1:]]


def _spoken(line: Line) -> Iterator[tuple[str, str]]:
    text = with_references(plain_text(line.get("content")).strip(), line)
    if line["role"] == "tool":
        text = capped(text, MAX_RESULT_CHARS)
    if text:
        yield _LABELS[line["role"]], escaped(text)
    calls = line.get("tool_calls")
    if isinstance(calls, list) and (named := [call for call in map(_call, calls) if call]):
        yield _CALLS, escaped("; ".join(named))


def _call(call: object) -> str:
    """Write a call as ``name(argument="value")``."""
    function = call.get("function") if isinstance(call, Mapping) else None
    if not isinstance(function, Mapping) or not function.get("name"):
        return ""
    arguments = function.get("arguments")
    try:
        fields = json.loads(arguments) if isinstance(arguments, str) else arguments
    except (ValueError, RecursionError):
        fields = None
    if isinstance(fields, Mapping):
        shown = ", ".join(f"{name}={plain_text(_value(value))}" for name, value in fields.items())
    else:
        shown = plain_text(arguments)
    return f"{plain_text(function['name'])}({shown})"


def _value(value: object) -> str:
    return json.dumps(value, ensure_ascii=False, default=str)
