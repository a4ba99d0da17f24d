"""The one writer of a workspace: rows of the state database, and the files whose changes follow a commit.

A job is a few changes of rows and of files that belong together. Jobs that arrive while a sync is under way
share the next one. The lines of a transcript are first rows of ``file_ops``, then appended to their file
without a sync. A flush syncs the files of all such rows and deletes the rows; a start replays those that a
crash left (``unflushed``).
"""

from __future__ import annotations

import asyncio
import contextlib
import os
import sqlite3
from collections.abc import AsyncIterator, Callable, Sequence
from contextlib import AbstractAsyncContextManager
from functools import partial
from pathlib import Path
from typing import Any, Final, Protocol, TypeVar
from weakref import WeakValueDictionary

from durable.database import Job
from durable.errors import StateUnavailable
from durable.group_commit import Asked, GroupCommit
from durable.state_database import (
    Change,
    Commit,
    FileChange,
    Replay,
    Seen,
    StateDatabase,
    StateFiles,
    in_use,
    sync_all,
)

T = TypeVar("T")
# How long, and how many bytes, appended lines rely on their rows.
FLUSH_S: Final = 30.0
FLUSH_BYTES: Final = 16 * 2**20
# How often a server is told that this process lives.
_ASKS_S: Final = 5.0


_RELEASED: Final = tuple(
    f"UPDATE {table} SET reserved_nano = 0, reserved_tokens = 0 "  # noqa: S608 - ours
    "WHERE reserved_nano <> 0 OR reserved_tokens <> 0"
    for table in ("totals", "reservations")
)


class State(Protocol):
    """The state database and the files of a workspace, as whoever changes them sees them."""

    async def write(self, changes: Sequence[Change], files: Sequence[FileChange] = ()) -> list[Seen | None]:
        """Commit the changes, then change the files; durable on return, except for the files' own sync.

        Returns:
            What each file looks like behind its change.

        Raises:
            Conflict: a required change or a file did not match; no file was changed.
            StateUnavailable: the disk refused; nothing was done.
            OSError: the rows are durable, a file could not be changed; ``settle`` tries again.
        """
        ...

    def submit(self, changes: Sequence[Change], files: Sequence[FileChange] = ()) -> Commit:
        """Hand a job over at once, in the order of the calls; its ``done`` ends as ``write`` does."""
        ...

    async def read(self, statement: str, values: Sequence[Any] = ()) -> list[tuple[Any, ...]]:
        """Return the rows of a query, behind everything that was written before.

        Raises:
            StateUnavailable: the database cannot be read.
        """
        ...

    async def compact(self) -> None:
        """Write the database anew, so that no byte of what was removed stays in it or in its log.

        Raises:
            StateUnavailable: the disk refused; the rows are as they were.
        """
        ...

    async def settle(self, path: str) -> None:
        """Bring what ``file_ops`` holds for a file into it, where an append failed.

        Raises:
            StateUnavailable, OSError: the disk still refuses.
        """
        ...


class OpenableState(State, Protocol):
    """A state that is open while any of its contexts is."""

    def opened(self) -> AbstractAsyncContextManager[object]:
        """Keep it open."""
        ...


class StateWriter:
    """The writer in the process that holds ``state/lock``; ``state_of`` makes one for each folder.

    It is used from one event loop at a time. ``replay`` brings the rows of ``file_ops`` into their files, in
    the writing thread, when the database is opened. ``at`` is called in that thread with the name of each
    instant of a commit, for tests. ``url`` names a PostgreSQL database; empty: the file in ``folder``.
    """

    def __init__(self, folder: Path, *, replay: Replay, url: str = "") -> None:
        self.at: Callable[[str], None] = lambda _: None
        self.folder = folder
        self.database: StateFiles
        if url:
            # Without it the gateway starts sooner, and needs no client library.
            from durable.postgres import PostgresDatabase

            self.database = PostgresDatabase(url, folder, at=self._at, replay=replay)
        else:
            self.database = StateDatabase(folder, at=self._at, replay=replay)
        self._users = 0
        self._loop: asyncio.AbstractEventLoop | None = None
        self._commits: GroupCommit | None = None
        self._opening: asyncio.Future[None] | None = None
        self._closing: asyncio.Future[None] | None = None
        self._flushing: list[asyncio.Task[None]] = []
        self.remote = bool(url)
        self.watchers: list[Callable[[Sequence[Asked], Sequence[object]], None]] = []

    def _at(self, name: str) -> None:
        self.at(name)

    @contextlib.asynccontextmanager
    async def opened(self) -> AsyncIterator[StateWriter]:
        """Keep the database open while any such context is.

        Raises:
            LockHeld, NewerVersion, OSError, sqlite3.Error, StateUnavailable: as ``open`` of the database; the
                first also where another event loop of this process has it open.
        """
        loop = asyncio.get_running_loop()
        closing = self._closing is not None and not self._closing.done()
        if self._loop is not loop and (self._users or closing):
            raise in_use(self.folder, f" (pid {os.getpid()})")
        self._loop = loop
        self._users += 1
        try:
            if self._opening is None:
                self._opening = asyncio.ensure_future(self._open(self._closing))
            await asyncio.shield(self._opening)
            yield self
        finally:
            self._users -= 1
            if not self._users:
                opening, self._opening = self._opening, None
                self._closing = asyncio.ensure_future(self._close(opening))
                await asyncio.shield(self._closing)

    async def _open(self, closing: asyncio.Future[None] | None) -> None:
        # Of two openings of a process the second would find the lock taken.
        if closing is not None and not closing.done():
            await asyncio.wait([closing])
        commits = GroupCommit(self.database, name="state", closed=_closed, settled=self._settled)
        try:
            await commits.open(self.database.open)
        except BaseException:
            await commits.close()
            raise
        self._commits, self._full = commits, asyncio.Event()
        # Requests that reserved something ended with their process; a full disk must not hold this one up.
        self.submit([Change(statement) for statement in _RELEASED])
        self._flushing = [asyncio.create_task(self._keep_flushed(), name="flush")]
        if self.remote:
            self._flushing.append(asyncio.create_task(self._keep_asking(), name="ask the state database"))

    async def _close(self, opening: asyncio.Future[None] | None) -> None:
        if opening is not None and not opening.done():
            await asyncio.wait([opening])
        commits, self._commits = self._commits, None
        flushing, self._flushing = self._flushing, []
        for task in flushing:
            task.cancel()
        if flushing:
            await asyncio.wait(flushing)
        if commits is not None:
            self.database.give_up()
            await commits.close()

    # -- jobs ------------------------------------------------------------------------------------------

    def ask(self, job: Job, applied: Callable[[Any], None] | None = None) -> asyncio.Future[Any]:
        """Have a job done in the next transaction; ``applied`` sees its outcome before whoever waits for it.

        Raises:
            StateUnavailable: the database is closed.
        """
        if self._commits is None:
            raise _closed()
        return self._commits.ask(job.run, applied, writes=job.writes, after=job.after)

    async def write(self, changes: Sequence[Change], files: Sequence[FileChange] = ()) -> list[Seen | None]:
        """Commit as ``State.write`` says."""
        seen: list[Seen | None] = await self.ask(self.database.job(changes, files))
        return seen

    def submit(self, changes: Sequence[Change], files: Sequence[FileChange] = ()) -> Commit:
        """Hand a job over as ``State.submit`` says."""
        commit = Commit()
        commit.done = self.ask(self.database.job(changes, files, commit))
        return commit

    async def read(self, statement: str, values: Sequence[Any] = ()) -> list[tuple[Any, ...]]:
        """Query as ``State.read`` says."""
        rows: list[tuple[Any, ...]] = await self.ask(
            Job(lambda: self.database.query(statement, values).fetchall(), writes=False)
        )
        return rows

    def _settled(self, asked: Sequence[Asked], outcomes: Sequence[object]) -> None:
        for each, outcome in zip(asked, outcomes, strict=True):
            if each.applied is not None:
                each.applied(outcome)
        for watcher in self.watchers:
            watcher(asked, outcomes)
        if self.database.unflushed_bytes >= FLUSH_BYTES:
            self._full.set()

    async def progress(self) -> None:
        """Return after the next batch; raises what broke one, for which no job and no disk is to blame."""
        if self._commits is None:
            raise _closed()
        await self._commits.progress()

    @property
    def idle(self) -> bool:
        """Whether nothing waits and nothing is on its way to the disk."""
        return self._commits is None or self._commits.idle

    async def compact(self) -> None:
        """Write the database anew as ``State.compact`` says."""
        if self._commits is None:
            raise _closed()
        try:
            # Rows of lines whose file was deleted stay until then.
            await self.flush()
            await self._commits.open(self.database.compact)
        except (OSError, sqlite3.Error) as error:
            raise StateUnavailable(
                f"the state database was not compacted: {error}", hint="run it again"
            ) from error

    async def _keep_asking(self) -> None:
        """Say that this process lives, and notice a server that is away while there is nothing to write."""
        while True:
            await asyncio.sleep(_ASKS_S)
            with contextlib.suppress(StateUnavailable):
                await self.ask(Job(self.database.renew, writes=False))

    # -- flush -----------------------------------------------------------------------------------------

    async def _keep_flushed(self) -> None:
        while True:
            self._full.clear()
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(FLUSH_S):
                    await self._full.wait()
            with contextlib.suppress(StateUnavailable, OSError):
                await self.flush()

    async def flush(self) -> None:
        """Sync the files of all rows in ``file_ops``, then delete those rows.

        Raises:
            StateUnavailable, OSError: the disk refused; the rows of what it refused stay.
        """
        appended = await self.ask(Job(self.database.appended, writes=False))
        if appended.paths:
            failed = await asyncio.to_thread(sync_all, appended.paths)
            refused = await self.ask(self.database.flushed(appended, failed))
            if refused is not None:
                raise refused

    async def settle(self, path: str) -> None:
        """Append as ``State.settle`` says."""
        await self.ask(Job(partial(self.database.settle, path)))


_urls: dict[Path, str] = {}
_writers: WeakValueDictionary[Path, OpenableState] = WeakValueDictionary()
_remote: list[OpenableState] = []


def use_state(folder: Path, state: OpenableState) -> None:
    """Have ``state_of`` return this one in this process, for its whole life: another process writes."""
    _remote.append(state)
    _writers[Path(os.path.abspath(folder))] = state  # noqa: PTH100


def use_url(folder: Path, url: str) -> None:
    """Have the state of ``folder`` be in a PostgreSQL database, in this process; empty: in the folder."""
    _urls[Path(os.path.abspath(folder))] = url  # noqa: PTH100 - as ``state_of``


def state_of(folder: Path, *, replay: Replay) -> OpenableState:
    """Return this process's writer for ``state/`` of a workspace: the same one for everybody who asks.

    ``replay`` counts for the first who asks.
    """
    folder = Path(os.path.abspath(folder))  # noqa: PTH100 - links stay as they are named
    writer = _writers.get(folder)
    if writer is None:
        writer = _writers[folder] = StateWriter(folder, replay=replay, url=_urls.get(folder, ""))
    return writer


def _closed() -> StateUnavailable:
    return StateUnavailable("the state database is closed")
