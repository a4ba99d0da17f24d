"""Runs a confined command to its end, or ends it; keeps both ends of what it says."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import dataclass, field

from durable import NOTHING, PIPE, spawn_async
from session.tools.sandbox.bubblewrap import Bubblewrap
from session.tools.sandbox.rules import NoSandbox, Rules

MAX_OUTPUT_BYTES = 64 * 1024
_CHUNK = 64 * 1024
_GRACE_S = 5.0
_NOTE_BYTES = 64


class Output:
    """What a command wrote to one of its outputs: the first and the last bytes, however much it was."""

    def __init__(self, most_bytes: int) -> None:
        self.bytes = 0
        self._half = most_bytes // 2
        self._head = bytearray()
        self._tail = bytearray()

    def add(self, data: bytes) -> None:
        """Take what came next."""
        self.bytes += len(data)
        fits = self._half - len(self._head)
        self._head += data[:fits]
        self._tail += data[fits:] if fits > 0 else data
        del self._tail[: -self._half]

    def text(self) -> str:
        """Return it as text, with a line where the middle was left out."""
        left_out = self.bytes - len(self._head) - len(self._tail)
        if not left_out:
            return (self._head + self._tail).decode("utf-8", "replace")
        ends = (part.decode("utf-8", "replace") for part in (self._head, self._tail))
        return f"\n[… {left_out} bytes left out …]\n".join(ends)


def shortened(text: str, most_bytes: int) -> str:
    """Return ``text`` within ``most_bytes`` of UTF-8: both ends, and a line where the middle was."""
    data = text.encode("utf-8", "replace")
    if len(data) <= most_bytes:
        return text
    half = (most_bytes - _NOTE_BYTES) // 2
    ends = (part.decode("utf-8", "ignore") for part in (data[:half], data[-half:]))
    return f"\n[… {len(data) - 2 * half} bytes left out …]\n".join(ends)


@dataclass(frozen=True, slots=True)
class Outcome:
    """How a command ended: its exit code, 128 and the signal that ended it; None: its time was up."""

    exit_code: int | None
    out: Output = field(repr=False)
    err: Output = field(repr=False)


async def run(
    sandbox: Bubblewrap,
    command: Sequence[str],
    rules: Rules,
    *,
    timeout_s: float,
    most_bytes: int = MAX_OUTPUT_BYTES,
) -> Outcome:
    """Run a command, and return when it and everything that it started has ended.

    Cancelled, it ends all of that first. Of each output ``most_bytes`` are kept. It reads nothing.

    Raises:
        NoSandbox: it cannot be confined or started; nothing was run.
    """
    wrapped = sandbox.wrap(command, rules)
    try:
        process = await spawn_async(
            wrapped.argv, stdin=NOTHING, stderr=PIPE, env=wrapped.env, cwd=wrapped.cwd
        )
    except OSError as error:
        raise NoSandbox(f"the command was not started: {error.strerror}", hint="see the log") from error
    out, err = Output(most_bytes), Output(most_bytes)
    ended = False
    try:
        with suppress(TimeoutError):
            async with asyncio.timeout(timeout_s):
                await _read(process, out, err)
                ended = True
    finally:
        if not ended:
            # Whoever cancels again waits for the end all the same: nothing of it may outlive the turn.
            await asyncio.shield(_end(process, out, err))
    return Outcome(process.returncode if ended else None, out, err)


async def _read(process: asyncio.subprocess.Process, out: Output, err: Output) -> None:
    async with asyncio.TaskGroup() as group:
        group.create_task(_drain(process.stdout, out), name="sandbox-out")
        group.create_task(_drain(process.stderr, err), name="sandbox-err")
    await process.wait()


async def _drain(stream: asyncio.StreamReader | None, output: Output) -> None:
    while stream is not None and (data := await stream.read(_CHUNK)):
        output.add(data)


async def _end(process: asyncio.subprocess.Process, out: Output, err: Output) -> None:
    """Have the launcher end everything; one that does not is killed, and what it watches over with it."""
    with suppress(ProcessLookupError):
        process.terminate()
    try:
        async with asyncio.timeout(_GRACE_S):
            await _read(process, out, err)
    except TimeoutError:
        with suppress(ProcessLookupError):
            process.kill()
        await process.wait()
