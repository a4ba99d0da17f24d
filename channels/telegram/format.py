"""Renders Markdown as Telegram gets it: plain text with entities, in chunks, with nothing left out."""

from __future__ import annotations

import re
from bisect import bisect_left
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from heapq import heapify, heappop, heappush
from itertools import accumulate, islice
from typing import Any, Final

from telegramify_markdown import RenderConfig
from telegramify_markdown.converter import STANDARD_OPTIONS, EventWalker, _parse

from channels.base import Rendered
from channels.telegram.literal import JOINER, flank_cjk, is_address, literal
from channels.telegram.parts import parts
from channels.text import best_cut, fixed_width, is_boundary, reach, skip_blank, utf16_len
from durable import is_blank

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
