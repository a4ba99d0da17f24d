"""Takes letters from the queues of a box: one channel per queue, handed over only by closing it.

The broker closes a channel whose oldest letter is half an hour old. Each channel is therefore closed
and opened again well before; its letters come back in order, as new objects. The same brings back the
letters that were declined because they were too large to be held beside the others.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable, Collection
from contextlib import AsyncExitStack, asynccontextmanager
from dataclasses import dataclass

import structlog

import durable
from durable import first_of
from gateway.errors import MailboxDown
from gateway.queue.held import HeldBytes
from gateway.queue.mailbox import INBOUND, InMemory, Letter
from gateway.queue.rabbitmq.alongside import alongside
from gateway.queue.rabbitmq.connection import AccessRefused, Link, NotFound
from gateway.queue.rabbitmq.presence import Presence
from gateway.queue.rabbitmq.share import Share, waits_behind
from gateway.queue.rabbitmq.stream import LetterBuffer, Stream
from gateway.queue.rabbitmq.topology import QueueKind, grows_live
from gateway.queue.rabbitmq.window import FIRST_WINDOW, FIXED_WINDOW, next_window

ATTACH_TIMEOUT_S = 10.0
RETRY_S = 1.0
_log = structlog.get_logger()


class QueueReader:
    """Opens the queues of boxes on the consuming connection, again and again until the context is left."""

    def __init__(
        self,
        attached: Callable[[], Awaitable[Link]],
        current: Callable[[], Link | None],
        mend: Callable[[str], Awaitable[None]],
        kind_of: Callable[[str], QueueKind | None],
        bytes_held: HeldBytes,
        *,
        is_proven: Callable[[], bool],
        renew_after_s: float,
        handover_s: float,
    ) -> None:
        self._attached, self._current, self._mend = attached, current, mend
        self._kind_of, self._bytes_held, self._is_proven = kind_of, bytes_held, is_proven
        self._renew_after_s, self._handover_s = renew_after_s, handover_s
        self._streams: set[Stream] = set()
        # A window that had grown stays as it was while letters are out: they come back at the next opening.
        self._windows: dict[str, int] = {}
        self._bound_told = False
        self._refused: set[str] = set()

    def out(self, box: str) -> int:
        """How many letters of a box are this process's work, those included that it declined for now."""
        return sum(stream.out for stream in self._streams if stream.box == box)

    def in_memory(self) -> InMemory:
        """Say what this process holds, and how much it may; of each box the largest window."""
        windows: dict[str, int] = {}
        for stream in self._streams:
            windows[stream.box] = max(stream.window, windows.get(stream.box, 0))
        letters = sum(stream.held for stream in self._streams)
        return InMemory(letters, self._bytes_held.total, self._bytes_held.max_bytes, windows)

    @asynccontextmanager
    async def take(
        self, box: str, queues: list[str], presence: Presence | None = None
    ) -> AsyncIterator[AsyncIterator[Letter]]:
        """Keep the queues open while the context is; entered once each was tried, where the broker is up.

        With ``presence`` the queues are the partitions, in order, and shared out among daemons; where that or
        a queue's part of it fails, the letters end with its error.
        """
        buffer = LetterBuffer()
        tried = {queue: asyncio.Event() for queue in queues}
        feeds = {
            f"take {queue}": self._feed(
                _Feed(box, queue, buffer, tried[queue], _share(presence, number, queue))
            )
            for number, queue in enumerate(queues)
        }
        try:
            async with AsyncExitStack() as stack:
                if presence is not None:
                    await stack.enter_async_context(presence.taking(buffer.end))
                await stack.enter_async_context(alongside(feeds, buffer.end))
                if self._current() is not None:
                    await all_set(list(tried.values()), ATTACH_TIMEOUT_S)
                yield buffer
        finally:
            buffer.end()

    async def _feed(self, feed: _Feed) -> None:
        while True:
            link = await self._attached()
            if feed.share is not None:
                await feed.share.wanted(feed.tried)
                if link.ended.is_set():
                    continue
            pause_s = 0.0
            try:
                await self._open_once(link, feed)
            except NotFound:
                # The queue was deleted, by hand or with a reset of the broker: nobody else makes it again.
                pause_s = await self._mended(feed.box)
            except AccessRefused as error:
                # Another process takes from it: wait for its end.
                pause_s = RETRY_S
                if error.hint:
                    self._tell_refused(feed.box, error)
            except MailboxDown as error:
                pause_s = RETRY_S
                if not link.ended.is_set():
                    _log.warning("queue.not_opened", queue=feed.queue, error=str(error))
            feed.tried.set()
            await asyncio.sleep(pause_s * durable.uniform(0.5, 1.0))

    async def _open_once(self, link: Link, feed: _Feed) -> None:
        queue, share = feed.queue, feed.share
        channel = await link.channel()
        live = grows_live(self._kind_of(queue), link.version)
        window = self._windows.get(queue, FIRST_WINDOW) if live else FIXED_WINDOW
        stream = Stream(
            *(feed.box, queue, feed.buffer, channel, self._bytes_held),
            window=window,
            live=live,
            is_proven=self._is_proven,
        )
        self._streams.add(stream)
        try:
            await stream.widen(window)
            if share is not None:
                share.entering(stream)
            # Inbound queues have a single active consumer; elsewhere exclusiveness keeps the order.
            await channel.consume(queue, stream.deliver, exclusive=feed.box != INBOUND)
            self._refused.discard(feed.box)
            if share is not None:
                share.entered()
            feed.tried.set()
            while not channel.ended.is_set():
                if share is not None and share.is_time(stream, self._handover_s):
                    if await share.makes_way(link, stream, self._handover_s):
                        return
                elif await self._is_to_be_renewed(stream, channel.ended, share):
                    await self._renew(link, stream, share)
                    return
            if not link.ended.is_set():
                _log.info("queue.channel_closed", queue=queue, cause=channel.cause)
        finally:
            self._streams.discard(stream)
            self._windows.pop(queue, None)
            if stream.held or stream.declined:
                self._windows[queue] = stream.window
            stream.end()
            try:
                # On a quorum queue nothing but the channel's end gives back what is unsettled in its order.
                await channel.close()
            finally:
                if share is not None:
                    share.left()

    async def _is_to_be_renewed(self, stream: Stream, ended: asyncio.Event, share: Share | None) -> bool:
        """Wait until something may have changed; True: the queue is to be opened anew."""
        due_s = self._due_s(stream)
        if due_s <= 0:
            return True
        if not stream.full and not stream.declined:
            stream.stalled.clear()
            changed = [share.changed()] if share is not None else []
            await first_of(ended.wait(), stream.stalled.wait(), *changed, timeout_s=due_s)
            return False
        if not stream.declined and await self._grown(stream):
            return False
        if stream.declined:
            self._tell_bound(stream)
        # What frees bytes may be letters of other queues, so that nothing of this one tells.
        await first_of(ended.wait(), timeout_s=min(due_s, RETRY_S))
        return stream.takes_again()

    async def _grown(self, stream: Stream) -> bool:
        """Widen a window that is full, unless it is fixed or the letters of this process take their bound."""
        window = next_window(stream.window, stream.cost, self._bytes_held.total)
        if window == stream.window:
            self._tell_bound(stream)
            return False
        if not stream.live:
            return False
        self._bound_told = False
        await stream.widen(window)
        _log.info("queue.window_grown", queue=stream.queue, window=window, bytes=self._bytes_held.total)
        return True

    def _tell_bound(self, stream: Stream) -> None:
        """Say once in the log that the bytes are the bound, until a window grows again."""
        if not self._bound_told:
            self._bound_told = True
            total = self._bytes_held.total
            _log.warning("queue.window_bounded", queue=stream.queue, window=stream.window, bytes=total)

    def _tell_refused(self, box: str, error: AccessRefused) -> None:
        """Say once in the log that this user may take nothing from a box, until it may."""
        if box not in self._refused:
            self._refused.add(box)
            _log.error("queue.refused", box=box, error=str(error), hint=error.hint)

    async def _mended(self, box: str) -> float:
        try:
            await self._mend(box)
        except MailboxDown as error:
            _log.warning("queue.missing", box=box, error=str(error))
        return RETRY_S

    def _due_s(self, stream: Stream) -> float:
        oldest_at, now = stream.oldest_at(), asyncio.get_running_loop().time()
        return self._renew_after_s - (now - oldest_at if oldest_at is not None else 0)

    async def _renew(self, link: Link, stream: Stream, share: Share | None) -> None:
        """Prepare the closing: at once where the letters come back here, else when the running ones ended."""
        waited_for = await waits_behind(link, stream.queue) > 0
        if waited_for and share is not None:
            waited_for = not await share.stands_alone(link)
        if waited_for:
            await stream.hand_over(self._handover_s)
        _log.info(
            "queue.renewed",
            queue=stream.queue,
            handed_over=waited_for,
            unsettled=stream.held,
            declined=stream.declined,
        )


@dataclass(frozen=True, slots=True)
class _Feed:
    """One queue of a box that is taken from, and whether somebody tried to open it."""

    box: str
    queue: str
    buffer: LetterBuffer
    tried: asyncio.Event
    share: Share | None


async def all_set(events: Collection[asyncio.Event], timeout_s: float) -> None:
    """Return when all of the events are set, or the time is over."""
    try:
        async with asyncio.timeout(timeout_s):
            for event in events:
                await event.wait()
    except TimeoutError:
        # A queue that another process still holds must not keep this one from serving the others.
        _log.warning("queue.slow_to_open")


def _share(presence: Presence | None, partition: int, queue: str) -> Share | None:
    return Share(presence, partition, queue) if presence is not None else None
