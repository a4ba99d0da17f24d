"""Reads the body of a request within its limits of size, time and memory."""

from __future__ import annotations

import asyncio
from dataclasses import dataclass

from starlette.types import Message, Receive, Scope

MAX_BYTES = 2 * 2**20
# What needs no token has no more to say than a token.
MAX_STRANGER_BYTES = 4 * 1024
WITHIN_S = 30.0
STRANGER_WITHIN_S = 10.0
# Sixty clients that each hold back the end of two mebibytes would cost 126 MB.
LARGE_BYTES = 64 * 1024
LARGE_AT_ONCE = 3


@dataclass(frozen=True, slots=True)
class BadBody:
    """Why a body is not read to its end."""

    status: int
    error: str
    hint: str


class Bodies:
    """Reads the bodies of one server; of those over 64 KiB three at a time, the others wait for them."""

    def __init__(self) -> None:
        self._large = asyncio.Semaphore(LARGE_AT_ONCE)

    async def read(self, scope: Scope, receive: Receive, *, stranger: bool) -> bytes | BadBody:
        """Return the whole body, or why not.

        That of a ``stranger``, whose request needs no token, may have 4 KiB and take ten seconds.
        """
        most, within_s = (MAX_STRANGER_BYTES, STRANGER_WITHIN_S) if stranger else (MAX_BYTES, WITHIN_S)
        reading = _Reading(most, declared(scope), self._large)
        try:
            async with asyncio.timeout(within_s):
                return await reading.read(receive)
        except TimeoutError:
            return reading.late()
        finally:
            reading.release()


class _Reading:
    """One body on its way."""

    def __init__(self, most: int, declared: int, large: asyncio.Semaphore) -> None:
        self._most = most
        self._declared = declared
        self._large = large
        self._seated = False
        self._waits = False

    async def read(self, receive: Receive) -> bytes | BadBody:
        """Keep what comes as long as it is not too much.

        The server reads the rest to its end: a connection that is reset hides the answer.
        """
        if self._declared > self._most:
            return self._too_large()
        await self._seat(self._declared)
        parts: list[bytes] = []
        size = 0
        while True:
            message = await receive()
            if message["type"] != "http.request":
                return BadBody(400, "the client disconnected", "")
            part = message.get("body", b"")
            size += len(part)
            if size > self._most:
                return self._too_large()
            await self._seat(size)
            parts.append(part)
            if not message.get("more_body", False):
                return b"".join(parts)

    async def _seat(self, size: int) -> None:
        if self._seated or size <= LARGE_BYTES:
            return
        self._waits = True
        await self._large.acquire()
        self._waits, self._seated = False, True

    def release(self) -> None:
        """Let another large body be read."""
        if self._seated:
            self._seated = False
            self._large.release()

    def late(self) -> BadBody:
        """Say what took too long."""
        if self._waits:
            return BadBody(503, "too many large uploads are in progress", "try again in a few seconds")
        return BadBody(408, "the request body was not received in time", "try again")

    def _too_large(self) -> BadBody:
        kib = self._most // 1024
        limit = f"{kib} KiB" if kib < 1024 else f"{kib // 1024} MiB"
        return BadBody(413, f"the request body is over {limit}", "send a smaller body")


def declared(scope: Scope) -> int:
    """Return the length that the headers name; 0 where they name none."""
    for name, value in scope["headers"]:
        if name == b"content-length" and value.isdigit():
            return int(value)
    return 0


def read_again(body: bytes, receive: Receive) -> Receive:
    """Give out a body that was read, then what comes behind it."""
    given = False

    async def again() -> Message:
        nonlocal given
        if given:
            return await receive()
        given = True
        return {"type": "http.request", "body": body, "more_body": False}

    return again
