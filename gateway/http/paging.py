"""Pages of listings: ``limit`` rows at most, and ``next``, the ``cursor`` that goes on; null at the end."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Annotated, TypeVar

from fastapi import Query

from gateway.http.errors import HttpError
from gateway.service.pages import MAX_CURSOR_CHARS, BadCursor, Place, page

T = TypeVar("T")
MAX_LIMIT = 1000
PER_PAGE = 100
Limit = Annotated[int, Query(ge=1, le=MAX_LIMIT, description="maximum number")]
Cursor = Annotated[str | None, Query(max_length=MAX_CURSOR_CHARS, description="`next` of the previous page")]


def paged(
    rows: Sequence[T], place: Callable[[T], Place], *, limit: int, cursor: str | None
) -> tuple[list[T], str | None]:
    """Return the rows of a page and the next cursor; see ``gateway.service.pages``.

    Raises:
        HttpError: 400, the cursor is not valid.
    """
    try:
        return page(rows, place, limit=limit, cursor=cursor)
    except BadCursor:
        raise bad_cursor() from None


def bad_cursor() -> HttpError:
    """Return the answer to a cursor that no page gave."""
    return HttpError(400, "the cursor is not valid", hint="start without one")
