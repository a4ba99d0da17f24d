"""A server as a process: started in a group of its own, read within bounds, ended with its children."""

from __future__ import annotations

import asyncio
import os
import re
import shutil
import signal
from collections.abc import AsyncIterator, Awaitable, Callable, Mapping, Sequence
from contextlib import asynccontextmanager, suppress
from pathlib import Path
from typing import Final
from urllib.parse import quote

import structlog

from durable import PIPE, make_folder, spawn_async
from session.mcp.spec import Flooded, ServerFailed, ServerGone, ServerSpec
from session.models.failure import cleaned
from session.tools.sandbox import Wrapped

# Given a server, its command with the program found, and its folder, returns what runs it confined.
Launch = Callable[[ServerSpec, Sequence[str], Path], Awaitable[Wrapped]]

MAX_LINE_BYTES: Final = 4 * 2**20
CHUNK_BYTES: Final = 64 * 1024
# What a server may take to end by itself once nobody writes to it, and once it was told to.
GRACE_S: Final = 1.0
MAX_LOGGED_CHARS: Final = 500
MAX_LOGGED_LINES: Final = 200
# Of stderr: what is kept, and what of it is shown.
MAX_KEPT_BYTES: Final = 16 * 1024
MAX_SHOWN_CHARS: Final = 400
MIN_SECRET_CHARS: Final = 4
HIDDEN: Final = "***"
CURE: Final = (
    "it runs in a sandbox; add what it needs to its table: absolute paths to readable, variables to env, "
    "network = true for the network (docs/tools.md)"
)
_UNFOUND = re.compile(
    r"no such file|not found|cannot find|can't (open|find)|permission denied", re.IGNORECASE
)
_PATH = re.compile(r"/[^\s'\":,;()\[\]]+")
log = structlog.get_logger("mcp")


async def unconfined(spec: ServerSpec, argv: Sequence[str], folder: Path) -> Wrapped:
    """Run a command as it is."""
    path = os.environ.get("PATH", os.defpath)
    return Wrapped(argv, {"PATH": path, "HOME": str(folder), "TMPDIR": str(folder), **spec.env}, folder)


class ServerProcess:
    """A running server; ``lines`` and ``write`` are used by one task each."""

    def __init__(self, process: asyncio.subprocess.Process, name: str) -> None:
        self._process = process
        self._name = name
        self._kept = bytearray()
        self._drained = asyncio.Event()

    async def lines(self) -> AsyncIterator[bytes]:
        """Yield what it says, line by line, until it says nothing more.

        Raises:
            Flooded: a line is over ``MAX_LINE_BYTES``.
        """
        reader = self._process.stdout
        assert reader is not None
        pieces: list[bytes] = []
        size = 0
        while chunk := await reader.read(CHUNK_BYTES):
            head, *rest = chunk.split(b"\n")
            for after in rest:
                yield b"".join([*pieces, head])
                pieces, size, head = [], 0, after
            pieces.append(head)
            size += len(head)
            if size > MAX_LINE_BYTES:
                raise Flooded(f"it sent a message of over {MAX_LINE_BYTES // 2**20} MB")

    async def write(self, data: bytes) -> None:
        """Send it bytes.

        Raises:
            ServerGone: it reads no more.
        """
        writer = self._process.stdin
        assert writer is not None
        try:
            writer.write(data)
            await writer.drain()
        except (OSError, RuntimeError) as error:
            raise ServerGone(await self.farewell()) from error

    async def farewell(self) -> str:
        """Say in words how it ended, which it is about to do."""
        with suppress(TimeoutError):
            async with asyncio.timeout(GRACE_S):
                await self._process.wait()
        code = self._process.returncode
        if code is None:
            return "it closed its output"
        if code < 0:
            with suppress(ValueError):
                return f"it was killed by {signal.Signals(-code).name}"
        return f"it exited with code {code}"

    async def end(self, *, at_once: bool) -> None:
        """End it and everything it started: by closing its input, then by asking, then by force."""
        if self._process.stdin is not None:
            self._process.stdin.close()
        if not at_once:
            for number in (None, signal.SIGTERM):
                if number is not None:
                    self._signal(number)
                with suppress(TimeoutError):
                    async with asyncio.timeout(GRACE_S):
                        await self._process.wait()
                        break
        # What it started may outlive it, in its group.
        self._signal(signal.SIGKILL)
        with suppress(TimeoutError):
            async with asyncio.timeout(GRACE_S):
                # A pipe that is full keeps its descriptor until somebody reads it.
                while self._process.stdout is not None and await self._process.stdout.read(CHUNK_BYTES):
                    pass
                await self._process.wait()

    async def drain_errors(self) -> None:
        """Read what it writes to stderr for ever, and log the beginning, where anybody wants to know."""
        reader = self._process.stderr
        assert reader is not None
        logged = 0
        while chunk := await reader.read(CHUNK_BYTES):
            self._kept += chunk
            del self._kept[:-MAX_KEPT_BYTES]
            for line in chunk.decode("utf-8", "replace").splitlines():
                logged += 1
                if logged <= MAX_LOGGED_LINES:
                    log.debug("mcp.server_said", server=self._name, text=line[:MAX_LOGGED_CHARS])
        self._drained.set()

    async def explain(self, fault: ServerFailed, spec: ServerSpec) -> None:
        """Add to ``fault`` the end of what the process wrote to stderr, and the cure for that."""
        with suppress(TimeoutError):
            async with asyncio.timeout(GRACE_S if self._process.returncode is not None else 0):
                await self._drained.wait()
        fault.stderr, fault.cure = await asyncio.to_thread(_last_words, bytes(self._kept), spec.env)

    def _signal(self, number: signal.Signals) -> None:
        with suppress(ProcessLookupError, PermissionError):
            os.killpg(self._process.pid, number)


@asynccontextmanager
async def running(spec: ServerSpec, folder: Path, launch: Launch) -> AsyncIterator[ServerProcess]:
    """Keep a server running while the context is open; left by an error, it is ended by force.

    Raises:
        ServerFailed: it cannot be started.
    """
    argv = await asyncio.to_thread(_prepared, spec, folder)
    start = await launch(spec, argv, folder)
    try:
        process = await spawn_async(start.argv, stderr=PIPE, env=start.env, cwd=start.cwd, apart=True)
    except (OSError, ValueError) as error:
        raise ServerFailed(f"{argv[0]} cannot be started: {_cause(error)}") from error
    child = ServerProcess(process, spec.name)
    errors = asyncio.create_task(child.drain_errors(), name=f"mcp {spec.name} stderr")
    at_once = True
    try:
        yield child
        at_once = False
    except asyncio.CancelledError:
        # The daemon ends: a server may have something to put away.
        at_once = False
        raise
    finally:
        await child.end(at_once=at_once)
        errors.cancel()
        await asyncio.wait([errors])


def _prepared(spec: ServerSpec, folder: Path) -> Sequence[str]:
    try:
        make_folder(folder)
    except OSError as error:
        raise ServerFailed(f"its folder {folder} cannot be created: {_cause(error)}") from error
    name, *rest = spec.command
    program = shutil.which(name, path=spec.env.get("PATH"))
    if program is None:
        cure = "use its absolute path in command, or install it in a folder of PATH"
        raise ServerFailed(f"there is no program {name}", hint=cure)
    return [program, *rest]


def _last_words(written: bytes, env: Mapping[str, str]) -> tuple[str, str]:
    """Return the last lines without secrets, and the cure for what they say; for threads."""
    if len(written) == MAX_KEPT_BYTES:
        # A secret may be cut where the first line is.
        written = written.partition(b"\n")[2]
    text = written.decode("utf-8", "replace")
    # What is a path of this machine is no secret, and the cure has to name it.
    values = [value for value in env.values() if not (value.startswith("/") and os.path.lexists(value))]
    values += [word for value in values for word in value.split()]
    forms = {form for each in values for form in (each, quote(each, safe=""), repr(each)[1:-1])}
    for form in sorted(forms, key=len, reverse=True):
        if len(form) >= MIN_SECRET_CHARS:
            text = text.replace(form, HIDDEN)
    plain = "".join(char if char.isprintable() or char == "\n" else " " for char in text)
    lines = [line for each in plain.splitlines()[-MAX_LOGGED_LINES:] if (line := cleaned(each))]
    shown = " | ".join(lines[-4:])
    shown = shown if len(shown) <= MAX_SHOWN_CHARS else f"…{shown[1 - MAX_SHOWN_CHARS :]}"
    for line in lines:
        # The program that complains may stand first.
        for path in reversed(_PATH.findall(line)) if _UNFOUND.search(line) else ():
            if os.path.lexists(path):
                return (
                    shown,
                    f"{path} is not visible in the sandbox: add it, or its folder, to readable in its table",
                )
    return shown, CURE


def _cause(error: Exception) -> str:
    return (error.strerror if isinstance(error, OSError) else None) or type(error).__name__
