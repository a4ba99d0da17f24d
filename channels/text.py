"""Cuts long texts into chunks of a platform's size, at the places where a reader would cut them."""

from __future__ import annotations

import re
import unicodedata
from bisect import bisect_right
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any, Final

import pyromark
import regex

from durable import is_blank

Measure = Callable[[str], int]
# Of bytes, from the first to behind the last.
Range = tuple[int, int]

_FENCE: Final = re.compile(
    r"(?P<quote>[ \t]*+(?:>[ \t]?)*+)(?P<items>(?:(?:[-*+]|\d{1,9}[.)])[ \t]++)*+[ \t]*+)"
    r"(?P<mark>`{3,}(?=[^`\n]*$)|~{3,})(?P<info>.*)"
)
_CLOSE: Final = re.compile(r"[ \t>]*(?P<mark>`{3,}|~{3,})[ \t]*")
_LINE: Final = re.compile(r"[^\n]*\n?")
_SPACES: Final = re.compile(r"\s*")
_SENTENCE_ENDS: Final = (". ", "! ", "? ", "… ", ".\t", "。", "！", "？")
_WORD_ENDS: Final = (" ", "\t", "\u3000", "\u200b")
# A character as a reader sees it: an extended grapheme cluster.
_CLUSTER: Final = regex.compile(r"\X")
# No cluster that people write is longer; a run of flags is, and is then paired from there.
_LOOK_BACK: Final = 256

# Text that is no prose, whose stars, underscores and backslashes belong to it.
_NOT_PROSE: Final = re.compile(
    # C:\path, ..\path, %HOME%\path, \\host\path
    rb"""(?P<path>(?<![\w\\])(?:(?:[A-Za-z]:|%\w+%|\.{1,2})\\|\\\\[\w.-]+\\(?=[A-Za-z0-9]))[^\s?"<>|`]+)"""
    # https://example.org/a_b, www.example.org
    rb"""|(?<![a-zA-Z0-9+.-])(?:[a-zA-Z][a-zA-Z0-9+.-]*://|www\.)(?:[!#-;=?-Z\[\]_a-{}~]|[\xc3-\xdf][\x80-\xbf])+"""
    # a_b_@example.org
    rb"""|(?<![\w.+~-])[\w.+~-]+@[\w-]+(?:\.[\w-]+)+"""
    # src/__init__.py, src/*/a/*.py
    rb"""|(?<![\w/\\~.-])(?:(?:\*{1,2}|[\w.~-]*)/)+(?:\*{1,2}(?:\.\w+)?|[\w.~-]+)"""
    # __init__.py, a.__class__
    rb"""|(?<![\w\\.])\w+(?:\.\w+)+"""
    # __init__
    rb"""|(?P<name>(?<![\w\\])__[a-z]+(?:_[a-z]+)*__(?!\w))"""
    # 2*3*4, a**b
    rb"""|(?<![\w\\*])(?:\d+(?:\.\d+)?|[A-Za-z])(?:\*{1,2}(?:\d+(?:\.\d+)?|[A-Za-z]))+(?![\w*])"""
)
_EMPHASIS: Final = b"*_~"
_MARKS: Final = re.compile(rb"([*_~])")
_MARKS_AND_BACKSLASH: Final = re.compile(rb"([*_~\\])")
_CODE: Final = re.compile(rb"(?<!`)(`{1,9})(?!`)[^`\n]*\1(?!`)")
_BARE_BAR: Final = re.compile(rb"(?<!\\)\|")


def events(markdown: str, options: Any) -> Iterator[tuple[str, Any, Range]]:
    """Read Markdown: yield the name of each event, what it is about, and the bytes where it stands."""
    for event, where in pyromark.events_with_range(markdown, options=options):
        name, about = next(iter(event.items())) if isinstance(event, dict) else (event, None)
        yield name, about, (where["start"], where["end"])


def utf16_len(text: str) -> int:
    """Count UTF-16 code units, as Telegram does."""
    return len(text) if text.isascii() else len(text.encode("utf-16-le", "surrogatepass")) // 2


def is_boundary(text: str, at: int, start: int = 0) -> bool:
    """Say whether a cut before ``text[at]`` leaves every character whole as a reader sees it.

    It never cuts a surrogate pair or a grapheme cluster: a letter from its marks, a flag, a joined emoji.
    ``start`` is an earlier place known to be a boundary.
    """
    if at <= start or at >= len(text):
        return True
    before, after = text[at - 1], text[at]
    if before.isascii() and after.isascii():
        return (before, after) != ("\r", "\n")
    if "\ud800" <= before < "\udc00" <= after < "\ue000":
        return False
    begin = at - 1
    while begin > start and not text[begin].isascii() and at - begin < _LOOK_BACK:
        begin -= 1
    # Whether a cluster ends depends on nothing behind the character that follows.
    return any(begin + found.end() == at for found in _CLUSTER.finditer(text[begin : at + 1]))


def reach(text: str, start: int, room: int, measure: Measure) -> int:
    """Return the largest end for which ``text[start:end]`` measures at most ``room``.

    A character counts for at least one, so that the cost does not depend on the length of ``text``.
    """
    end = min(len(text), start + max(room, 0))
    if measure(text[start:end]) <= room:
        return end
    return start + bisect_right(
        range(1, end - start + 1), room, key=lambda n: measure(text[start : start + n])
    )


def best_cut(text: str, start: int, end: int) -> int:
    """Choose where to cut ``text[start:end]``, which is as much as a chunk can hold.

    The last paragraph, line, sentence or word that ends in the last two thirds, in this order; else the last
    line or word at all; else the last whole character.

    Returns:
        An index after ``start``, at most ``end``; white space may follow it.
    """
    if end >= len(text):
        return len(text)
    third = start + (end - start) // 3
    ways = (_paragraph, _line, _sentence, _word)
    for way, low in [*((way, third) for way in ways), (_line, start), (_word, start)]:
        at = way(text, low, end)
        if at > max(low, start) and is_boundary(text, at, start):
            return at
    return _whole_character(text, start, end)


def _paragraph(text: str, low: int, end: int) -> int:
    return text.rfind("\n\n", low, end + 2)


def _line(text: str, low: int, end: int) -> int:
    return text.rfind("\n", low, end + 1)


def _sentence(text: str, low: int, end: int) -> int:
    return max(text.rfind(mark, low, end + len(mark) - 1) for mark in _SENTENCE_ENDS) + 1


def _word(text: str, low: int, end: int) -> int:
    return max(text.rfind(mark, low, end + 1) for mark in _WORD_ENDS)


def _whole_character(text: str, start: int, end: int) -> int:
    end = max(end, start + 1)
    at = start
    # A slice, since ``regex`` counts flags from the beginning of what it is given.
    for found in _CLUSTER.finditer(text[start : end + 1]):
        if start + found.end() > end:
            break
        at = start + found.end()
    if at > start:
        return at
    pair = end < len(text) and "\ud800" <= text[end - 1] < "\udc00" <= text[end] < "\ue000"
    return end if not pair else end - 1 if end - 1 > start else end + 1


def skip_blank(text: str, at: int) -> int:
    """Pass over the white space at a cut; the indentation of a line stays."""
    found = _SPACES.match(text, at)
    shown = found.end() if found else at
    line = text.rfind("\n", at, shown) + 1
    if shown == len(text) or at == shown:
        return shown
    if line or at == 0 or text[at - 1] == "\n":
        return line or at
    return shown if is_boundary(text, shown) else shown - 1


def fixed_width(rows: Sequence[Sequence[str]]) -> str:
    """Draw a table in lines of characters of one width; the first row is its header."""
    columns = max((len(row) for row in rows), default=0)
    filled = [[*row, *[""] * (columns - len(row))] for row in rows]
    widths = [max(_columns_of(row[n]) for row in filled) for n in range(columns)]
    lines = [
        " | ".join(cell + " " * (width - _columns_of(cell)) for cell, width in zip(row, widths, strict=True))
        for row in filled
    ]
    if len(lines) > 1:
        lines.insert(1, "-+-".join("-" * width for width in widths))
    return "\n".join(line.rstrip() for line in lines)


def _columns_of(text: str) -> int:
    if text.isascii():
        return len(text)
    return sum(_width_of(char) for char in text)


def _width_of(char: str) -> int:
    if unicodedata.category(char) in ("Mn", "Me", "Cf"):
        return 0
    return 2 if unicodedata.east_asian_width(char) in "WF" else 1


def not_prose(markdown: bytes) -> Iterator[tuple[int, int, bytes]]:
    """Find addresses, paths, products and names; yield where each stands, and it with its marks escaped."""
    for found in _NOT_PROSE.finditer(markdown):
        start, end = found.span()
        # Emphasis around an address is no part of it.
        while end > start and markdown[end - 1] in _EMPHASIS and not found["name"]:
            mirrored = markdown[start] == markdown[end - 1]
            if markdown[end - 2 : end] == b"__" and not mirrored:
                break
            end -= 1
            start += mirrored
        marks = _MARKS_AND_BACKSLASH if found["path"] else _MARKS
        if end > start:
            yield start, end, marks.sub(rb"\\\1", markdown[start:end])


def bars_escaped_in_code(markdown: bytes, tables: Sequence[Range]) -> bytes:
    """Escape the bars of code in tables, which would begin a new cell: ``| `a | b` |``."""
    done, shown = 0, []
    for start, end in tables:
        row = _CODE.sub(lambda code: _BARE_BAR.sub(rb"\\|", code[0]), markdown[start:end])
        shown += [markdown[done:start], row]
        done = end
    return b"".join([*shown, markdown[done:]])


def meets(ranges: Sequence[Range], here: Range) -> bool:
    """Say whether one of the ranges, which are in order and apart, shares a byte with ``here``."""
    found = bisect_right(ranges, here[1] - 1, key=lambda one: one[0]) - 1
    return found >= 0 and here[0] < ranges[found][1]


@dataclass(frozen=True, slots=True)
class _Fence:
    """A fenced block: opening line from ``start``, code from ``body``, last line from ``tail`` to ``end``."""

    start: int
    body: int
    tail: int
    end: int
    # What stands again at the head of a later chunk.
    opening: str
    # What ends the chunk that holds the opening line.
    close: str
    # What ends a chunk that begins with ``opening``.
    reclose: str


def split_markdown(text: str, limit: int, *, measure: Measure = len) -> list[str]:
    """Split Markdown in chunks that measure at most ``limit`` each, none of them blank.

    A fenced block that does not fit is closed and opened again, with its info string, in the next chunk.
    White space at a cut is left out; nothing else is. A fence whose own lines would take half of a chunk
    counts as text.

    Args:
        text: the Markdown; blank text gives no chunk.
        limit: at least 2.
        measure: how the platform counts; it grows with the text, by at least one for each character.

    Raises:
        ValueError: the limit is below 2.
    """
    if limit < 2:
        raise ValueError("limit is below 2")
    if is_blank(text):
        return []
    if len(text) <= limit and measure(text) <= limit:
        return [text]
    return list(_pieces(text, limit, measure))


def _pieces(text: str, limit: int, measure: Measure) -> Iterator[str]:
    fences = [
        fence
        for fence in _fences(text)
        if measure(text[fence.start : fence.body] + fence.close) <= limit // 2
        and measure(fence.opening + fence.reclose) <= limit // 2
    ]
    at, first = skip_blank(text, 0), 0
    while at < len(text):
        while first < len(fences) and fences[first].end <= at:
            first += 1
        inside = fences[first] if first < len(fences) and fences[first].body <= at else None
        if inside is not None and at >= inside.tail:
            at = skip_blank(text, inside.end)
            continue
        head = inside.opening if inside else ""
        cut, last = _cut(text, at, limit - measure(head), measure=measure, fences=fences[first:])
        foot = "" if last is None else last.reclose if last is inside else last.close
        body = text[at:cut].rstrip()
        shown = body if last is None or last is inside else text[at : last.start] + text[last.body : cut]
        if not is_blank(shown):
            yield head + body + foot
        at = skip_blank(text, cut)


def _cut(
    text: str, start: int, room: int, *, measure: Measure, fences: list[_Fence]
) -> tuple[int, _Fence | None]:
    """Choose the end of a chunk; return it with the fence that it cuts in two."""
    end = reach(text, start, room, measure)
    cut = best_cut(text, start, end)
    fence = _around(fences, cut)
    if fence is None:
        return cut, None
    if fence.end <= end:
        return fence.end, None
    low = max(start, fence.body)
    inner = min(reach(text, start, room - measure(fence.close), measure), fence.tail)
    if inner == cut == len(text):
        return cut, fence
    fits = measure(text[fence.start : fence.end]) <= room
    if fence.start > start and (fits or inner - low < (end - start) // 3):
        return fence.start, None
    if inner == fence.tail:
        return inner, fence
    return best_cut(text, low, max(inner, low + 1)), fence


def _around(fences: list[_Fence], cut: int) -> _Fence | None:
    for fence in fences:
        if fence.start >= cut:
            return None
        if cut < fence.end:
            return fence
    return None


def _fences(text: str) -> Iterator[_Fence]:
    if "```" not in text and "~~~" not in text:
        return
    opened: tuple[int, int, re.Match[str]] | None = None
    for line in _LINE.finditer(text):
        content = line[0].rstrip("\n")
        if opened is None:
            if found := _FENCE.fullmatch(content):
                opened = (line.start(), line.end(), found)
            continue
        start, body, found = opened
        closing = _CLOSE.fullmatch(content)
        if ">" in found["quote"] and not content.lstrip().startswith(">"):
            yield _fence(found, start, body, tail=line.start(), end=line.start())
            opened = None
        elif closing and closing["mark"].startswith(found["mark"]):
            yield _fence(found, start, body, tail=line.start(), end=line.end())
            opened = None
    # It is closed where it is split, even at the end.
    if opened is not None:
        start, body, found = opened
        yield _fence(found, start, body, tail=len(text) + 1, end=len(text) + 1)


def _fence(found: re.Match[str], start: int, body: int, *, tail: int, end: int) -> _Fence:
    quote = found["quote"] if ">" in found["quote"] else ""
    indent = found["quote"] + re.sub(r"\S", " ", found["items"])
    return _Fence(
        *(start, body, tail, end),
        opening=f"{quote}{found['mark']}{found['info'].rstrip()}\n",
        close=f"\n{indent}{found['mark']}",
        reclose=f"\n{quote}{found['mark']}",
    )
