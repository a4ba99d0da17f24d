"""The commands of the pages, as a person types them one after the other, and what they print there."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from dataclasses import dataclass
from itertools import pairwise
from pathlib import Path
from typing import Any

from tests.docs.page import Code, read

# A block of these directly below commands is what they print: a line each, or the text of one.
BY_LINE, WHOLE = "jsonl", "text"
_PLACE = re.compile(r"\b[A-Z][A-Z|]+\b|\[|…")


@dataclass(frozen=True)
class Command:
    """One command of a page; ``shown`` is its output there, None where the page shows none."""

    page: Path
    line: int
    text: str
    shown: Any = None


def typed(page: Path) -> list[Command]:
    """Return what the blocks of a page have one type, in their order."""
    code = [*read(page).code, Code("", "", 0)]
    found: list[Command] = []
    for block, below in pairwise(code):
        if block.language == "sh":
            found += _of_block(page, block, below)
    return found


def mentioned(page: Path) -> set[str]:
    """Return the commands of ours that a page names within its sentences, those without a placeholder."""
    return {span for span in read(page).spans if span.startswith("chat-gateway ") and not _PLACE.search(span)}


def _of_block(page: Path, block: Code, below: Code) -> list[Command]:
    split = list(commands(block.text))
    shown: list[Any] = [None] * len(split)
    if below.language == BY_LINE:
        shown = [json.loads(line) for line in below.text.splitlines()]
        assert len(shown) == len(split), f"{page.name}:{block.line}: not a line of output for each command"
    elif below.language == WHOLE:
        assert len(split) == 1, f"{page.name}:{block.line}: one text for several commands"
        shown = [below.text]
    return [Command(page, block.line, text, told) for text, told in zip(split, shown, strict=True)]


def commands(text: str) -> Iterator[str]:
    """Split a block where a person would press Enter and wait."""
    held: list[str] = []
    for line in text.splitlines():
        if not line.strip() and not held:
            continue
        held.append(line)
        end = re.search(r"<<'(\w+)'$", held[0])
        waits = held[0].strip() == "{" and not line.startswith("}")
        if end is not None:
            waits = line != end[1]
        if not line.endswith("\\") and not waits:
            yield "\n".join(held).strip()
            held = []
    assert not held, f"a command without an end: {held}"


def alike(told: Any, shown: Any) -> bool:
    """Compare two documents or texts; ``…`` is anything, and times in milliseconds are as they may be."""
    if isinstance(shown, dict):
        return (
            isinstance(told, dict)
            and list(told) == list(shown)
            and all(name.endswith("AtMs") or alike(told[name], value) for name, value in shown.items())
        )
    if isinstance(shown, list):
        return (
            isinstance(told, list)
            and len(told) == len(shown)
            and all(alike(one, other) for one, other in zip(told, shown, strict=True))
        )
    if isinstance(shown, str) and "…" in shown:
        return re.fullmatch(re.escape(shown).replace("…", ".+"), str(told)) is not None
    return bool(told == shown)


def same_shape(told: str, shown: str) -> bool:
    """Compare the output of a command with a page's, line by line: numbers and ids are as they may be."""
    patterns = [re.escape(_shape(line)).replace("…", ".*") for line in shown.splitlines()]
    lines = [_shape(line) for line in told.splitlines()]
    return len(lines) == len(patterns) and all(map(re.fullmatch, patterns, lines))


def _shape(line: str) -> str:
    line = re.sub(r"[0-9A-HJKMNP-TV-Z]{26}|\b01[0-9A-HJKMNP-TV-Z]{2,}…", "ULID", line)
    return re.sub(r"\d+([.,]\d+)*", "0", line).strip()
