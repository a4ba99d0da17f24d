"""Cuts long Markdown between its blocks, so that the work on it grows with its length and no faster."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any, Final

import pyromark
from telegramify_markdown.converter import STANDARD_OPTIONS

PART_BYTES: Final = 16_384
MAX_BLOCK_BYTES: Final = 65_536


@dataclass(frozen=True, slots=True)
class _Block:
    """A block of the document that lies in no other: from the beginning of its line on."""

    start: int
    is_code: bool


def parts(markdown: str) -> list[tuple[str, str]] | None:
    """Cut Markdown in parts that are rendered one by one, with the same result.

    The library looks back over what it has written, here and there over all of it: a part bounds that.

    Returns:
        Each part with what stands after it where it is shown; None where a part would be too large, as with a
        list of over 64 KiB, or links to definitions in a text of that size. Code is never too large.
    """
    source = markdown.encode()
    if len(source) <= PART_BYTES:
        return [(markdown, "")]
    blocks, linked = _blocks(source, markdown)
    if linked:
        return [(markdown, "")] if len(source) <= MAX_BLOCK_BYTES else None
    cuts = list(_cuts(blocks, len(source)))
    found = []
    for start, end, is_code in cuts:
        if end - start > MAX_BLOCK_BYTES and not is_code:
            return None
        found.append((source[start:end].decode(), "\n\n" if _is_apart(source, end) else "\n"))
    return found


def _blocks(source: bytes, markdown: str) -> tuple[list[_Block], bool]:
    """List the outermost blocks, and say whether a link of the text refers to a definition."""
    depth, linked = 0, False
    found: list[_Block] = []
    for event, where in pyromark.events_with_range(markdown, options=STANDARD_OPTIONS):
        name, about = next(iter(event.items())) if isinstance(event, dict) else (event, None)
        if depth == 0 and name != "End":
            start = source.rfind(b"\n", 0, where["start"]) + 1
            found.append(_Block(start, isinstance(about, dict) and "CodeBlock" in about))
        depth += (name == "Start") - (name == "End")
        linked = linked or (name == "Start" and _refers(about))
    return found, linked


def _refers(about: Any) -> bool:
    link = (about.get("Link") or about.get("Image")) if isinstance(about, dict) else None
    return bool(link and link["id"])


def _cuts(blocks: list[_Block], end: int) -> Iterator[tuple[int, int, bool]]:
    """Yield beginning and end of each part, whole blocks, and whether it is one piece of code."""
    start, held, is_code = 0, 0, False
    for number, block in enumerate(blocks):
        following = blocks[number + 1].start if number + 1 < len(blocks) else end
        if held and following - start > PART_BYTES:
            yield start, block.start, held == 1 and is_code
            start, held = block.start, 0
        held, is_code = held + 1, block.is_code
    if held:
        yield start, end, held == 1 and is_code


def _is_apart(source: bytes, at: int) -> bool:
    """Say whether the line before this place is blank."""
    before = source.rfind(b"\n", 0, max(at - 1, 0)) + 1
    return not source[before:at].strip(b" \t>\r\n")
