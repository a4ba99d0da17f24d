"""What an adapter says of itself to other processes: how it stands, and which menu of commands it showed."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import orjson

from channels.errors import ChannelError
from channels.storage import change_rows, held, read_rows

_FIELDS = ("up", "since", "error", "last_round_trip")


def standing(state: Path, name: str) -> dict[str, Any]:
    """Return whether an adapter is up, since when, its last error and its last round trip."""
    nobody = {"up": False, "since": None, "error": "no process runs it: chat-gateway run"}
    try:
        with read_rows(state) as file:
            query = "SELECT standing FROM adapters WHERE channel = ?"
            row = file.execute(query, (name,)).fetchone()
    except ChannelError as error:
        return nobody | {"error": str(error)}
    try:
        runs = row is not None and row[0] is not None and held(state, name)
    except OSError as error:
        return nobody | {"error": f"{name}.lease cannot be read: {error.strerror}"}
    if not runs:
        return nobody
    content = orjson.loads(row[0])
    return {field: content.get(field) for field in _FIELDS}


def set_standing(state: Path, name: str, part: Mapping[str, Any]) -> None:
    """Record how an adapter stands: the fields of ``standing``. For threads.

    Raises:
        ChannelError: the disk refused.
    """
    _set(state, name, "standing", orjson.dumps({field: part.get(field) for field in _FIELDS}).decode())


def menu(state: Path, name: str) -> str | None:
    """Return the digest of the menu of commands that the platform was shown last. For threads.

    Raises:
        ChannelError: it cannot be read.
    """
    with read_rows(state) as file:
        row = file.execute("SELECT menu FROM adapters WHERE channel = ?", (name,)).fetchone()
    return row[0] if row is not None else None


def set_menu(state: Path, name: str, digest: str) -> None:
    """Record the menu that the platform was shown. For threads.

    Raises:
        ChannelError: the disk refused.
    """
    _set(state, name, "menu", digest)


def _set(state: Path, name: str, column: str, value: str) -> None:
    insert = f"INSERT INTO adapters (channel, {column}) VALUES (?, ?)"  # noqa: S608
    statement = f"{insert} ON CONFLICT DO UPDATE SET {column} = excluded.{column}"
    change_rows(state, lambda file: file.execute(statement, (name, value)).rowcount)
