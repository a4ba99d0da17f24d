"""A TCP proxy to break connections with: cut, silence, refuse, delay, throttle, swallow, and mend again."""

from __future__ import annotations

import asyncio
import random
from collections import deque
from collections.abc import Sequence
from contextlib import suppress

from tests.support.ports import KeptPort

# So much may be on its way in one direction of a connection: beyond it the sender has to wait.
_UNDER_WAY_BYTES = 2**18
_READ_BYTES, _PIECE_BYTES = 2**16, 512


# What may be done to a line, each by one word: see ``break_line``.
LINES = ("cut", "deaf", "mute", "silence", "delay", "throttle")
# Of a line that is slow: how much later a piece arrives, up to how much more, and what gets through.
DELAY_S, JITTER_S, NARROW_BYTES_PER_S = 2.0, 1.0, 2000


class Way:
    """One direction of everything that goes through a proxy: to the far end, or back.

    ``delay_s`` and ``jitter_s``: each piece arrives so much later, and up to so much more, in its order.
    ``bytes_per_s``: what all connections together get through; 0: as much as there is. ``swallows``: what
    is sent is taken, and arrives nowhere, which neither end is told.
    """

    def __init__(self) -> None:
        self.delay_s = self.jitter_s = 0.0
        self.bytes_per_s = 0
        self.swallows = False
        self._free_at = 0.0

    @property
    def piece_bytes(self) -> int:
        return _PIECE_BYTES if self.bytes_per_s else _READ_BYTES

    def mend(self) -> None:
        self.delay_s = self.jitter_s = 0.0
        self.bytes_per_s = 0
        self.swallows = False

    def arrives_at(self, now: float, size: int) -> float:
        """Return when ``size`` bytes arrive that are sent now; the line is taken for as long."""
        takes_s = size / self.bytes_per_s if self.bytes_per_s else 0.0
        self._free_at = (max(now, self._free_at) if takes_s else now) + takes_s
        return self._free_at + self.delay_s + random.uniform(0.0, self.jitter_s)


class Proxy:
    """Forwards a port of its own to ``target``. ``async with Proxy(port) as proxy`` opens and closes it.

    ``there`` and ``back`` are the two directions, seen from who connects.
    """

    def __init__(self, *targets: int, host: str = "127.0.0.1") -> None:
        self._targets: Sequence[int] = targets
        self._host = host
        self._server: asyncio.Server | None = None
        self._pairs: list[_Pair] = []
        self._pumps: set[asyncio.Task[None]] = set()
        self._flow = asyncio.Event()
        self._flow.set()
        self._changed = asyncio.Event()
        self._kept_port = KeptPort()
        self.port = self._kept_port.port
        self.there, self.back = Way(), Way()

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
            self._pairs.pop(number).abort()
        self._changed.set()

    def black_hole(self) -> None:
        """Pass nothing on in either direction, open connections included, and close none."""
        self._flow.clear()

    def lead_to(self, *targets: int) -> None:
        """Forward connections that come from now on to the first of these ports that answers."""
        self._targets = targets

    async def refuse(self) -> None:
        if self._server is not None:
            self._server.close()
            self._server = None

    async def resume(self) -> None:
        """Forward everything again, and accept connections; one of which bytes were swallowed is reset."""
        self.there.mend()
        self.back.mend()
        # The bytes behind a gap would be taken for something else.
        for pair in [pair for pair in self._pairs if pair.torn]:
            self._pairs.remove(pair)
            pair.abort()
        self._flow.set()
        if self._server is None:
            self._server = await asyncio.start_server(self._accept, "127.0.0.1", self.port)

    async def connected(self, count: int) -> None:
        """Return when at least ``count`` connections are open."""
        while len(self._pairs) < count:
            self._changed.clear()
            await self._changed.wait()

    async def _accept(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        far = await self._reach()
        if far is None:
            writer.transport.abort()
            return
        far_reader, far_writer = far
        pair = _Pair(writer, far_writer)
        self._pairs.append(pair)
        self._changed.set()
        for way, source, sink in ((self.there, reader, far_writer), (self.back, far_reader, writer)):
            pump = asyncio.create_task(self._pump(way, source, sink, pair))
            self._pumps.add(pump)
            pump.add_done_callback(self._pumps.discard)

    async def _reach(self) -> tuple[asyncio.StreamReader, asyncio.StreamWriter] | None:
        for target in self._targets:
            with suppress(OSError):
                return await asyncio.open_connection(self._host, target)
        return None

    async def _pump(
        self, way: Way, source: asyncio.StreamReader, sink: asyncio.StreamWriter, pair: _Pair
    ) -> None:
        line = _Line()
        carrying = asyncio.create_task(self._carry(line, sink))
        try:
            with suppress(OSError):
                while not line.ended and (data := await source.read(way.piece_bytes)):
                    await self._flow.wait()
                    if way.swallows:
                        pair.torn = True
                    elif not pair.torn:
                        await line.put(way.arrives_at(asyncio.get_running_loop().time(), len(data)), data)
            # An end of stream is hidden in the hole, too.
            await self._flow.wait()
            if way.swallows:
                pair.torn = True
                return
            line.end()
            await carrying
        finally:
            carrying.cancel()
        sink.close()
        if pair in self._pairs and not pair.torn:
            self._pairs.remove(pair)
            self._changed.set()

    async def _carry(self, line: _Line, sink: asyncio.StreamWriter) -> None:
        """Hand on what is on a line as it comes due."""
        try:
            while (piece := await line.next()) is not None:
                at, data = piece
                if (wait_s := at - asyncio.get_running_loop().time()) > 0:
                    await asyncio.sleep(wait_s)
                await self._flow.wait()
                sink.write(data)
                await sink.drain()
        except OSError:
            line.end()


def break_line(proxy: Proxy, how: str) -> None:
    """Do to a line what one of ``LINES`` says, until ``resume``; another word is none of it.

    ``cut``: every connection is reset. ``deaf``: who connects hears nothing, and is heard. ``mute``: it is
    not heard, and hears. ``silence``: neither. ``delay``, ``throttle``: everything is late, or takes long.
    """
    both = (proxy.there, proxy.back)
    if how == "cut":
        proxy.cut()
    elif how == "silence":
        proxy.black_hole()
    elif how in ("deaf", "mute"):
        both[how == "deaf"].swallows = True
    for way in both if how == "delay" else ():
        way.delay_s, way.jitter_s = DELAY_S, JITTER_S
    for way in both if how == "throttle" else ():
        way.bytes_per_s = NARROW_BYTES_PER_S


class _Pair:
    def __init__(self, near: asyncio.StreamWriter, far: asyncio.StreamWriter) -> None:
        self._ends = (near, far)
        self.torn = False

    def abort(self) -> None:
        for end in self._ends:
            end.transport.abort()


class _Line:
    """What is under way in one direction of one connection, in order, each piece with when it arrives."""

    def __init__(self) -> None:
        self._pieces: deque[tuple[float, bytes]] = deque()
        self._size = 0
        self.ended = False
        self._moved = asyncio.Event()

    async def put(self, at: float, data: bytes) -> None:
        """Add a piece; wait while too much is under way."""
        self._pieces.append((at, data))
        self._size += len(data)
        self._moved.set()
        while self._size > _UNDER_WAY_BYTES and not self.ended:
            self._moved.clear()
            await self._moved.wait()

    def end(self) -> None:
        self.ended = True
        self._moved.set()

    async def next(self) -> tuple[float, bytes] | None:
        """Take the next piece; None at the end."""
        while not self._pieces:
            if self.ended:
                return None
            self._moved.clear()
            await self._moved.wait()
        piece = self._pieces.popleft()
        self._size -= len(piece[1])
        self._moved.set()
        return piece
