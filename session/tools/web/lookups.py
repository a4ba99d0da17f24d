"""Looks up names in threads of its own: a name server that never answers takes none that others wait for."""

from __future__ import annotations

import asyncio
import socket
import threading
from collections.abc import Sequence
from contextlib import suppress
from typing import Final

from session.errors import ToolError

MAX_LOOKUPS: Final = 4
WAIT_S: Final = 5.0


class Lookups:
    """The system's own lookups, so many at once; one that nobody waits for any more keeps its place.

    The event loop's are done by a few threads for the whole process: two names that hang would hold up all
    its connections. No lookup can be ended: a thread here is a daemon, for the end of the process.
    """

    def __init__(self, *, most: int = MAX_LOOKUPS, wait_s: float = WAIT_S) -> None:
        """Look up ``most`` names at once; a further one waits ``wait_s`` for its turn."""
        self._places = asyncio.Semaphore(most)
        self._wait_s = wait_s

    async def __call__(self, host: str, port: int) -> Sequence[str]:
        """Return the addresses that the system has for a name, best first.

        Raises:
            OSError: there are none.
            UnicodeError: it is no name.
            ToolError: all threads are taken by names that do not come.
        """
        try:
            async with asyncio.timeout(self._wait_s):
                await self._places.acquire()
        except TimeoutError as error:
            raise _none_free() from error
        loop = asyncio.get_running_loop()
        found: asyncio.Future[Sequence[str]] = loop.create_future()

        def deliver(addresses: Sequence[str], error: Exception | None) -> None:
            self._places.release()
            if found.done():
                return
            if error is None:
                found.set_result(addresses)
            else:
                found.set_exception(error)

        def look() -> None:
            addresses: Sequence[str] = ()
            failed: Exception | None = None
            try:
                rows = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM)
                addresses = [str(row[4][0]) for row in rows]
            except Exception as error:  # noqa: BLE001 - it belongs to whoever awaits the future
                failed = error
            # The loop may have ended long before the lookup.
            with suppress(RuntimeError):
                loop.call_soon_threadsafe(deliver, addresses, failed)

        try:
            threading.Thread(target=look, name="web-lookup", daemon=True).start()
        except RuntimeError as error:
            self._places.release()
            raise _none_free() from error
        return await found


def _none_free() -> ToolError:
    return ToolError("names cannot be looked up now; try again later")
