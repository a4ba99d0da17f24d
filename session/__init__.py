"""Transcripts, turns, context and memory of one conversation: what other packages use.

Each name is imported when it is first asked for: reading the configuration imports this package, and must
load neither a store nor the client library of a model.
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from session.context.request import Request
    from session.errors import (
        BadAnswer,
        ContextTooLong,
        Fenced,
        LineTooLong,
        ModelAway,
        ModelError,
        ModelRefused,
        NewerFormat,
        NoSession,
        NotCompacted,
        NotNow,
        RoundsExhausted,
        SessionError,
        StoreError,
        ToolError,
        TurnTimeout,
    )
    from session.store.store import Session, Store
    from session.turn.commands import Commands
    from session.turn.turn import Reply, Turns

__all__ = [
    "BadAnswer",
    "Commands",
    "ContextTooLong",
    "Fenced",
    "LineTooLong",
    "ModelAway",
    "ModelError",
    "ModelRefused",
    "NewerFormat",
    "NoSession",
    "NotCompacted",
    "NotNow",
    "Reply",
    "Request",
    "RoundsExhausted",
    "Session",
    "SessionError",
    "Store",
    "StoreError",
    "ToolError",
    "TurnTimeout",
    "Turns",
]

_HOMES = {
    "Commands": "session.turn.commands",
    "Reply": "session.turn.turn",
    "Request": "session.context.request",
    "Session": "session.store.store",
    "Store": "session.store.store",
    "Turns": "session.turn.turn",
}

if not TYPE_CHECKING:
    # Hidden from the type checker, which would take any name for one of the face.
    def __getattr__(name: str) -> object:
        """Import a name of the face from the module that defines it."""
        if name not in __all__:
            raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
        # Kept in the module: from the second time on no call is made for it.
        value = globals()[name] = getattr(import_module(_HOMES.get(name, "session.errors")), name)
        return value
