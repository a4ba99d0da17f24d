"""A conversation as flat text, which a model summarises instead of continuing it; its lists of files."""

from __future__ import annotations

import json
import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
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
    function = call.get("function") if isinstance(call, Mapping) else None
    if not isinstance(function, Mapping) or not function.get("name"):
        return ""
    arguments = function.get("arguments")
    try:
        fields = json.loads(arguments) if isinstance(arguments, str) else arguments
    except (ValueError, RecursionError):
        fields = None
    if isinstance(fields, Mapping):
        values = {name: json.dumps(each, ensure_ascii=False, default=str) for name, each in fields.items()}
        shown = ", ".join(f"{name}={plain_text(value)}" for name, value in values.items())
    else:
        shown = plain_text(arguments)
    return f"{plain_text(function['name'])}({shown})"


# Of the names of a list so many stand in the summary's text; the record holds them all.
MAX_SHOWN = 200
_READING = frozenset({"read", "read_file"})
_CHANGING = frozenset({"write", "edit", "write_file", "edit_file"})
_PATHS = ("path", "file_path")
_OPENING = re.compile(rf"<({READ_FILES}|{MODIFIED_FILES})>\n")


@dataclass(frozen=True, slots=True)
class FileLists:
    """Names of files, each list sorted; what was changed does not count as read."""

    read: tuple[str, ...] = ()
    modified: tuple[str, ...] = ()

    @classmethod
    def of_record(cls, record: Line | None) -> FileLists:
        """Take the lists of an earlier compaction's line."""
        fields = record or {}
        return cls().joined(_names(fields.get("read_files")), _names(fields.get("modified_files")))

    def plus(self, lines: Iterable[Line]) -> FileLists:
        """Add what the tool calls of ``lines`` name."""
        read, modified = set[str](), set[str]()
        for line in lines:
            for name, path in _operations(line):
                (read if name in _READING else modified).add(path)
        return self.joined(read, modified)

    def joined(self, read: Iterable[str], modified: Iterable[str]) -> FileLists:
        """Add names to both lists."""
        changed = {*self.modified, *modified}
        return FileLists(tuple(sorted({*self.read, *read} - changed)), tuple(sorted(changed)))

    def lists(self) -> str:
        """Write the lists as they stand at the end of a summary; empty without a name."""
        blocks = [_block(READ_FILES, self.read), _block(MODIFIED_FILES, self.modified)]
        return "\n\n".join(filter(None, blocks))


def without_lists(summary: str) -> str:
    """Take the lists of files off a summary."""
    kept: list[str] = []
    at = 0
    # Where one is not closed, no later one of its kind is, and all to the end would be read for each.
    unclosed: set[str] = set()
    for opening in _OPENING.finditer(summary):
        tag = opening[1]
        if opening.start() < at or tag in unclosed:
            continue
        closing = f"\n</{tag}>"
        if (end := summary.find(closing, opening.end())) < 0:
            unclosed.add(tag)
            continue
        kept.append(summary[at : opening.start()])
        at = end + len(closing)
    return ("".join(kept) + summary[at:]).strip()


def _block(tag: str, names: tuple[str, ...]) -> str:
    if not names:
        return ""
    rows = [escaped(" ".join(name.split())) for name in names[:MAX_SHOWN]]
    if len(names) > MAX_SHOWN:
        rows.append(f"… and {len(names) - MAX_SHOWN} more")
    return "\n".join([f"<{tag}>", *rows, f"</{tag}>"])


def _names(value: object) -> list[str]:
    return [name for name in value if isinstance(name, str) and name] if isinstance(value, list) else []


def _operations(line: Line) -> Iterable[tuple[str, str]]:
    calls = line.get("tool_calls")
    for call in calls if isinstance(calls, list) else ():
        function = call.get("function") if isinstance(call, Mapping) else None
        name = function.get("name") if isinstance(function, Mapping) else None
        if isinstance(function, Mapping) and (name in _READING or name in _CHANGING):
            path = _path(function.get("arguments"))
            if path:
                yield str(name), path


def _path(arguments: object) -> str:
    try:
        fields = json.loads(arguments) if isinstance(arguments, str) else arguments
    except (ValueError, RecursionError):
        return ""
    if not isinstance(fields, Mapping):
        return ""
    return next((path for name in _PATHS if isinstance(path := fields.get(name), str) and path), "")
