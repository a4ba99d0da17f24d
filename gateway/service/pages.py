"""Listings in pages: the rows behind a cursor, and the cursor of the page behind them."""

from __future__ import annotations

import base64
import binascii
import hashlib
from collections.abc import Callable, Sequence
from typing import TypeVar

import orjson

T = TypeVar("T")
Place = tuple[int | str, ...]
MAX_CURSOR_CHARS = 8192


class BadCursor(ValueError):
    """A cursor that no page of this listing gave."""


def page(
    rows: Sequence[T],
    place: Callable[[T], Place],
    *,
    limit: int,
    cursor: str | None,
    descending: bool = False,
) -> tuple[list[T], str | None]:
    """Return at most ``limit`` rows behind the cursor in the order of their places, and the next cursor.

    A cursor names a place and no row: what was there may be gone by then, and what came meanwhile is shown
    where its own place is behind.

    Args:
        rows: all there are.
        limit: how many at most, from 1 on.
        place: where a row stands: numbers and texts, of the same kinds for all rows, two rows never alike.
        cursor: that of the page before; None: the first page.
        descending: the highest place comes first.

    Raises:
        BadCursor: it is none of ours.
    """
    placed = sorted(((place(row), at) for at, row in enumerate(rows)), reverse=descending)
    if cursor is not None:
        after = _read(cursor)
        try:
            placed = [each for each in placed if (each[0] < after if descending else each[0] > after)]
        except TypeError:
            raise BadCursor(cursor) from None
    found = [rows[at] for _, at in placed[:limit]]
    return found, _written(placed[limit - 1][0]) if len(placed) > limit else None


def digest(*parts: object) -> str:
    """Return a short text that tells rows apart which stand in one place otherwise."""
    return hashlib.sha256(repr(parts).encode("utf-8", "surrogatepass")).hexdigest()[:16]


def _written(place: Place) -> str:
    return base64.urlsafe_b64encode(orjson.dumps(place)).decode().rstrip("=")


def _read(cursor: str) -> Place:
    if len(cursor) > MAX_CURSOR_CHARS:
        raise BadCursor(cursor)
    try:
        found = orjson.loads(base64.urlsafe_b64decode(cursor.encode("ascii") + b"=" * (-len(cursor) % 4)))
    except (binascii.Error, ValueError):
        raise BadCursor(cursor) from None
    if not isinstance(found, list) or not found or any(type(part) not in (int, str) for part in found):
        raise BadCursor(cursor)
    return tuple(found)
