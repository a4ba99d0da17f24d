"""Makes what comes from elsewhere something that JSON in UTF-8 can carry; pure."""

from __future__ import annotations

import unicodedata
from collections.abc import Mapping
from math import isfinite
from typing import Any, Final

# orjson writes 254 levels, and what this goes into has some of its own.
MAX_DEPTH: Final = 200
# Fillers, joiners, variation selectors and tags that Unicode counts as letters, marks or symbols, or not yet.
_SHAPELESS: Final = frozenset(
    "\u034f\u115f\u1160\u17b4\u17b5\u180b\u180c\u180d\u180f\u2065\u2800\u3164\uffa0\U00016fe4\U0001d159"
) | frozenset(map(chr, (*range(0xFE00, 0xFE10), *range(0xFFF0, 0xFFF9), *range(0xE0000, 0xE1000))))


def whole_text(text: str) -> str:
    """Join halves of surrogate pairs that stand together; a lone one, which no UTF-8 has, becomes U+FFFD."""
    return text if text.isascii() else text.encode("utf-16", "surrogatepass").decode("utf-16", "replace")


def is_blank(text: str) -> bool:
    """Say whether nothing of ``text`` would be seen: white space and characters that have no shape."""
    return all(
        char.isspace() or char in _SHAPELESS or unicodedata.category(char) in ("Cc", "Cf")
        for char in text.strip()
    )


def plain_value(value: Any, depth: int = MAX_DEPTH) -> Any:
    """Return ``value`` with nothing that JSON in UTF-8 cannot carry; what is nested deeper becomes text."""
    match value:
        case str():
            return whole_text(value)
        case float() if not isfinite(value):
            return None
        case bool() | int() | float() | None:
            return value
        case Mapping() if depth:
            return {whole_text(str(name)): plain_value(each, depth - 1) for name, each in value.items()}
        case list() | tuple() if depth:
            return [plain_value(each, depth - 1) for each in value]
        case Mapping() | list() | tuple():
            return "…"
        case _:
            return whole_text(str(value))
