"""Puts letters on the broker, each confirmed: one at a time per key, side by side over keys."""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager, suppress

import structlog

from durable import first_of
from gateway.errors import MailboxDown, MailboxError
from gateway.queue.rabbitmq.connection import (
    AccessRefused,
    AmqpChannel,
    Link,
    LinkDown,
    NotFound,
    Sending,
    Unroutable,
)
from gateway.queue.rabbitmq.topology import Topology

ALARM = "the broker takes no messages: memory or disk alarm"
# Rights are given seldom.
REFUSED_S = 300.0
MENDS_EACH_S = 1.0
# Messages that may be lost, and are not written to the socket yet.
TOLD_MAX = 1_000
TOLD_AT_ONCE = 32
_log = structlog.get_logger()


class _Flight:
    """A message sent and not yet confirmed. It goes on when its callers give up."""

    __slots__ = ("_waiting", "begun", "line", "sending", "task")

    def __init__(self, line: tuple[str, str], sending: Sending, begun: float) -> None:
        self.line, self.sending, self.begun = line, sending, begun
        self._waiting: list[asyncio.Future[Exception | None]] = []
        self.task: asyncio.Task[None] | None = None

    async def outcome(self) -> Exception | None:
        """Return None once it is stored, else why it may not be."""
        waiting: asyncio.Future[Exception | None] = asyncio.get_running_loop().create_future()
        self._waiting.append(waiting)
        return await waiting

    def tell(self, error: Exception | None) -> None:
        """Have those who wait now go on."""
        for waiting in self._waiting:
            if not waiting.done():
                waiting.set_result(error)
        self._waiting.clear()


class Publisher:
    """The publishing connection.

    No message id is in flight twice: a put that repeats an unconfirmed one joins it, and after an
    unknown outcome the channel is closed before anything is sent again.
    """

    def __init__(
        self,
        dial: Callable[[str], Awaitable[Link]],
        topology: Topology,
        *,
        confirm_timeout_s: float,
    ) -> None:
        self._dial, self._topology = dial, topology
        self._confirm_timeout_s = confirm_timeout_s
        # Whether an alarm of the broker holds this connection back, as of the last look.
        self.blocked = False
        self._link: Link | None = None
        self._channel: AmqpChannel | None = None
        self._transient: AmqpChannel | None = None
        self._incomplete = asyncio.Event()
        self._flights: dict[str, _Flight] = {}
        self._lines: dict[tuple[str, str], _Flight] = {}
        self._told: deque[Sending] = deque()
        self._telling: asyncio.Task[None] | None = None

    async def run(self, on_up: Callable[[], None]) -> None:
        """Connect, set the broker up, and serve until the connection is lost.

        Raises:
            LinkDown: the connection was lost, or never came about.
            TopologyMismatch: the broker is set up in another way.
        """
        link = await self._dial("publish")
        try:
            await self._topology.declare(link)
            async with self._mending(link, await link.channel()):
                while True:
                    channel = await link.channel(confirms=True)
                    self._link, self._channel = link, channel
                    on_up()
                    await self._watch(link, channel)
                    if link.ended.is_set():
                        raise LinkDown(channel.cause or "the connection was lost")
                    if channel.kind is NotFound:
                        # Somebody deleted the exchange.
                        await self._topology.declare(link)
        finally:
            self._link = self._channel = self._transient = None
            self.blocked = False
            await link.close()

    def mend(self) -> None:
        """Have what is missing on the broker made anew, beside the puts; returns at once."""
        self._incomplete.set()

    async def restart(self) -> None:
        """End the connection, so that the next one sets the broker up anew."""
        if self._link is not None:
            await self._link.close()

    async def send(self, line: tuple[str, str], sending: Sending) -> None:
        """Return when the broker has stored the message, after the earlier ones of its line.

        Raises:
            Unroutable: no queue is bound there.
            MailboxDown: not confirmed, or no connection.
            ValueError: it cannot be written.
        """
        # One id twice in flight on a channel gives a false confirmation, and two letters of one line could
        # change places where the first is refused.
        while (ahead := self._flights.get(sending.id) or self._lines.get(line)) is not None:
            error = await ahead.outcome()
            # Anybody may publish two messages under one id: only a repeat of the same one shares its outcome.
            shared = ahead.sending == sending and ahead.line == line
            if error is not None and (shared or self._lines.get(ahead.line) is ahead):
                raise error
            if shared:
                return
        link, channel = self._link, self._channel
        if link is None or channel is None:
            raise MailboxDown("no connection to the broker")
        if self.blocked:
            await self._outlast_alarm(link)
            await self.send(line, sending)
            return
        flight = _Flight(line, sending, asyncio.get_running_loop().time())
        self._flights[sending.id] = self._lines[line] = flight
        flight.task = asyncio.create_task(self._fly(flight, channel))
        if (error := await flight.outcome()) is not None:
            raise error

    async def _fly(self, flight: _Flight, channel: AmqpChannel) -> None:
        error: Exception | None = None
        try:
            await channel.publish(flight.sending)
        except (MailboxDown, ValueError) as failed:
            error = failed
        del self._flights[flight.sending.id], self._lines[flight.line]
        flight.tell(error)

    def tell(self, exchange: str, route: str, body: bytes) -> None:
        """Send a message that may be lost; dropped while the broker is away or takes none."""
        channel = self._transient
        behind = len(self._told) >= TOLD_MAX
        if channel is None or channel.ended.is_set() or self.blocked or behind:
            return
        self._told.append(Sending(exchange, route, body, transient=True))
        if self._telling is None or self._telling.done():
            self._telling = asyncio.create_task(self._tell(), name="broker tell")

    async def _tell(self) -> None:
        while self._told:
            told, channel = self._told.popleft(), self._transient
            if channel is not None:
                with suppress(MailboxDown, ValueError):
                    wait = len(self._told) % TOLD_AT_ONCE == 0
                    await channel.publish(told, mandatory=False, wait=wait)

    @asynccontextmanager
    async def _mending(self, link: Link, told: AmqpChannel) -> AsyncIterator[None]:
        """Have what somebody deletes made anew while the context is open, and ``told``, on which is told."""
        self._transient = told
        self._incomplete.clear()
        mending = asyncio.create_task(self._mend(link, told), name="broker mend")
        try:
            yield
        finally:
            mending.cancel()
            await asyncio.gather(mending, return_exceptions=True)

    async def _mend(self, link: Link, told: AmqpChannel) -> None:
        while True:
            # One exchange that is missing, or closed to this user, ends the channel for all that is told.
            await first_of(told.ended.wait(), self._incomplete.wait())
            if told.kind is AccessRefused:
                _log.info("tell.refused", error=told.cause, again_s=REFUSED_S)
                await first_of(self._incomplete.wait(), timeout_s=REFUSED_S)
            if link.ended.is_set():
                return
            self._incomplete.clear()
            try:
                await self._topology.declare(link)
                if told.ended.is_set():
                    told = self._transient = await link.channel()
            except MailboxError as error:
                if not link.ended.is_set():
                    _log.warning("publish.incomplete", error=str(error), hint=error.hint)
            await asyncio.sleep(MENDS_EACH_S)

    async def _outlast_alarm(self, link: Link) -> None:
        try:
            async with asyncio.timeout(self._confirm_timeout_s):
                await link.unblocked()
        except TimeoutError:
            # Nothing was written to the socket, so that this is surely not stored.
            raise MailboxDown(ALARM) from None

    async def _watch(self, link: Link, channel: AmqpChannel) -> None:
        """Return when the channel is closed; close it when a confirmation is overdue."""
        look_s = min(1.0, self._confirm_timeout_s / 4)
        while not channel.ended.is_set():
            await first_of(channel.ended.wait(), timeout_s=look_s)
            self.blocked = await link.is_blocked()
            await self._look(channel)

    async def _look(self, channel: AmqpChannel) -> None:
        now = asyncio.get_running_loop().time()
        overdue = [each for each in self._flights.values() if now - each.begun > self._confirm_timeout_s]
        if overdue and not self.blocked:
            _log.warning("publish.timed_out", count=len(overdue), exchange=overdue[0].sending.exchange)
            # Its confirmation might still come: only the channel's end settles what "unknown" means, and the
            # same letter may be sent again.
            await channel.close("the broker does not confirm")
            return
        for flight in overdue:
            # Under an alarm the message lies in the socket and will be stored when the alarm ends: it
            # stays in flight, and whoever puts it again joins it instead of sending it twice.
            flight.tell(MailboxDown(ALARM))
            # When the alarm ends it has its full time once more.
            flight.begun = now


class Outbox:
    """Puts over a publisher that know the boxes: makes the queue of a channel that was never seen."""

    def __init__(self, publisher: Publisher, topology: Topology, attached: Callable[[], Link | None]) -> None:
        self._publisher, self._topology, self._attached = publisher, topology, attached
        self._making = asyncio.Lock()

    async def send(self, line: tuple[str, str], sending: Sending) -> None:
        """As ``Publisher.send``, and mends what makes a message unroutable.

        Raises:
            MailboxDown: not confirmed.
        """
        outbound = sending.exchange == self._topology.names.outbound_exchange
        if outbound and sending.route not in self._topology.channels:
            await self.open(sending.route)
        try:
            await self._publisher.send(line, sending)
        except Unroutable:
            if outbound:
                # The queue was deleted since it was declared: it is made anew, then sent to once more.
                self._topology.channels.discard(sending.route)
                await self.open(sending.route)
                await self._publisher.send(line, sending)
            else:
                _log.warning("publish.unroutable", exchange=sending.exchange, route=sending.route)
                # Inbound slots are bound when a connection is set up: only a new one binds them again.
                await self._publisher.restart()
                raise

    async def open(self, channel: str) -> None:
        """Make sure that the outbound queue of ``channel`` exists and stores."""
        async with self._making:
            if channel in self._topology.channels:
                return
            link = self._attached()
            if link is None:
                raise MailboxDown("no connection to the broker")
            await self._topology.declare_outbound(link, channel)
            await self._topology.prove(lambda probe: self._publisher.send(("", probe.route), probe))
            self._topology.channels.add(channel)
