"""Reads the text of a Telegram message: addresses behind words, code, rich blocks as Markdown; pure."""

from __future__ import annotations

import re
from collections import defaultdict
from collections.abc import Iterable, Iterator, Mapping
from datetime import UTC, datetime
from typing import Any, Final

from channels.text import utf16_len

Raw = Mapping[str, Any]

# Telegram nests blocks up to 16 deep; what is deeper is left out.
_MAX_DEPTH: Final = 40
_MARKS: Final = {"bold": "**", "italic": "*", "strikethrough": "~~", "code": "`"}
# What people see of a block or a piece of text whose kind is not known stands in these fields.
_VISIBLE: Final = ("label", "summary", "title", "text", "button", "alternative_text", "expression", "credit")
_TARGETS: Final = ("url", "email_address", "phone_number")
_QUOTES: Final = ("blockquote", "expandable_blockquote")
_MEDIA: Final = ("photo", "animation", "video", "audio", "voice_note", "document")


def words_of(message: Raw) -> str:
    """Return what a message says in words: its text or caption, or its rich blocks as Markdown."""
    if message.get("rich_message"):
        return _blocks(message["rich_message"].get("blocks"), 0)
    text = message.get("text") or message.get("caption") or ""
    return with_entities(text, message.get("entities") or message.get("caption_entities") or ())


def with_entities(text: str, entities: Iterable[Raw]) -> str:
    """Write as Markdown what the words alone do not say; offsets are UTF-16 units.

    Quotes, code, what is struck out, and in brackets the addresses and dates behind words.
    """
    units = text.encode("utf-16-le", "surrogatepass")
    before, behind = defaultdict[int, str](str), defaultdict[int, str](str)
    found = [(each, int(each["offset"]), int(each["offset"]) + int(each["length"])) for each in entities]
    quotes = [(start, stop) for each, start, stop in found if each["type"] in _QUOTES]
    for start, stop in quotes:
        at, before[start] = start, _gap(units, start - 1)
        for line in _between(units, start, stop).rstrip("\n").split("\n"):
            before[at] += "> "
            at += utf16_len(line) + 1
    # A link that another mark cuts in two comes as two links to one address.
    links = {(start, each.get("url")) for each, start, _ in found if each["type"] == "text_link"}
    for entity, start, stop in found:
        words, url = _between(units, start, stop), entity.get("url")
        match entity["type"]:
            case "text_link" if url and (stop, url) not in links:
                behind[stop] += _address(words, str(url))
            case "date_time":
                behind[stop] += f" ({moment(entity['unix_time'])})"
            case "strikethrough" if words.strip():
                before[start] += "~~"
                behind[stop] = f"~~{behind[stop]}"
            case "pre":
                row = "\n> " if any(first <= start < last for first, last in quotes) else "\n"
                before[start] += f"{_gap(units, start - 1)}{_fence(words)}{entity.get('language') or ''}{row}"
                behind[stop] += f"{row}{_fence(words)}{_gap(units, stop)}"
    for _, stop in quotes:
        behind[stop] += _gap(units, stop)
    pieces, at = [], 0
    for cut in sorted({*before, *behind}):
        pieces += [_between(units, at, cut), behind[cut], before[cut]]
        at = cut
    return "".join([*pieces, _between(units, at, len(units) // 2)])


def names_in(text: str) -> Iterator[str]:
    """Yield the user names that a text mentions, without their @."""
    return (found[1] for found in re.finditer(r"(?<![\w@])@(\w{1,64})", text))


def inner(value: object, depth: int = 0) -> Iterator[Raw]:
    """Yield all objects within the blocks of a rich message, the outer ones first."""
    if depth > _MAX_DEPTH:
        return
    if isinstance(value, Mapping):
        yield value
        value = list(value.values())
    if isinstance(value, list):
        for each in value:
            yield from inner(each, depth + 1)


def media_of(message: Raw) -> Iterator[Raw]:
    """Yield the blocks of a rich message that hold files, each in the form of a message with that file."""
    found = inner(message.get("rich_message") or {})
    return (each for each in found if any(isinstance(each.get(field), (Mapping, list)) for field in _MEDIA))


def _between(units: bytes, start: int, stop: int) -> str:
    return units[2 * start : 2 * stop].decode("utf-16-le", "surrogatepass")


def _gap(units: bytes, beside: int) -> str:
    """Return the line break that a block lacks towards the unit beside it."""
    return "" if beside < 0 or _between(units, beside, beside + 1) in ("", "\n") else "\n"


def _fence(code: str) -> str:
    return "`" * max([3, *(len(ticks) + 1 for ticks in re.findall("`{3,}", code))])


def moment(unix_time: int) -> str:
    """Write an instant to the minute."""
    return f"{datetime.fromtimestamp(unix_time, UTC):%Y-%m-%d %H:%M UTC}"


def _address(words: str, url: str) -> str:
    bare = url.removeprefix("https://").removeprefix("http://").removeprefix("mailto:").rstrip("/")
    return "" if words.strip().rstrip("/") in (url.rstrip("/"), bare) else f" ({url})"


def _blocks(blocks: object, depth: int) -> str:
    found = (_block(each, depth + 1) for each in blocks) if isinstance(blocks, list) else ()
    return "\n\n".join(text for each in found if (text := each.strip("\n")).strip())


def _block(block: object, depth: int) -> str:
    """Write one block as Markdown; of an unknown one all that people see of it."""
    if depth > _MAX_DEPTH:
        return ""
    if not isinstance(block, Mapping) or isinstance(block.get("url"), str):
        return _inline(block, depth)
    kind, text = block.get("type"), _inline(block.get("text"), depth)
    match kind:
        case "heading":
            size = block.get("size")
            return f"{'#' * (size if type(size) is int and 1 <= size <= 6 else 3)} {text}"
        case "pre":
            code = _plain(block.get("text"), depth)
            return f"{_fence(code)}{block.get('language') or ''}\n{code}\n{_fence(code)}"
        case "divider":
            return "---"
        case "list":
            items = block.get("items")
            return "\n".join(_item(item, depth) for item in items) if isinstance(items, list) else ""
        case "table":
            return "\n".join(filter(None, (_table(block.get("cells"), depth), _visible(block, depth))))
        case "blockquote" | "expandable_blockquote" | "pullquote":
            return "\n".join(f"> {row}".rstrip() for row in _visible(block, depth).splitlines())
        case "map":
            place = block.get("location") or {}
            named = f"[location {place.get('latitude')}, {place.get('longitude')}]"
            return "\n".join(filter(None, (named, _visible(block, depth))))
    return _visible(block, depth)


def _visible(block: Raw, depth: int) -> str:
    """Write what people see of any block: its own words, then the blocks in it, then its caption."""
    words = [_inline(block.get(field), depth) for field in _VISIBLE if field != "credit"]
    known = {*_VISIBLE, *_MEDIA, "type", "caption", "cells"}
    nested = [value for name, value in block.items() if name not in known and isinstance(value, (list, dict))]
    within = [_blocks(each if isinstance(each, list) else [each], depth) for each in nested]
    caption = block.get("caption")
    below = _visible(caption, depth + 1) if isinstance(caption, Mapping) else _inline(caption, depth)
    credit = _inline(block.get("credit"), depth)
    return "\n\n".join(filter(str.strip, [*words, *within, below, credit and f"— {credit}"]))


def _item(item: object, depth: int) -> str:
    if not isinstance(item, Mapping):
        return f"- {_inline(item, depth)}"
    label = str(item.get("label") or "-")
    label = "-" if label in ("•", "◦", "▪", "*") else label
    box = f"[{'x' if item.get('is_checked') else ' '}] " if item.get("has_checkbox") else ""
    rows = _visible({**item, "label": ""}, depth + 1).splitlines() or [""]
    indent = " " * (len(label) + 1)
    return "\n".join([f"{label} {box}{rows[0]}", *(f"{indent}{row}".rstrip() for row in rows[1:])])


def _table(cells: object, depth: int) -> str:
    rows = [
        [" ".join(_cell(cell, depth).split()).replace("|", "\\|") for cell in row]
        for row in (cells if isinstance(cells, list) else ())
        if isinstance(row, list)
    ]
    lines = [f"| {' | '.join(row)} |" for row in rows]
    return "\n".join([*lines[:1], f"|{' --- |' * max(map(len, rows))}", *lines[1:]]) if rows else ""


def _cell(cell: object, depth: int) -> str:
    return _visible(cell, depth + 1) if isinstance(cell, Mapping) else _inline(cell, depth)


def _inline(text: object, depth: int) -> str:
    """Write a rich text as Markdown: a string, a list of pieces, or a piece with its type."""
    if depth > _MAX_DEPTH:
        return ""
    if isinstance(text, list):
        return "".join(_inline(each, depth + 1) for each in text)
    if not isinstance(text, Mapping):
        return text if isinstance(text, str) else ""
    words = "".join(_inline(text.get(field), depth + 1) for field in _VISIBLE)
    kind, targets = text.get("type"), (text.get(field) for field in _TARGETS)
    behind = "".join(_address(words, target) for target in targets if isinstance(target, str) and target)
    if kind == "date_time":
        behind = f" ({moment(text['unix_time'])})"
    if kind == "code":
        words = _plain(text.get("text"), depth)
    mark = _MARKS.get(str(kind), "") if words.strip() else ""
    return f"{mark}{words}{mark}{behind}"


def _plain(text: object, depth: int) -> str:
    """Return the words of a rich text without any marks, as code has them."""
    if depth > _MAX_DEPTH:
        return ""
    if isinstance(text, list):
        return "".join(_plain(each, depth + 1) for each in text)
    if isinstance(text, Mapping):
        return "".join(_plain(text.get(field), depth + 1) for field in _VISIBLE)
    return text if isinstance(text, str) else ""
