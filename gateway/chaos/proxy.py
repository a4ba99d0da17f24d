"""A TCP proxy to break connections with: cut, fall silent, refuse, delay, and mend again."""

from __future__ import annotations

import asyncio
from contextlib import suppress

from gateway.chaos.ports import KeptPort


class Proxy:
    """Forwards a port of its own to ``target``. ``async with Proxy(port) as proxy`` opens and closes it."""

    def __init__(self, target: int, *, host: str = "127.0.0.1") -> None:
        self._target, self._host = target, host
        self._server: asyncio.Server | None = None
        self._pairs: list[tuple[asyncio.StreamWriter, asyncio.StreamWriter]] = []
        self._pumps: set[asyncio.Task[None]] = set()
        self._flow = asyncio.Event()
        self._flow.set()
        self._changed = asyncio.Event()
        self._kept_port = KeptPort()
        self.port = self._kept_port.port
        self.delay_s = 0.0

    @property
    def connections(self) -> int:
        """How many connections are open, in the order in which they came."""
        return len(self._pairs)

    async def __aenter__(self) -> Proxy:
        await self.resume()
        return self

    async def __aexit__(self, *_: object) -> None:
        await self.refuse()
        self.cut()
        for pump in self._pumps:
            pump.cancel()
        await asyncio.gather(*self._pumps, return_exceptions=True)
        self._kept_port.close()

    def cut(self, *numbers: int) -> None:
        """Reset the connections of these numbers (0 is the oldest); all where none is named."""
        for number in sorted(numbers or range(len(self._pairs)), reverse=True):
            pair = self._pairs.pop(number)
            for writer in pair:
                writer.transport.abort()
        self._changed.set()

    def black_hole(self) -> None:
        """Pass nothing on in either direction, open connections included, and close none."""
        self._flow.clear()

    def lead_to(self, target: int) -> None:
        """Forward connections that come from now on to another port, as one before several nodes does."""
        self._target = target

    async def refuse(self) -> None:
        """Accept no new connection."""
        if self._server is not None:
            self._server.close()
            self._server = None

    async def resume(self) -> None:
        """Forward again, and accept connections."""
        self._flow.set()
        if self._server is None:
            self._server = await asyncio.start_server(self._accept, "127.0.0.1", self.port)

    async def connected(self, count: int) -> None:
        """Return when at least ``count`` connections are open."""
        while len(self._pairs) < count:
            self._changed.clear()
            await self._changed.wait()

    async def _accept(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        try:
            far_reader, far_writer = await asyncio.open_connection(self._host, self._target)
        except OSError:
            writer.transport.abort()
            return
        pair = (writer, far_writer)
        self._pairs.append(pair)
        self._changed.set()
        for source, sink in ((reader, far_writer), (far_reader, writer)):
            pump = asyncio.create_task(self._pump(source, sink, pair))
            self._pumps.add(pump)
            pump.add_done_callback(self._pumps.discard)

    async def _pump(
        self,
        source: asyncio.StreamReader,
        sink: asyncio.StreamWriter,
        pair: tuple[asyncio.StreamWriter, asyncio.StreamWriter],
    ) -> None:
        with suppress(OSError):
            while data := await source.read(65536):
                await self._flow.wait()
                if self.delay_s:
                    await asyncio.sleep(self.delay_s)
                sink.write(data)
                await sink.drain()
            # An end of stream is hidden in the hole, too.
            await self._flow.wait()
        sink.close()
        if pair in self._pairs:
            self._pairs.remove(pair)
            self._changed.set()
