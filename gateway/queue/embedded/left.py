"""What lies in the embedded queue of a gateway that has a broker now, and takes from that alone."""

from __future__ import annotations

import sqlite3
from pathlib import Path
from typing import Final

import durable
from session.errors import StoreError
from session.store.state import StoreState, workspace_state

_WAITING: Final = "SELECT count(*) FROM queue"
_PARKED: Final = "SELECT count(*) FROM parked"
CURE: Final = 'start once with broker.url = "embedded", until they are answered; or move the file away'


async def left_behind(state: Path) -> str:
    """Say how many messages wait there, and how many are parked; empty where there are none."""
    path = state / durable.STATE_FILE
    if not path.exists():
        return ""
    try:
        waiting, parked = await (_counted_here(path) if workspace_state(state).remote else _counted(state))
    except (StoreError, sqlite3.Error):
        return ""
    if not waiting and not parked:
        return ""
    counts = "1 waiting letter" if waiting == 1 else f"{waiting} waiting letters"
    if parked:
        counts += f" and {parked} parked"
    lie = "lies" if (waiting, parked) == (1, 0) else "lie"
    return f"{counts} {lie} in {path}, the embedded queue, from which nothing is taken with a broker.url"


async def _counted(state: Path) -> tuple[int, int]:
    database = StoreState(state)
    try:
        ((waiting,),) = await database.read(_WAITING)
        ((parked,),) = await database.read(_PARKED)
    finally:
        await database.aclose()
    return waiting, parked


async def _counted_here(path: Path) -> tuple[int, int]:
    """Count in a file that nobody uses any more: the state database is on a server."""
    with durable.reading(path) as file:
        return file.execute(_WAITING).fetchone()[0], file.execute(_PARKED).fetchone()[0]
