"""Escapes in Markdown what Telegram has no form for, so that it is shown as written and not left out."""

from __future__ import annotations

import re
import unicodedata
from bisect import bisect_right
from collections.abc import Iterable, Iterator, Sequence
from functools import cached_property
from typing import Any, Final
from urllib.parse import urlsplit

import pyromark
from telegramify_markdown.converter import STANDARD_OPTIONS

from channels.text import Range, bars_escaped_in_code, meets, not_prose
from durable import is_blank

_ROUNDS: Final = 6
_MAX_FORMULA_BYTES: Final = 4000
_PUNCTUATION: Final = re.compile(rb"([!-/:-@\[-`{-~])")
_DEFINITION: Final = re.compile(
    rb"^[ \t>]*(?:(?:[-*+]|\d{1,9}[.)])[ \t]+)*(\[([^\]\n]+)\]:[^\n]*)", re.MULTILINE
)
_PIPES: Final = re.compile(rb"\|{2,}")
_SPOILER: Final = re.compile(rb"(?<![|\\])\|\|(?=[^\s|])[^\n|]*(?<=[^\s|\\])\|\|(?!\|)")
_FORMULA: Final = re.compile(rb"\\[a-zA-Z]|[\^_{}=]")

# A character for no text: beside the marks of emphasis it counts as a letter; taken out of what is shown.
JOINER: Final = "\ufdd0"
_RUN: Final = re.compile(r"(?<![\\*])\*+|(?<![\\~])~~+")


def literal(markdown: str) -> str:
    """Return Markdown that shows all of ``markdown`` in Telegram.

    Escaped are HTML, formulas, links without an address that Telegram takes, links in tables or without a
    label, surplus cells of tables, definitions of links that none uses, fences around nothing, and double
    bars that enclose no spoiler; and the marks of emphasis in addresses, paths and products.

    Raises:
        ValueError: escaping does not converge.
    """
    reading = _Reading(markdown.encode())
    reading = _Reading(bars_escaped_in_code(reading.source, reading.tables))
    reading = _Reading(_with_space(reading.source, reading.bars_in_tables()))
    reading = _Reading(_escaped(reading.source, [*reading.stray_bars(), *reading.bracketed_formulas()]))
    for _ in range(_ROUNDS):
        ranges = [*reading.lost(), *reading.surplus_cells(), *reading.unused_definitions()]
        ranges += reading.empty_code()
        if not ranges:
            # Double bars lines apart: the search of the library for spoilers would try 2**lines ways.
            if any(reading.stray_bars()) or any(reading.bars_in_tables()):
                break
            return reading.with_addresses().decode()
        reading = _Reading(_escaped(reading.source, ranges))
    raise ValueError("escaping does not converge")


def flank_cjk(markdown: str) -> str:
    """Put ``JOINER`` where emphasis stands between punctuation and an unspaced letter: ``**步骤：**打开``.

    CommonMark takes such a mark for no beginning or end, since it expects spaces between words.
    """
    markdown = markdown.replace(JOINER, "")
    return markdown if markdown.isascii() else _RUN.sub(_flanked, markdown)


def _flanked(run: re.Match[str]) -> str:
    start, end = run.span()
    before, after = run.string[start - 1 : start], run.string[end : end + 1]
    if not (_is_unspaced(before) or _is_unspaced(after)):
        return run[0]
    ends = [JOINER if _is_punctuation(each) else "" for each in (before, after)]
    return f"{ends[0]}{run[0]}{ends[1]}"


def _is_unspaced(char: str) -> bool:
    """Say whether a character is wide, or a letter without case, as of Thai, Arabic or Hebrew."""
    wide = bool(char) and unicodedata.east_asian_width(char) in "WFH"
    return wide or (bool(char) and unicodedata.category(char) in ("Lo", "Mn", "Mc"))


def _is_punctuation(char: str) -> bool:
    return bool(char) and unicodedata.category(char)[0] in "PS"


def is_address(url: str) -> bool:
    """Say whether Telegram takes ``url`` as the address of a link."""
    try:
        parts = urlsplit(url)
        host = parts.hostname or ""
    except ValueError:
        return False
    if not url.isprintable() or " " in url or len(url) > 2048:
        return False
    return (parts.scheme in ("http", "https") and "." in host.strip(".")) or (
        parts.scheme == "tg" and bool(host)
    )


def _escaped(source: bytes, ranges: Iterable[Range]) -> bytes:
    done, parts = 0, []
    for start, end in sorted(ranges):
        if end > done:
            begin = max(start, done)
            parts += [source[done:begin], _PUNCTUATION.sub(rb"\\\1", source[begin:end])]
            done = end
    return b"".join([*parts, source[done:]])


def _with_space(source: bytes, ranges: Iterable[Range]) -> bytes:
    """Part the bars of empty cells, which are none of a spoiler then."""
    done, parts = 0, []
    for start, end in ranges:
        parts += [source[done:start], b" ".join([b"|"] * (end - start))]
        done = end
    return b"".join([*parts, source[done:]])


class _Reading:
    """Markdown as the parser reads it; ranges are of bytes."""

    def __init__(self, source: bytes) -> None:
        self.source = source
        self.events: list[tuple[str, Any, Range]] = []
        for event, where in pyromark.events_with_range(source.decode(), options=STANDARD_OPTIONS):
            name, about = next(iter(event.items())) if isinstance(event, dict) else (event, None)
            self.events.append((name, about, (where["start"], where["end"])))

    @cached_property
    def code(self) -> list[Range]:
        """Where code stands, in order."""
        return [
            here for name, about, here in self.events if name == "Code" or _begins(name, about, "CodeBlock")
        ]

    @cached_property
    def tables(self) -> list[Range]:
        """Where tables stand, in order."""
        return [here for name, about, here in self.events if _begins(name, about, "Table")]

    @cached_property
    def leaves(self) -> list[Range]:
        """What is shown as it stands, in order."""
        return [
            here
            for name, about, here in self.events
            if name not in ("Start", "End") or _begins(name, about, "CodeBlock")
        ]

    def lost(self) -> Iterator[Range]:
        """Find HTML, formulas, and links that would not be seen as links, or not be seen at all."""
        in_cell, seen = False, 0
        # For each open link, how much was seen before it.
        links: list[int] = []
        for name, about, here in self.events:
            if name in ("Text", "Code"):
                seen += not is_blank(about)
            elif name in ("InlineHtml", "InlineMath", "DisplayMath") or (name, about) == (
                "Start",
                "HtmlBlock",
            ):
                yield here
            elif about == "TableCell":
                in_cell = name == "Start"
            elif name == "Start" and isinstance(about, dict) and ("Link" in about or "Image" in about):
                link = about.get("Link") or about["Image"]
                # Of an image in a link the address would be lost.
                if in_cell or links or not is_address(link["dest_url"]):
                    yield here
                links.append(seen)
            elif name == "End" and about in ("Link", "Image") and links.pop() == seen:
                yield here

    def with_addresses(self) -> bytes:
        """Return the source with the marks of emphasis escaped in addresses and the like."""
        autolinks = [
            here
            for name, about, here in self.events
            if _begins(name, about, "Link") and about["Link"]["link_type"] in ("Autolink", "Email")
        ]
        done, shown = 0, []
        for start, end, escaped in not_prose(self.source):
            if not (meets(self.code, (start, end)) or meets(autolinks, (start, end))):
                shown += [self.source[done:start], escaped]
                done = end
        return b"".join([*shown, self.source[done:]])

    def empty_code(self) -> Iterator[Range]:
        """Find fences around nothing, which would not be seen; thousands of them would also cost minutes."""
        seen = False
        for name, about, here in self.events:
            if _begins(name, about, "CodeBlock"):
                seen = False
            elif name == "Text":
                seen = seen or not is_blank(about)
            elif (name, about) == ("End", "CodeBlock") and not seen:
                yield here

    def surplus_cells(self) -> Iterator[Range]:
        """Find what rows hold beyond the columns of their table; escaped, it joins the last column."""
        last = 0
        for name, about, here in self.events:
            if (name, about) == ("End", "TableCell"):
                last = here[1]
            elif (name, about) == ("End", "TableRow") and self.source[last : here[1]].strip(b" \t|\n"):
                yield last, here[1]

    def unused_definitions(self) -> Iterator[Range]:
        """Find the definitions (``[1]: https://…``) that no link uses."""
        if b"]:" not in self.source:
            return
        used = {
            _label((about.get("Link") or about["Image"])["id"])
            for name, about, _ in self.events
            if _begins(name, about, "Link") or _begins(name, about, "Image")
        }
        for found in _DEFINITION.finditer(self.source):
            if _within(self.leaves, found.start(1)):
                continue
            label = _label(found[2].decode())
            if label in used:
                used.discard(label)
            else:
                yield found.span(1)

    def stray_bars(self) -> Iterator[Range]:
        """Find double bars that neither enclose a spoiler nor stand in code."""
        if b"||" not in self.source:
            return
        spoilers = [
            found.span()
            for found in _SPOILER.finditer(self.source)
            if not any(meets(ranges, found.span()) for ranges in (self.code, self.tables))
        ]
        for found in _PIPES.finditer(self.source):
            at = found.start()
            if not _within(self.code, at) and not _within(spoilers, at) and not _within(self.tables, at):
                yield found.span()

    def bars_in_tables(self) -> Iterator[Range]:
        """Find the bars of empty cells."""
        for found in _PIPES.finditer(self.source):
            if _within(self.tables, found.start()) and not _within(self.code, found.start()):
                yield found.span()

    def bracketed_formulas(self) -> Iterator[Range]:
        r"""Find ``\(x^2\)`` and ``\[x^2\]``, whose backslashes the parser would drop."""
        for opening, closing in ((rb"\(", rb"\)"), (rb"\[", rb"\]")):
            at, end = self.source.find(opening), 0
            while at >= 0:
                if end < at + 2:
                    end = self.source.find(closing, at + 2)
                if end < 0:
                    break
                here = (at, end + 2)
                inner = self.source[at + 2 : end] if end - at <= _MAX_FORMULA_BYTES else b"\n\n"
                if b"\n\n" not in inner and _FORMULA.search(inner) and not meets(self.code, here):
                    yield here
                    at = end
                at = self.source.find(opening, at + 2)


def _begins(name: str, about: Any, what: str) -> bool:
    return name == "Start" and isinstance(about, dict) and what in about


def _within(ranges: Sequence[Range], at: int) -> bool:
    """Say whether one of the ranges, which are in order and apart, holds this place."""
    found = bisect_right(ranges, at, key=lambda one: one[0]) - 1
    return found >= 0 and at < ranges[found][1]


def _label(text: str) -> str:
    return " ".join(text.casefold().split())
