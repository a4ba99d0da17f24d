"""Renders Markdown as Telegram gets it: plain text with entities, in chunks, with nothing left out."""

from __future__ import annotations

import re
import unicodedata
from bisect import bisect_left, bisect_right
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from heapq import heapify, heappop, heappush
from itertools import accumulate, islice
from typing import Any, Final
from urllib.parse import urlsplit

from telegramify_markdown import RenderConfig
from telegramify_markdown.converter import STANDARD_OPTIONS, EventWalker, _parse

from channels.base import Rendered
from channels.text import (
    Range,
    bars_escaped_in_code,
    best_cut,
    events,
    fixed_width,
    is_boundary,
    meets,
    not_prose,
    reach,
    skip_blank,
    utf16_len,
)
from durable import is_blank

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
    for name, about, here in events(markdown, STANDARD_OPTIONS):
        if depth == 0 and name != "End":
            start = source.rfind(b"\n", 0, here[0]) + 1
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
    before = source.rfind(b"\n", 0, max(at - 1, 0)) + 1
    return not source[before:at].strip(b" \t>\r\n")


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
        self.events = list(events(source.decode(), STANDARD_OPTIONS))

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
            if _holds(self.leaves, found.start(1)):
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
            if not _holds(self.code, at) and not _holds(spoilers, at) and not _holds(self.tables, at):
                yield found.span()

    def bars_in_tables(self) -> Iterator[Range]:
        """Find the bars of empty cells."""
        for found in _PIPES.finditer(self.source):
            if _holds(self.tables, found.start()) and not _holds(self.code, found.start()):
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


def _holds(ranges: Sequence[Range], at: int) -> bool:
    """Say whether one of the ranges, which are in order and apart, holds this place."""
    found = bisect_right(ranges, at, key=lambda one: one[0]) - 1
    return found >= 0 and at < ranges[found][1]


def _label(text: str) -> str:
    return " ".join(text.casefold().split())


MAX_ENTITIES: Final = 100
_CODE: Final = frozenset({"pre", "code"})
_QUOTES: Final = frozenset({"blockquote", "expandable_blockquote"})
_LINKS: Final = frozenset({"text_link", "custom_emoji"})
_OUTER_FIRST: Final = (_QUOTES, frozenset({"pre"}), _LINKS)
# Not torn where a chunk can hold it.
_WHOLE: Final = _CODE | _LINKS
# Telegram makes a link of a file name whose suffix is a top-level domain, unless it is code.
_FILE_SUFFIX: Final = re.compile(
    r"(?<=\w)\.(?:cc|md|mov|pl|pm|properties|ps|pub|py|rs|sh|tf|zip)(?![\w/@-]|\.\w)"
)
_FILE_STEM: Final = re.compile(r"(?<![\w./~@:=&?#%\\-])(?:(?:[\w~-]*|\.\.?)/[\w./~-]+|[\w.~-]+)\Z")
_MAX_FILE_STEM: Final = 100
_MAX_FILE_NAMES: Final = 50
_BLOCKS: Final = frozenset(
    {"Paragraph", "HtmlBlock", "Item", "BlockQuote", "CodeBlock", "Heading", "List", "Table"}
)
_CONTROLS: Final = {code: " " for code in [*range(32), 127] if chr(code) not in "\n\t"}


@dataclass(frozen=True, slots=True, order=True)
class _Span:
    """An entity between two indexes of the text; in order of place, the outer ones first."""

    start: int
    minus_end: int
    rank: int
    kind: str
    more: tuple[tuple[str, Any], ...] = ()

    @property
    def end(self) -> int:
        return -self.minus_end


def render(text: str, limit: int = 4096) -> list[Rendered]:
    """Render Markdown for Telegram.

    What Telegram has no form for (HTML, formulas, links that it refuses) stands there as it was written; what
    cannot be read as Markdown is sent as it is.

    Args:
        text: the Markdown; blank text gives no chunk.
        limit: the most UTF-16 code units of a chunk; at least 2.

    Returns:
        Chunks in order, none of them blank; ``markup`` is a tuple of the Bot API's MessageEntity objects, at
        most 100 and properly nested.

    Raises:
        ValueError: the limit is below 2.
    """
    if limit < 2:
        raise ValueError("limit is below 2")
    text = _sound(text)
    if is_blank(text):
        return []
    plain, spans = _converted(text)
    if is_blank(plain):
        plain, spans = text, []
    return list(_pieces(plain, spans, limit))


def _sound(text: str) -> str:
    """Return ``text`` with plain line ends, and without what UTF-8 or Telegram cannot carry."""
    text = text.encode("utf-16-le", "surrogatepass").decode("utf-16-le", "replace")
    return text.replace("\r\n", "\n").replace("\r", "\n").translate(_CONTROLS)


def _converted(text: str) -> tuple[str, list[_Span]]:
    try:
        found = parts(literal(flank_cjk(text)))
        done = [(*_rendered(part), after) for part, after in found or ()]
    except Exception:  # noqa: BLE001 — whatever a parser makes of it, the text is sent
        return text, []
    if found is None:
        return text, []
    shown: list[str] = []
    spans: list[_Span] = []
    length = 0
    for plain, inner, after in done:
        if is_blank(plain):
            continue
        spans += [replace(one, start=one.start + length, minus_end=one.minus_end - length) for one in inner]
        shown += [plain, after]
        length += len(plain) + len(after)
    whole = "".join(shown).translate(_CONTROLS)
    return whole, _nested([*spans, *_file_names(whole)])


def _file_names(text: str) -> Iterator[_Span]:
    """Yield file names that would become links to strangers' sites; where there are many, none."""
    suffixes = list(islice(_FILE_SUFFIX.finditer(text), _MAX_FILE_NAMES + 1))
    for suffix in suffixes if len(suffixes) <= _MAX_FILE_NAMES else ():
        at = suffix.start()
        if stem := _FILE_STEM.search(text, max(at - _MAX_FILE_STEM, 0), at):
            yield _Span(stem.start(), -suffix.end(), len(_OUTER_FIRST), "code")


def _rendered(markdown: str) -> tuple[str, list[_Span]]:
    """Return what one part shows, without white space at its end, and its entities."""
    text, events = _parse(markdown, STANDARD_OPTIONS, latex_escape=False)
    plain, entities, _ = _Walker(_config(), text).walk(events)
    index = _index_of(plain)
    plain = plain.replace(JOINER, "").rstrip()
    spans = []
    for entity in entities:
        about = entity.to_dict()
        kind, start, length = about.pop("type"), about.pop("offset"), about.pop("length")
        if "language" in about:
            about["language"] = about["language"].partition(" ")[0].replace(JOINER, "")
        if kind != "text_link" or is_address(about["url"]):
            rank = next((n for n, kinds in enumerate(_OUTER_FIRST) if kind in kinds), len(_OUTER_FIRST))
            end = min(index(start + length), len(plain))
            spans.append(_Span(index(start), -end, rank, kind, tuple(about.items())))
    return plain, spans


class _Walker(EventWalker):
    """The library's renderer, with each block on lines of its own and tables as wide as they are drawn."""

    _block_ended = False
    _item_text_at = 0

    def _handle_event(self, event: Any) -> None:
        inner = event[0]
        name, about = next(iter(inner.items())) if isinstance(inner, dict) else (inner, None)
        kind = next(iter(about)) if isinstance(about, dict) else about
        is_block = name == "Rule" or (name in ("Start", "End") and kind in _BLOCKS)
        if name != "End":
            apart = self._buf.py_offset <= self._item_text_at or self._buf.trailing_newline_count()
            if (is_block or self._block_ended) and not apart:
                self._buf.write("\n")
            self._block_ended = False
        super()._handle_event(event)
        if (name, kind) == ("Start", "Item") or name == "TaskListMarker":
            self._item_text_at = self._buf.py_offset
        self._block_ended = self._block_ended or (is_block and name != "Start")

    def _ensure_block_spacing(self, next_block_start: int | None = None) -> None:
        if self._buf.py_offset > self._item_text_at or not self._list_stack:
            super()._ensure_block_spacing(next_block_start)

    def _format_table(self, rows: list[list[str]]) -> str:
        return fixed_width(rows)


def _config() -> RenderConfig:
    config = RenderConfig.isolated()
    symbols = config.markdown_symbol
    symbols.heading_level_1 = symbols.heading_level_2 = symbols.heading_level_3 = symbols.heading_level_4 = ""
    symbols.unordered_list_item, symbols.task_completed, symbols.task_uncompleted = "•", "☑", "☐"
    return config


def _index_of(text: str) -> Callable[[int], int]:
    """Return what turns an offset in UTF-16 code units into an index of ``text`` without its joiners."""
    if JOINER not in text and len(text) == utf16_len(text):
        return lambda offset: offset
    offsets = [0, *accumulate(1 + (char > "\uffff") for char in text)]
    kept = [0, *accumulate(char != JOINER for char in text)]
    return lambda offset: kept[bisect_left(offsets, offset)]


def _nested(spans: Iterable[_Span]) -> list[_Span]:
    """Return entities of which any two are apart or one within the other, as Telegram allows them.

    Nothing stands in code, code in no link, no quote in a quote and no kind in itself; one that reaches out
    of another is cut in two there, and one that encloses code stands before and after it.
    """
    code = sorted(span for span in spans if span.kind in _CODE)
    waiting = [part for span in spans if span.start < span.end for part in _around_code(span, code)]
    heapify(waiting)
    found: list[_Span] = []
    opened: list[_Span] = []
    while waiting:
        span = heappop(waiting)
        while opened and opened[-1].end <= span.start:
            opened.pop()
        if opened and span.end > opened[-1].end:
            heappush(waiting, replace(span, start=opened[-1].end))
            span = replace(span, minus_end=-opened[-1].end)
        group = next((kinds for kinds in (_WHOLE, _QUOTES) if span.kind in kinds), {span.kind})
        if not any(outer.kind in group or outer.kind in _CODE for outer in opened):
            found.append(span)
            opened.append(span)
    return found


def _around_code(span: _Span, code: list[_Span]) -> Iterator[_Span]:
    if span.kind in _CODE or span.kind in _QUOTES or span.kind in _LINKS:
        yield span
        return
    start = span.start
    for number in range(bisect_left(code, start, key=lambda one: one.end), len(code)):
        inner = code[number]
        if inner.start >= span.end:
            break
        if start < inner.start:
            yield replace(span, start=start, minus_end=-inner.start)
        start = max(start, inner.end)
    if start < span.end:
        yield replace(span, start=start)


def _pieces(text: str, spans: list[_Span], limit: int) -> Iterator[Rendered]:
    at, following = skip_blank(text, 0), 0
    # What is not over before ``at``, as far as a chunk reaches.
    near: list[_Span] = []
    while at < len(text):
        end = reach(text, at, limit, utf16_len)
        while following < len(spans) and spans[following].start < end:
            near.append(spans[following])
            following += 1
        near = [span for span in near if span.end > at]
        if len(near) > MAX_ENTITIES:
            end = max(near[MAX_ENTITIES].start, at + 1)
        cut = _cut(text, at, end, limit=limit, near=near[:MAX_ENTITIES])
        chunk = text[at:cut].rstrip()
        if not is_blank(chunk):
            yield Rendered(chunk, tuple(_entities(chunk, at, near[:MAX_ENTITIES])))
        at = skip_blank(text, cut)


def _cut(text: str, start: int, end: int, *, limit: int, near: list[_Span]) -> int:
    """Choose the end of a chunk, before a link or a piece of code rather than in it."""
    cut = best_cut(text, start, end)
    while torn := next((one for one in near if _tears(text, start, cut, limit=limit, span=one)), None):
        before = torn.start if torn.kind == "pre" else best_cut(text, start, torn.start)
        if not is_boundary(text, before, start):
            break
        cut = before
    return cut


def _tears(text: str, start: int, cut: int, *, limit: int, span: _Span) -> bool:
    if span.kind not in _WHOLE or not start < span.start < cut < span.end:
        return False
    return utf16_len(text[span.start : span.end]) <= limit


def _entities(chunk: str, at: int, spans: Iterable[_Span]) -> Iterator[dict[str, Any]]:
    if len(chunk) == utf16_len(chunk):
        offsets: Sequence[int] = range(len(chunk) + 1)
    else:
        offsets = [0, *accumulate(1 + (char > "\uffff") for char in chunk)]
    for span in spans:
        start, end = max(span.start - at, 0), min(span.end - at, len(chunk))
        if start < end and not is_blank(chunk[start:end]):
            where = {"offset": offsets[start], "length": offsets[end] - offsets[start]}
            yield {"type": span.kind, **where, **dict(span.more)}
