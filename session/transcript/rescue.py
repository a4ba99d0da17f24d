"""Takes apart a line that the fast parser refused: odd JSON, torn or run-together records, bad bytes."""

from __future__ import annotations

import json
import re
from dataclasses import dataclass, field
from typing import Any

# Deeper nesting ends Python's own parser, and with it every nanobot that loads the file.
MAX_DEPTH = 500
# Failed starts in one line: limits the work on a megabyte of garbage.
_MAX_TRIES = 256
_PADDING = b" \t\r\0"
_ROLES = ("user", "assistant", "tool", "system")
_START = re.compile(r'\{\s*"')
_TOKEN = re.compile(rb'"(?:[^"\\]|\\.)*"?|[\[{]|[\]}]', re.DOTALL)
_DECODER = json.JSONDecoder()


@dataclass(slots=True)
class Rescued:
    """What a refused line held: whole records with their bytes, and what was wrong with the rest.

    Args:
        problem: empty if no byte was lost: the fast parser was only too strict.
        blank: there was nothing but white space and NUL bytes.
    """

    records: list[tuple[dict[str, Any], bytes]] = field(default_factory=list)
    problem: str = ""
    blank: bool = False


def too_deep(raw: bytes) -> bool:
    """Say whether ``raw`` nests deeper than MAX_DEPTH; cheap for every ordinary line."""
    if len(raw) <= 2 * MAX_DEPTH or raw.count(b"[") + raw.count(b"{") <= MAX_DEPTH:
        return False
    depth = 0
    for token in _TOKEN.finditer(raw):
        first = raw[token.start()]
        if first in b"[{":
            depth += 1
            if depth > MAX_DEPTH:
                return True
        elif first in b"]}":
            depth -= 1
    return False


def rescue(raw: bytes) -> Rescued:
    """Return every record that can be had from one line, in order."""
    bare = raw.strip(_PADDING)
    if not bare:
        return Rescued(blank=True)
    found = Rescued()
    if b"\0" in raw:
        found.problem = "NUL bytes beside a record"
    try:
        text = bare.decode()
    except UnicodeDecodeError:
        found.problem = "bytes that are not UTF-8"
        text = bare.decode("utf-8", "replace")
        bare = text.encode()
    if too_deep(bare):
        found.problem = f"nested deeper than {MAX_DEPTH} levels"
        return found
    try:
        whole = json.loads(text)
    except (ValueError, RecursionError):
        _take_apart(text, found)
        return found
    if isinstance(whole, dict):
        found.records.append((whole, bare))
    else:
        found.problem = "not an object"
    return found


def _take_apart(text: str, found: Rescued) -> None:
    """Collect the whole records of a line that is no JSON text: skip torn ones, split run-together ones."""
    position, covered, tries = 0, 0, 0
    while tries < _MAX_TRIES and (start := _START.search(text, position)) is not None:
        try:
            record, end = _DECODER.raw_decode(text, start.start())
        except (ValueError, RecursionError):
            tries += 1
            position = start.start() + 1
            continue
        if _is_record(record):
            found.records.append((record, text[start.start() : end].encode("utf-8", "surrogatepass")))
            covered += end - start.start()
            position = end
        else:
            tries += 1
            position = start.start() + 1
    lost = len(text) - covered
    found.problem = found.problem or ("half a record" if lost else "several records on one line")


def _is_record(value: dict[str, Any]) -> bool:
    """Tell a record of its own from an object that stood inside a torn one."""
    return isinstance(value.get("_type"), str) or value.get("role") in _ROLES
