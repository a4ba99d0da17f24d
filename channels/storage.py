"""The channels side's own files in ``state/``: small JSON files, the tables of ``channels.db``, leases."""

from __future__ import annotations

import asyncio
import contextlib
import os
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager
from datetime import UTC, datetime, timedelta
from pathlib import Path
from sqlite3 import Connection
from typing import Any, Final, TypeVar

import orjson

import durable
from channels.errors import ChannelError, NewerFile

VERSION: Final = 1


@contextlib.contextmanager
def locked(path: Path, *, wait_s: float = 10.0) -> Iterator[None]:
    """Hold the lock file ``path``. Used from threads and one-shot commands, never on the event loop.

    Raises:
        ChannelError: somebody else has held it for ``wait_s`` seconds, or it cannot be made.
    """
    with contextlib.ExitStack() as held:
        try:
            held.enter_context(durable.locked(path, wait_s=wait_s))
        except durable.LockHeld as error:
            raise ChannelError(str(error), hint=error.hint) from error
        except OSError as error:
            raise ChannelError(
                f"{path.name} cannot be opened: {error.strerror}", hint=f"check {path}"
            ) from error
        yield


def read(path: Path) -> dict[str, Any]:
    """Read the object in a file; an empty one where there is no file.

    Raises:
        NewerFile: a newer version of this program wrote it.
        ChannelError: it cannot be read, or is damaged; it is left as it is.
    """
    try:
        content = durable.decode_state(path.read_bytes(), VERSION, path.name, error=NewerFile)
    except FileNotFoundError:
        return {}
    except OSError as error:
        raise ChannelError(f"{path.name} cannot be read: {error.strerror}", hint=f"check {path}") from error
    except durable.Damaged as error:
        raise ChannelError(str(error), hint=f"repair {path}, or move it away") from error
    if type(content.get("v")) is not int:
        raise ChannelError(
            f"{path.name} is damaged: it has no version", hint=f"repair {path}, or move it away"
        )
    return content


def write(path: Path, content: Mapping[str, Any]) -> None:
    """Replace a file whole: a kill or a power cut leaves the old one or the new one.

    Raises:
        ChannelError: the disk refused; the old file is as it was.
    """
    try:
        durable.replace(path, orjson.dumps({"v": VERSION, **content}))
    except OSError as error:
        raise ChannelError(
            f"{path.name} cannot be written: {error.strerror}",
            hint=f"free some disk space, or check {path.parent}; nothing was changed",
        ) from error


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


TRY_S: Final = 1.0


@contextlib.asynccontextmanager
async def lease(
    state: Path, name: str, *, sleep: Callable[[float], Awaitable[object]] = asyncio.sleep
) -> AsyncIterator[None]:
    """Wait until this process holds ``state/<name>.lease``, and hold it until the context is left.

    The lock is the kernel's: it is free as soon as its holder is dead, whatever killed it. The file stays.
    """
    path = state / f"{name}.lease"
    await asyncio.to_thread(durable.make_folder, path.parent)
    fd = await asyncio.to_thread(durable.open_private, path)
    try:
        while not durable.try_lock(fd):
            await sleep(TRY_S)
        # On a full disk the lease holds all the same: only a curious person reads the file.
        with contextlib.suppress(OSError):
            os.ftruncate(fd, 0)
            os.pwrite(fd, orjson.dumps({"v": VERSION, "pid": os.getpid()}), 0)
        yield
    finally:
        os.close(fd)


def held(state: Path, name: str) -> bool:
    """Say whether some process, perhaps this one, holds a lease now; others who ask do not count."""
    try:
        fd = os.open(state / f"{name}.lease", os.O_RDWR | os.O_CLOEXEC)
    except FileNotFoundError:
        return False
    try:
        return not durable.try_lock(fd, shared=True)
    finally:
        os.close(fd)
