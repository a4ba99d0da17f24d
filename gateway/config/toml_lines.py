"""Where each key of a TOML document stands, for problems that name a line; pure."""

from __future__ import annotations

import re
import tomllib
from collections.abc import Mapping

KeyPath = tuple[str, ...]

_PART = r"""(?:[A-Za-z0-9_-]+|"(?:[^"\\\n]|\\.)*"|'[^'\n]*')"""
_PATH = rf"{_PART}(?:[ \t]*\.[ \t]*{_PART})*"
_HEADER = re.compile(rf"[ \t]*\[\[?[ \t]*({_PATH})[ \t]*\]")
_PAIR = re.compile(rf"[ \t]*({_PATH})[ \t]*=")
_VALUE = re.compile(
    # The four kinds of strings, which may hold all that follows.
    r'"""(?:[^\\]|\\.)*?"{3,5}'
    r"|'''.*?'{3,5}"
    r'|"(?:[^"\\\n]|\\.)*"'
    r"|'[^'\n]*'"
    r"|#[^\n]*"
    r"|[\[\]{}\n]"
    r"|[^\"'#\[\]{}\n]+",
    re.DOTALL,
)


def lines_of(text: str) -> Mapping[KeyPath, int]:
    """Map every table and key of a sound TOML document to its line, counted from 1.

    Those of an array of tables, ``[[name]]``, stand there by their numbers as well: ``("name", "0", "key")``.

    A key within an inline table has none of its own; the first line of a table that is written twice counts.
    """
    lines: dict[KeyPath, int] = {}
    table: KeyPath = ()
    counted: dict[KeyPath, int] = {}
    item: KeyPath = ()
    start, line = 0, 1
    while start < len(text):
        header, pair = _HEADER.match(text, start), _PAIR.match(text, start)
        if header:
            table = path = _split(header[1])
            number = counted[table] = counted.get(table, -1) + 1
            numbered = item = (*table, str(number)) if header[0].lstrip().startswith("[[") else ()
        else:
            path = (*table, *_split(pair[1])) if pair else ()
            numbered = (*item, *_split(pair[1])) if pair and item else ()
        for size in range(1, len(path) + 1):
            lines.setdefault(path[:size], line)
        if numbered:
            lines.setdefault(numbered, line)
        after = header or pair
        end = _end_of_statement(text, after.end() if after else start)
        line += text.count("\n", start, end)
        start = end
    return lines


def _end_of_statement(text: str, start: int) -> int:
    depth = 0
    while start < len(text):
        token = _VALUE.match(text, start)
        start = token.end() if token else start + 1
        mark = token[0] if token else ""
        if mark in ("[", "{"):
            depth += 1
        elif mark in ("]", "}"):
            depth -= 1
        elif mark == "\n" and depth <= 0:
            break
    return start


def _split(path: str) -> KeyPath:
    parts = re.findall(_PART, path)
    return tuple(next(iter(tomllib.loads(f"{part} = 0"))) if part[0] in "\"'" else part for part in parts)
