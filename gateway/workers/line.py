"""The line between a gateway and one of its workers: a pair of sockets, one JSON object a text line.

::

    to the worker    {"settings": {...}}  first of all
                     {"number": 1, "partitions": [0, 2, 4]}  which makes it this worker
                     {"do": "drain" | "end"}
                     {"ask": 7, "what": "trace", "with": {...}}
    from the worker  {"beat": 1}  {"standing": {...}}  {"ready": true}
                     {"failed": {...}}                       why it could not start, before it ends
                     {"answer": 7, "is": ...}  {"answer": 7, "fault": "..."}

No name in the file system, no port and no token: only these two processes hold it, and it ends with either.
"""

from __future__ import annotations

import asyncio
import json
import socket
from collections.abc import Mapping
from typing import Any, Final

import structlog

from gateway.errors import GatewayError

log = structlog.get_logger("line")

# The lanes of a process may be ten thousand; what counts its turns has some thousand samples.
MAX_LINE_BYTES: Final = 2**26


class TooLong(GatewayError):
    """What was to be said is longer than the other end takes."""


class Line:
    """One end of it; ``broken`` tells why nothing is heard any more where the other end is not gone."""

    def __init__(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self._reader = reader
        self._writer = writer
        self.broken = ""

    @classmethod
    async def of(cls, end: socket.socket) -> Line:
        """Take over one socket of the pair."""
        end.setblocking(False)
        return cls(*await asyncio.open_unix_connection(sock=end, limit=MAX_LINE_BYTES))

    def say(self, words: Mapping[str, Any]) -> None:
        """Send one object; where nobody listens any more it is lost.

        Raises:
            TooLong: nothing was sent.
        """
        if self._writer.is_closing():
            return
        text = encoded(words)
        if len(text) > MAX_LINE_BYTES:
            raise TooLong(f"{len(text)} bytes are too long; {MAX_LINE_BYTES} go over the line")
        self._writer.write(text)

    async def said(self) -> None:
        """Return once all is handed to the kernel; an end that is gone is no error."""
        try:
            await self._writer.drain()
        except OSError:
            return

    async def heard(self) -> dict[str, Any] | None:
        """Return the next object; None once the other end is gone, or what it says cannot be read."""
        if self.broken:
            return None
        try:
            text = await self._reader.readline()
        except OSError:
            return None
        except ValueError:
            self._break("it said more than one line holds")
            return None
        if not text.endswith(b"\n"):
            return None
        try:
            found = json.loads(text)
        except (ValueError, RecursionError):
            found = None
        if isinstance(found, dict):
            return found
        self._break("it said what is no JSON object")
        return None

    def _break(self, why: str) -> None:
        """End the hearing: what follows may be the rest of anything."""
        self.broken = why
        log.error("line.broken", error=why)

    def close(self) -> None:
        """End it."""
        self._writer.close()


def encoded(words: Mapping[str, Any]) -> bytes:
    """Write one object as a line."""
    # The standard library's JSON has lone surrogates, which keys may hold, and no bound on numbers.
    return json.dumps(words, default=str).encode() + b"\n"
