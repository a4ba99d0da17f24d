"""What lies in the embedded queue of a gateway that has a broker now, and takes from that alone."""

from __future__ import annotations

import sqlite3
from pathlib import Path
from typing import Final

import durable
from session.errors import SessionError

CURE: Final = 'start once with broker.url = "embedded", until they are answered; or move the file away'


def left_behind(state: Path) -> str:
    """Say how many letters wait there, and how many are parked; empty where there are none. For threads.

    A daemon that still works on them has the file to itself: then nothing is left behind.
    """
    try:
        path = state / durable.STATE_FILE
        if not path.exists():
            return ""
        with durable.reading(path) as file:
            (waiting,), (parked,) = (
                file.execute(f"SELECT count(*) FROM {table}").fetchone()  # noqa: S608
                for table in ("queue", "parked")
            )
    except (OSError, sqlite3.Error, SessionError):
        return ""
    if not waiting and not parked:
        return ""
    counts = "1 waiting letter" if waiting == 1 else f"{waiting} waiting letters"
    if parked:
        counts += f" and {parked} parked"
    lie = "lies" if (waiting, parked) == (1, 0) else "lie"
    return f"{counts} {lie} in {path}, the embedded queue, from which nothing is taken with a broker.url"
