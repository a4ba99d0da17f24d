"""Which fields of line 1's metadata a session hands on, and which it has again when it is reopened."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any, Literal

# stays: of the conversation; every session that follows has it too.
# renewed: every session has a value of its own, which is written as it begins.
# goes_on: of what is talked about; a session that a compaction begins has it too, any other does not.
# ends: of one session alone, which has it again when it is reopened.
# reopens: of how a session ended; it is gone when the session is reopened.
Lasting = Literal["stays", "renewed", "goes_on", "ends", "reopens"]

FIELDS: Mapping[str, Lasting] = {
    "session_id": "renewed",
    "previous_session": "renewed",
    "model": "stays",
    "source": "stays",
    "cron_job_id": "stays",
    "chat": "stays",
    "agent": "stays",
    "answers_to": "goes_on",
    "name": "goes_on",
    "instructions": "goes_on",
    "resumed_at": "ends",
    "parted_from": "ends",
    "parted_by": "ends",
    "turned_by": "ends",
    "imported": "ends",
    "ended_at": "reopens",
    "ended_by": "reopens",
    "summary": "reopens",
    "last_words": "reopens",
    "history_from": "reopens",
    "reopened": "reopens",
}


def for_the_next(inner: Mapping[str, Any]) -> dict[str, Any]:
    """Return what the session that follows an ended one has of its metadata."""
    return _only(inner, lambda lasting: lasting in ("stays", "renewed"))


def for_the_compacted(inner: Mapping[str, Any]) -> dict[str, Any]:
    """Return what the session that goes on from a summary has of the metadata before."""
    return _only(inner, lambda lasting: lasting in ("stays", "renewed", "goes_on"))


def for_the_reopened(inner: Mapping[str, Any]) -> dict[str, Any]:
    """Return what an ended session has of its metadata once it is the active one again."""
    return _only(inner, lambda lasting: lasting != "reopens")


def _only(inner: Mapping[str, Any], wanted: Callable[[Lasting], bool]) -> dict[str, Any]:
    # A field that another program wrote is not ours to drop.
    return {name: value for name, value in inner.items() if wanted(FIELDS.get(name, "stays"))}
