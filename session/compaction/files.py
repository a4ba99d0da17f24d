"""Which files a conversation has read and changed, summed up over all its compactions."""

from __future__ import annotations

import json
import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any

from session.compaction.flat import MODIFIED_FILES, READ_FILES, escaped

Line = Mapping[str, Any]

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
    """Yield tool and path of each call of a line that reads or changes a file."""
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
