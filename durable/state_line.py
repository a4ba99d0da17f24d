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
from typing import Any, Final, cast

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
# The longest path of a socket, less the end of the string; longer ones go by a descriptor of their folder.
_PATH_MAX: Final = 100


class _Line(asyncio.Protocol):
    """One end of a socket, which writes what is sent within one pass of the loop together."""

    def __init__(self, heard: Callable[..., None]) -> None:
        self._heard, self._loop = heard, asyncio.get_running_loop()
        self._transport: asyncio.WriteTransport | None = None
        self._received, self._sent = bytearray(), list[bytes]()
        self.ended: asyncio.Future[None] = self._loop.create_future()

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        # uvloop's transports are none of asyncio's classes.
        self._transport = cast("asyncio.WriteTransport", transport)

    def data_received(self, data: bytes) -> None:
        self._received += data
        begin = _LENGTH.size
        while begin <= len(self._received):
            end = begin + _LENGTH.unpack_from(self._received, begin - _LENGTH.size)[0]
            if end > len(self._received):
                break
            # Of the same user.
            self._heard(*marshal.loads(self._received[begin:end]))  # noqa: S302
            begin = end + _LENGTH.size
        del self._received[: begin - _LENGTH.size]

    def connection_lost(self, exc: Exception | None) -> None:
        self.ended.set_result(None)

    def send(self, *frame: Any) -> None:
        """Send, unless the other end is gone."""
        if not self._sent:
            self._loop.call_soon(self._flush)
        data = marshal.dumps(frame)
        self._sent += (_LENGTH.pack(len(data)), data)

    def close(self) -> None:
        """Send what is left, and close it."""
        self._flush()
        if self._transport is not None:
            self._transport.close()

    def _flush(self) -> None:
        if self._sent and self._transport is not None and not self._transport.is_closing():
            self._transport.write(b"".join(self._sent))
        self._sent.clear()


# -- the one that asks -------------------------------------------------------------------------------------


class RemoteState:
    """The state database that another process holds: ``durable.State``."""

    def __init__(self, end: socket.socket, workspace: Path) -> None:
        """Ask over a connected socket; ``workspace`` is how this process names the folder."""
        self._end = end
        self._top = f"{os.path.abspath(workspace)}/"  # noqa: PTH100 - links stay as they are named
        self._line: _Line | None = None
        self._asked: dict[int, asyncio.Future[Any]] = {}
        self._next = 0

    @contextlib.asynccontextmanager
    async def opened(self) -> AsyncIterator[RemoteState]:
        """Return it, once it reads; the connection lasts as long as the process."""
        if self._line is None:
            self._end.setblocking(False)
            loop = asyncio.get_running_loop()
            _, self._line = await loop.create_unix_connection(lambda: _Line(self._heard), sock=self._end)
            self._line.ended.add_done_callback(self._lost)
        yield self

    async def aclose(self) -> None:
        """Close the connection."""
        if self._line is None:
            self._end.close()
            return
        self._line.close()
        await asyncio.wait([self._line.ended])

    def _heard(self, number: int, *outcome: Any) -> None:
        done = self._asked.pop(number, None)
        if done is not None and not done.done():
            _resolve(done, outcome)

    def _lost(self, _: object) -> None:
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
        if self._line is None or self._line.ended.done():
            raise _gone()
        self._next += 1
        done = self._asked[self._next] = asyncio.get_running_loop().create_future()
        self._line.send(self._next, *what)
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
    lines = set[_Served]()

    def line() -> _Served:
        lines.add(made := _Served(state, changed))
        made.ended.add_done_callback(lambda _: lines.discard(made))
        return made

    (folder / SOCKET).unlink(missing_ok=True)
    end = socket.socket(socket.AF_UNIX)
    with _short(folder) as path:
        end.bind(path)
    (folder / SOCKET).chmod(0o600)
    server = await asyncio.get_running_loop().create_unix_server(line, sock=end)
    try:
        yield
    finally:
        server.close()
        (folder / SOCKET).unlink(missing_ok=True)
        for each in lines:
            each.close()
        if lines:
            await asyncio.wait([each.ended for each in lines])


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
    loop = asyncio.get_running_loop()
    _, line = await loop.create_unix_connection(lambda: _Served(state, changed), sock=end)
    try:
        await asyncio.wait([line.ended])
        if line.asked:
            await asyncio.wait(line.asked)
    finally:
        line.close()


class _Served(_Line):
    """The end of whoever asks."""

    def __init__(self, state: StateWriter, changed: Changed) -> None:
        super().__init__(self._ask)
        self._state, self._changed = state, changed
        self.asked: set[asyncio.Future[Any]] = set()

    def _ask(self, number: int, kind: str, *arguments: Any) -> None:
        try:
            done = _begin(self._state, self._changed, kind, arguments)
        except StateUnavailable as error:
            self.send(number, "unavailable", str(error), error.hint)
            return
        self.asked.add(done)
        done.add_done_callback(partial(self._answer, number))

    def _answer(self, number: int, done: asyncio.Future[Any]) -> None:
        self.asked.discard(done)
        if done.cancelled():
            return
        error = done.exception()
        match error:
            case None:
                self.send(number, "is", done.result())
            case Conflict():
                self.send(number, "conflict", str(error))
            case OSError():
                self.send(number, "disk", error.errno or 0, error.strerror or str(error))
            case StateUnavailable():
                self.send(number, "unavailable", str(error), error.hint)
            case _:
                self.send(number, "unavailable", f"{type(error).__name__}: {error}", "")


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
