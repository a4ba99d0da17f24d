"""The tables of the channels side in ``state/channels.db``, for threads and commands."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from contextlib import AbstractContextManager
from datetime import UTC, datetime, timedelta
from pathlib import Path
from sqlite3 import Connection
from typing import Final, TypeVar

import durable
from channels.errors import ChannelError, NewerFile

T = TypeVar("T")
# The rows of a table by its name.
Positions = Mapping[str, Sequence[tuple[object, ...]]]
# By so much a clock may have been set back.
_AHEAD: Final = timedelta(seconds=1)


def change_rows(state: Path, work: Callable[[Connection], T], *, erases: bool = False) -> T:
    """Do ``work`` in one transaction, and return its result once that is on disk.

    With ``erases``, if the result is true, the file is rewritten so that no byte of what was removed stays.

    Raises:
        NewerFile: a newer version of this program wrote the database.
        ChannelError: it cannot be written; nothing was changed.
    """
    with durable.open_channels(state, down=_refused(state, "written"), newer=NewerFile) as database:
        result = database.change(work)
        if erases and result:
            database.compact()
    return result


def read_rows(state: Path) -> AbstractContextManager[Connection]:
    """Open the database to look at it alone; where there is none, its tables are empty.

    Raises:
        NewerFile: a newer version of this program wrote the database.
        ChannelError: it cannot be read.
    """
    return durable.reading_channels(state, down=_refused(state, "read"), newer=NewerFile)


def _refused(state: Path, done: str) -> Callable[[Exception], ChannelError]:
    name = durable.CHANNELS_FILE
    return lambda error: ChannelError(
        f"{name} cannot be {done}: {error}",
        hint=f"check {state / name} and the free disk space; nothing was changed",
    )


def first_start(state: Path, channel: str, bot: str, now: datetime) -> datetime:
    """Return when a bot was first started here, which is ``now`` where nothing is known; durable on return.

    A time that is yet to come was recorded by a clock that was ahead; ``now`` takes its place.

    Raises:
        ChannelError: as ``change_rows``.
    """

    def work(file: Connection) -> datetime:
        query = "SELECT first_start_ms FROM bots WHERE (channel, bot) = (?, ?)"
        found = file.execute(query, (channel, bot)).fetchone()
        if found is not None and from_ms(found[0]) <= now + _AHEAD:
            return from_ms(found[0])
        statement = """INSERT INTO bots VALUES (?, ?, ?, NULL)
            ON CONFLICT DO UPDATE SET first_start_ms = excluded.first_start_ms"""
        file.execute(statement, (channel, bot, to_ms(now)))
        return now

    return change_rows(state, work)


def positions_of(state: Path) -> Positions:
    """Return how far platforms were read, for ``set_positions``.

    Raises:
        ChannelError: as ``read_rows``.
    """
    with read_rows(state) as file:
        return {name: file.execute(f"SELECT * FROM {name}").fetchall() for name in ("bots", "cursors")}  # noqa: S608


def set_positions(positions: Positions, file: Connection) -> None:
    """Have a copy of the database say that platforms were read so far."""
    for name, rows in positions.items():
        file.execute(f"DELETE FROM {name}")  # noqa: S608
        file.executemany(f"INSERT INTO {name} VALUES (?, ?, ?, ?)", rows)  # noqa: S608


def to_ms(at: datetime) -> int:
    """Return a time as the tables have it."""
    return int(at.timestamp() * 1000)


def from_ms(ms: int) -> datetime:
    """Return a time of the tables, UTC."""
    return datetime.fromtimestamp(ms / 1000, UTC)
