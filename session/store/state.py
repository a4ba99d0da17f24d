"""The state database as a store of conversations uses it, and the replay of lines after a crash."""

from __future__ import annotations

import asyncio
import contextlib
import os
import sqlite3
from collections.abc import Callable, Coroutine, Iterable, Sequence
from io import BytesIO
from pathlib import Path
from typing import Any, Final, TypeVar

import structlog

import durable
from durable import (
    Change,
    Commit,
    EarlierVersion,
    FileChange,
    LockHeld,
    NewerVersion,
    RemoteState,
    Seen,
    StateUnavailable,
    StateWriter,
    Unflushed,
)
from session.errors import NewerFormat, StoreError, WorkspaceInUse
from session.transcript.line import beginning, decode, dump
from session.transcript.transcript import parse

T = TypeVar("T")
log = structlog.get_logger(__name__)
# What tells a line from every other one of its session, however its JSON is written.
_IDENTITY: Final = ("message_id", "role", "kind", "tool_call_id", "timestamp")
_IN_USE_HINT: Final = "let the gateway do it, or stop it first"


def workspace_state(folder: Path) -> StateWriter:
    """Return this process's writer of ``state/`` of a workspace; not for a worker."""
    state = durable.state_of(folder, replay=replay)
    assert isinstance(state, StateWriter)
    return state


class StoreState:
    """The state database for one store: opened at its first use, read from a copy where another has it."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self._writer = durable.state_of(folder, replay=replay)
        self._opened: contextlib.AsyncExitStack | None = None
        self._opening = asyncio.Lock()
        self._state: durable.State = self._writer
        # The gateway that holds it, where this is a command beside one; a copy is read where none listens.
        self._gateway: RemoteState | None = None
        self._foreign = False
        self._loop: asyncio.AbstractEventLoop | None = None

    async def open(self, *, to_look: bool = False) -> None:
        """Open it, before any other thread uses it; ``to_look`` makes none.

        Raises:
            NewerFormat: a newer version wrote it.
            StoreError: it cannot be opened.
        """
        self._loop = asyncio.get_running_loop()
        if self._opened is not None or (to_look and self._is_new()):
            return
        async with self._opening:
            if self._opened is not None:
                return
            self._foreign = False
            self._state, self._gateway = self._writer, None
            stack = contextlib.AsyncExitStack()
            try:
                await stack.enter_async_context(self._writer.opened())
            except LockHeld:
                self._gateway = durable.connect(self._folder)
                self._foreign = self._gateway is None
                if self._gateway is not None:
                    self._state = await stack.enter_async_context(self._gateway.opened())
                    stack.push_async_callback(self._gateway.aclose)
            except NewerVersion as error:
                raise NewerFormat(str(error), hint=error.hint) from error
            except (EarlierVersion, StateUnavailable) as error:
                raise StoreError(str(error), hint=error.hint) from error
            except (OSError, sqlite3.Error) as error:
                hint = f"check {self._folder}"
                raise StoreError(f"the state database cannot be opened: {error}", hint=hint) from error
            self._opened = stack

    def _is_new(self) -> bool:
        local = isinstance(self._writer, StateWriter) and not self._writer.remote
        return local and not (self._folder / durable.STATE_FILE).exists()

    async def aclose(self) -> None:
        """Close it, if no other store has it open."""
        opened, self._opened = self._opened, None
        if opened is not None:
            await opened.aclose()

    async def write(self, changes: Sequence[Change], files: Sequence[FileChange] = ()) -> list[Seen | None]:
        """Commit as ``durable.State.write``.

        Raises:
            Conflict, OSError: as there.
            WorkspaceInUse, StoreError: nothing was done.
        """
        await self.open()
        if self._foreign:
            raise WorkspaceInUse("another process uses this workspace", hint=_IN_USE_HINT)
        try:
            return await self._state.write(changes, files)
        except StateUnavailable as error:
            raise StoreError(str(error), hint=error.hint) from error

    def submit(self, changes: Sequence[Change], files: Sequence[FileChange] = ()) -> Commit | None:
        """Hand a job over as ``durable.State.submit``; None where it is not open for writing."""
        if self._opened is None or self._foreign:
            return None
        try:
            return self._state.submit(changes, files)
        except StateUnavailable:
            return None

    async def read(self, statement: str, values: Sequence[Any] = ()) -> list[tuple[Any, ...]]:
        """Query as ``durable.State.read``; where another process has the database, a copy of it.

        Where there is none yet, none is made and nothing found.

        Raises:
            StoreError: it cannot be read.
        """
        await self.open(to_look=True)
        if self._opened is None:
            return []
        try:
            if self._foreign and isinstance(self._writer, StateWriter):
                return await asyncio.to_thread(self._writer.database.read_beside, statement, values)
            return await self._state.read(statement, values)
        except (StateUnavailable, OSError, sqlite3.Error) as error:
            raise StoreError(f"the state database cannot be read: {error}") from error

    async def compact(self) -> None:
        """Leave no byte of what was removed, as ``durable.State.compact``.

        Raises:
            StoreError: the disk refused.
        """
        await self.open()
        try:
            if not self._foreign:
                await self._state.compact()
        except StateUnavailable as error:
            raise StoreError(str(error), hint=error.hint) from error

    async def settle(self, path: str) -> None:
        """Append as ``durable.State.settle``.

        Raises:
            StoreError: the disk still refuses.
        """
        await self.open()
        try:
            if not self._foreign:
                await self._state.settle(path)
        except (StateUnavailable, OSError) as error:
            raise StoreError(f"a transcript cannot be written: {error}", hint="free disk space") from error

    async def changed(self, key: str, *, cleared: bool = False) -> None:
        """Have the gateway read a conversation again that this command changed, or is about to clear."""
        if self._gateway is not None:
            with contextlib.suppress(StateUnavailable):
                await self._gateway.changed(encoded(key), cleared)

    # -- journals --------------------------------------------------------------------------------------

    async def journals(self, keys: Sequence[str]) -> dict[str, list[dict[str, Any]]]:
        """Return the entries of each key's journal, oldest first."""
        marks = ", ".join("?" * len(keys))
        query = f"SELECT key, entry FROM journal WHERE key IN ({marks}) ORDER BY key, n"  # noqa: S608
        found: dict[str, list[dict[str, Any]]] = {key: [] for key in keys}
        for key, raw in await self.read(query, [encoded(key) for key in keys]):
            found[decoded(key)].append(decode(raw))
        return found

    async def keys_naming(self, message_id: str) -> set[str]:
        """List the keys whose journal names a message; it looks through all of them."""
        name = dump({"": message_id})[4:-1]
        rows = await self.read("SELECT DISTINCT key FROM journal WHERE instr(entry, ?)", (name,))
        return {decoded(key) for (key,) in rows}

    async def journals_of(self, channel: str) -> list[str]:
        """List the keys of a channel that have a journal."""
        first, behind = encoded(f"{channel}:"), encoded(f"{channel};")
        query = "SELECT DISTINCT key FROM journal WHERE key >= ? AND key < ?"
        return [decoded(key) for (key,) in await self.read(query, (first, behind))]

    async def drop_journals(self, keys: Iterable[str]) -> None:
        """Delete the journals of keys that are gone for good."""
        changes = [Change("DELETE FROM journal WHERE key = ?", (encoded(key),)) for key in keys]
        if changes:
            await self.write(changes)

    # -- the same for threads --------------------------------------------------------------------------

    def write_now(self, changes: Sequence[Change], files: Sequence[FileChange] = ()) -> list[Seen | None]:
        """Commit as ``write`` does, from a thread; ``open`` was called before."""
        return self._waited_for(self.write(changes, files))

    def read_now(self, statement: str, values: Sequence[Any] = ()) -> list[tuple[Any, ...]]:
        """Query as ``read`` does, from a thread; ``open`` was called before."""
        return self._waited_for(self.read(statement, values))

    def settle_now(self, path: str) -> None:
        """Append as ``settle`` does, from a thread; ``open`` was called before."""
        self._waited_for(self.settle(path))

    def _waited_for(self, work: Coroutine[Any, Any, T]) -> T:
        assert self._loop is not None
        return asyncio.run_coroutine_threadsafe(work, self._loop).result()


def encoded(key: str) -> bytes:
    """Return a session key as the database has it."""
    return key.encode("utf-8", "surrogatepass")


def decoded(key: bytes) -> str:
    """Return a session key of the database."""
    return key.decode("utf-8", "surrogatepass")


# -- replay ------------------------------------------------------------------------------------------------


def replay(rows: Sequence[Unflushed]) -> None:
    """Bring lines into their files that may be missing there, synced. Done twice it changes nothing.

    A row's bytes are written again where a torn part of them stands. Each line that the file lacks then goes
    before the first later one that is there, else to the end: by its identity, since another program may have
    rewritten the file. A file that was replaced by another session is left as it is.

    Raises:
        OSError: the disk refused.
    """
    by_session: dict[tuple[str, str], list[Unflushed]] = {}
    for row in rows:
        by_session.setdefault((row.path, row.session), []).append(row)
    for (name, session), ours in by_session.items():
        path = Path(name)
        try:
            data = path.read_bytes()
        except FileNotFoundError:
            data = b""
        if not (_is_torn_start(data, ours[0]) or _session_in(data, path.stem) == session):
            log.warning("replay.dropped", file=path.name, session=session, rows=len(ours))
            continue
        new = data
        for row in ours:
            new = _overlaid(new, row)
        _write_synced(path, data, _completed(new, b"".join(row.data for row in ours)))


def _session_in(data: bytes, stem: str) -> str | None:
    return parse(beginning(BytesIO(data)) or b"", stem=stem).session_id if data else None


def _is_torn_start(data: bytes, row: Unflushed) -> bool:
    """Say whether a file is what a crash left of a new one that begins with a row."""
    return row.offset == 0 and _is_torn(data[: len(row.data)], row.data)


def _is_torn(found: bytes, ours: bytes) -> bool:
    """Say whether ``found`` is ``ours`` as far as it goes, but for bytes that never reached the disk."""
    return found == ours[: len(found)] or all(a in (b, 0) for a, b in zip(found, ours, strict=False))


def _overlaid(data: bytes, row: Unflushed) -> bytes:
    """Write a row's bytes again where a torn part of them stands."""
    at, end = row.offset, row.offset + len(row.data)
    within = at < len(data) and b"\n" in (data[at - 1 : at], row.data[:1])
    torn = _is_torn_start(data, row) or (within and _is_torn(data[at:end], row.data))
    return data[:at] + row.data + data[end:] if torn else data


def _completed(data: bytes, ours: bytes) -> bytes:
    """Put the message lines of ``ours`` that ``data`` lacks where they belong."""
    lines = data.split(b"\n")
    tail = lines.pop()
    messages = [raw for raw in ours.split(b"\n") if raw and b'"_type"' not in raw[:20]]
    places = _places_of(messages, [*lines, tail])
    if None not in places:
        return data
    tail = tail.rstrip(b"\0")
    if any(raw.startswith(tail) for raw, at in zip(messages, places, strict=True) if at is None):
        tail = b""
    lines += [tail] if tail else []
    before = len(lines)
    for raw, at in zip(reversed(messages), reversed(places), strict=True):
        if at is None:
            lines.insert(before, raw)
        else:
            before = min(before, at)
    return b"".join(raw + b"\n" for raw in lines)


def _places_of(messages: Sequence[bytes], lines: Sequence[bytes]) -> list[int | None]:
    """Find each message among the lines: as it is, else by its identity; none of them serves two."""
    places: list[int | None] = [None] * len(messages)
    names: tuple[Callable[[bytes], object], ...] = (bytes, _identity)
    for name in names:
        wanted: dict[object, list[int]] = {}
        for number in reversed(range(len(messages))):
            if places[number] is None:
                wanted.setdefault(name(messages[number]), []).append(number)
        if not wanted:
            break
        taken = set(places)
        for at, raw in enumerate(lines):
            if at not in taken and (numbers := wanted.get(name(raw))):
                places[numbers.pop()] = at
    return places


def _identity(raw: bytes) -> object:
    try:
        line = decode(raw)
    except (ValueError, RecursionError):
        return raw
    if not isinstance(line, dict) or "timestamp" not in line:
        return raw
    return tuple(str(line.get(name)) for name in _IDENTITY)


def _write_synced(path: Path, data: bytes, new: bytes) -> None:
    if new.startswith(data):
        # Where the sync is refused, the same inode would be taken for synced by the next one.
        with contextlib.suppress(OSError):
            fd = os.open(path, os.O_WRONLY | os.O_APPEND | os.O_CLOEXEC)
            try:
                durable.append_whole(fd, new[len(data) :], size=len(data))
                durable.sync_data(fd)
            finally:
                os.close(fd)
            durable.sync_folder(path.parent)
            return
    durable.replace(path, new)
