"""The state database over a socket: whoever else works on a workspace asks the process that holds it.

Workers of a gateway have a pair of sockets each; commands find the socket ``state/gateway.sock``. A frame is
four bytes of length and a marshalled tuple: ``(number, kind, …)`` to the holder, ``(number, outcome, …)``
back. Files are named below the workspace, whose own path may be another one at the other end. Only processes
of the same user, on the same machine and with the same interpreter, reach either.
"""

from __future__ import annotations

import asyncio
import contextlib
import marshal
import os
import socket
import struct
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator, Sequence
from functools import partial
from pathlib import Path
from typing import Any, Final

from durable.database import Job
from durable.errors import StateUnavailable
from durable.state_database import Append, Change, Commit, Conflict, FileChange, Put, Remove, Seen
from durable.state_writer import StateWriter

# Hears of a session key that somebody else changed, and whether it was cleared.
Changed = Callable[[str, bool], Awaitable[None]]
SOCKET: Final = "gateway.sock"
_LENGTH: Final = struct.Struct("!I")
_KINDS: Final = (Append, Put, Remove)
_PATHS: Final = ("path", "temp")
_LIMIT: Final = 2**20
# The longest path of a socket, less the end of the string; longer ones go by a descriptor of their folder.
_PATH_MAX: Final = 100


async def _frames(reader: asyncio.StreamReader) -> AsyncIterator[tuple[Any, ...]]:
    """Yield what the other end sends, until it is gone."""
    with contextlib.suppress(asyncio.IncompleteReadError, OSError):
        while True:
            (length,) = _LENGTH.unpack(await reader.readexactly(_LENGTH.size))
            yield marshal.loads(await reader.readexactly(length))  # noqa: S302 - of the same user


def _send(writer: asyncio.StreamWriter, frame: tuple[Any, ...]) -> None:
    data = marshal.dumps(frame)
    writer.write(_LENGTH.pack(len(data)) + data)


# -- the one that asks -------------------------------------------------------------------------------------


class RemoteState:
    """The state database that another process holds: ``durable.State``."""

    def __init__(self, end: socket.socket, workspace: Path) -> None:
        """Ask over a connected socket; ``workspace`` is how this process names the folder."""
        self._end = end
        self._top = f"{os.path.abspath(workspace)}/"  # noqa: PTH100 - links stay as they are named
        self._writer: asyncio.StreamWriter | None = None
        self._asked: dict[int, asyncio.Future[Any]] = {}
        self._next = 0
        self._reading: asyncio.Task[None] | None = None

    @contextlib.asynccontextmanager
    async def opened(self) -> AsyncIterator[RemoteState]:
        """Return it, once it reads; the connection lasts as long as the process."""
        if self._reading is None:
            self._end.setblocking(False)
            reader, self._writer = await asyncio.open_unix_connection(sock=self._end, limit=_LIMIT)
            self._reading = asyncio.create_task(self._read(reader), name="state")
        yield self

    async def aclose(self) -> None:
        """Close the connection."""
        if self._reading is None:
            self._end.close()
            return
        if self._writer is not None:
            self._writer.close()
        await asyncio.wait([self._reading])

    async def _read(self, reader: asyncio.StreamReader) -> None:
        async for number, *outcome in _frames(reader):
            done = self._asked.pop(number, None)
            if done is not None and not done.done():
                _resolve(done, outcome)
        self._writer = None
        for done in self._asked.values():
            if not done.done():
                done.set_exception(_gone())
        self._asked.clear()

    async def write(self, changes: Sequence[Change], files: Sequence[FileChange] = ()) -> list[Seen | None]:
        """Commit as ``durable.State.write`` says."""
        seen: list[Seen | None] = await self.submit(changes, files).done
        return seen

    def submit(self, changes: Sequence[Change], files: Sequence[FileChange] = ()) -> Commit:
        """Hand a job over as ``durable.State.submit`` says."""
        rows = [(each.statement, tuple(each.values), each.required) for each in changes]
        moves = [(_KINDS.index(type(each)), self._fields(each)) for each in files]
        commit = Commit()
        commit.done = self._ask("write", rows, moves)
        return commit

    async def read(self, statement: str, values: Sequence[Any] = ()) -> list[tuple[Any, ...]]:
        """Query as ``durable.State.read`` says."""
        rows: list[tuple[Any, ...]] = await self._ask("read", statement, tuple(values))
        return rows

    async def compact(self) -> None:
        """Write the database anew as ``durable.State.compact`` says."""
        await self._ask("compact")

    async def settle(self, path: str) -> None:
        """Append as ``durable.State.settle`` says."""
        await self._ask("settle", path.removeprefix(self._top))

    async def changed(self, key: bytes, cleared: bool) -> None:
        """Tell the holder that a conversation was changed here, or is about to be cleared."""
        await self._ask("changed", key, cleared)

    def _fields(self, change: FileChange) -> tuple[Any, ...]:
        fields = {name: getattr(change, name) for name in change.__slots__}
        below = {name: fields[name].removeprefix(self._top) for name in _PATHS if name in fields}
        return tuple((fields | below).values())

    def _ask(self, *what: Any) -> asyncio.Future[Any]:
        if self._writer is None:
            raise _gone()
        self._next += 1
        done = self._asked[self._next] = asyncio.get_running_loop().create_future()
        _send(self._writer, (self._next, *what))
        return done


def connect(folder: Path) -> RemoteState | None:
    """Connect to the gateway that holds ``state/`` of a workspace; None where none listens."""
    end = socket.socket(socket.AF_UNIX)
    try:
        with _short(folder) as path:
            end.connect(path)
    except OSError:
        end.close()
        return None
    return RemoteState(end, folder.parent)


def _resolve(done: asyncio.Future[Any], outcome: Sequence[Any]) -> None:
    match outcome:
        case ["is", value]:
            done.set_result(value)
        case ["conflict", text]:
            done.set_exception(Conflict(text))
        case ["disk", number, text]:
            done.set_exception(OSError(number, text))
        case [_, text, hint]:
            done.set_exception(StateUnavailable(text, hint=hint))


def _gone() -> StateUnavailable:
    return StateUnavailable("the gateway that holds the state database is gone")


# -- the one that holds it ---------------------------------------------------------------------------------


@contextlib.asynccontextmanager
async def listening(folder: Path, state: StateWriter, changed: Changed) -> AsyncIterator[None]:
    """Answer commands at ``state/gateway.sock`` while the context is open.

    Raises:
        OSError: the socket cannot be made.
    """
    tasks = set[asyncio.Task[None]]()

    def answer(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        task = asyncio.create_task(_serve(reader, writer, state, changed), name="state of a command")
        tasks.add(task)
        task.add_done_callback(tasks.discard)

    (folder / SOCKET).unlink(missing_ok=True)
    end = socket.socket(socket.AF_UNIX)
    with _short(folder) as path:
        end.bind(path)
    (folder / SOCKET).chmod(0o600)
    server = await asyncio.start_unix_server(answer, sock=end, limit=_LIMIT)
    try:
        yield
    finally:
        server.close()
        (folder / SOCKET).unlink(missing_ok=True)
        for task in tasks:
            task.cancel()
        if tasks:
            await asyncio.wait(tasks)


@contextlib.contextmanager
def _short(folder: Path) -> Iterator[str]:
    """Name the socket of a folder so that it fits, however long the name of the folder is."""
    path = str(folder / SOCKET)
    if len(os.fsencode(path)) <= _PATH_MAX:
        yield path
        return
    fd = os.open(folder, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    try:
        yield f"/proc/self/fd/{fd}/{SOCKET}"
    finally:
        os.close(fd)


async def serve(end: socket.socket, state: StateWriter, changed: Changed) -> None:
    """Answer one worker until it is gone and all that it asked is done.

    Its jobs are committed in the order in which it sent them.
    """
    end.setblocking(False)
    reader, writer = await asyncio.open_unix_connection(sock=end, limit=_LIMIT)
    await _serve(reader, writer, state, changed)


async def _serve(
    reader: asyncio.StreamReader, writer: asyncio.StreamWriter, state: StateWriter, changed: Changed
) -> None:
    asked: set[asyncio.Future[Any]] = set()
    try:
        async for number, kind, *arguments in _frames(reader):
            try:
                done = _begin(state, changed, kind, arguments)
            except StateUnavailable as error:
                _send(writer, (number, "unavailable", str(error), error.hint))
                continue
            asked.add(done)
            done.add_done_callback(asked.discard)
            done.add_done_callback(partial(_answer, writer, number))
        if asked:
            await asyncio.wait(asked)
    finally:
        writer.close()


def _begin(state: StateWriter, changed: Changed, kind: str, arguments: Sequence[Any]) -> asyncio.Future[Any]:
    database = state.database
    match kind, arguments:
        case "write", [rows, moves]:
            files = [_KINDS[number](*_above(database.top, number, fields)) for number, fields in moves]
            return state.ask(database.job([Change(*row) for row in rows], files))
        case "read", [statement, values]:
            return state.ask(Job(lambda: database.query(statement, values).fetchall(), writes=False))
        case "settle", [path]:
            return state.ask(Job(partial(database.settle, f"{database.top}/{path}")))
        case "compact", []:
            return asyncio.ensure_future(state.compact())
        case "changed", [key, cleared]:
            return asyncio.ensure_future(changed(key.decode("utf-8", "surrogatepass"), cleared))
    raise StateUnavailable(f"another version of chat-gateway asks for {kind}", hint="restart the gateway")


def _above(top: str, number: int, fields: Sequence[Any]) -> list[Any]:
    """Return the fields of a file change with the paths as this process names them."""
    names = _KINDS[number].__slots__
    return [f"{top}/{value}" if name in _PATHS else value for name, value in zip(names, fields, strict=True)]


def _answer(writer: asyncio.StreamWriter, number: int, done: asyncio.Future[Any]) -> None:
    if writer.is_closing() or done.cancelled():
        return
    error = done.exception()
    match error:
        case None:
            _send(writer, (number, "is", done.result()))
        case Conflict():
            _send(writer, (number, "conflict", str(error)))
        case OSError():
            _send(writer, (number, "disk", error.errno or 0, error.strerror or str(error)))
        case StateUnavailable():
            _send(writer, (number, "unavailable", str(error), error.hint))
        case _:
            _send(writer, (number, "unavailable", f"{type(error).__name__}: {error}", ""))
