"""Puts letters on the broker, each confirmed: one at a time per key, side by side over keys."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from functools import partial

import structlog

from durable import first_of
from gateway.errors import MailboxDown, MailboxError
from gateway.queue.rabbitmq.connection import AmqpChannel, Link
from gateway.queue.rabbitmq.declare import Topology
from gateway.queue.rabbitmq.record import PROBE
from gateway.queue.rabbitmq.wire import AccessRefused, LinkDown, NotFound, Sending, Unroutable

ALARM = "the broker takes no messages: memory or disk alarm"
# Rights are given seldom.
REFUSED_S = 300.0
MENDS_EACH_S = 1.0
_log = structlog.get_logger()


class _Flight:
    """A message sent and not yet confirmed. It goes on when its callers give up."""

    __slots__ = ("begun", "callers", "followers", "line", "sending")

    def __init__(self, line: tuple[str, str], sending: Sending, begun: float) -> None:
        self.line, self.sending, self.begun = line, sending, begun
        self.callers: list[asyncio.Future[None]] = []
        self.followers: list[asyncio.Future[None]] = []

    def end(self, error: MailboxDown | None) -> None:
        """Tell the callers the outcome, and let the followers go on."""
        _resolve(self.callers, error)
        _resolve(self.followers, None)

    def give_up(self, error: MailboxDown) -> None:
        """Tell everybody who waits that the outcome is unknown."""
        _resolve(self.callers, error)
        _resolve(self.followers, error)


def _resolve(waiting: list[asyncio.Future[None]], error: MailboxDown | None) -> None:
    for future in waiting:
        if not future.done():
            if error is None:
                future.set_result(None)
            else:
                future.set_exception(error)
    waiting.clear()


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
        self._link: Link | None = None
        self._channel: AmqpChannel | None = None
        self._transient: AmqpChannel | None = None
        self._incomplete = asyncio.Event()
        self._flights: dict[str, _Flight] = {}
        self._lines: dict[tuple[str, str], _Flight] = {}

    @property
    def blocked(self) -> bool:
        """Whether an alarm of the broker holds this connection back."""
        return self._link is not None and self._link.blocked

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
        """
        # One id twice in flight on a channel gives a false confirmation, and two letters of one line could
        # change places where the first is refused.
        while (ahead := self._flights.get(sending.id) or self._lines.get(line)) is not None:
            # Anybody may publish two messages under one id: only a repeat of the same one shares its outcome.
            if ahead.sending == sending and ahead.line == line:
                return await self._wait(ahead.callers)
            await self._wait(ahead.followers)
        link, channel = self._link, self._channel
        if link is None or channel is None:
            raise MailboxDown("no connection to the broker")
        if link.blocked:
            await self._outlast_alarm(link)
            return await self.send(line, sending)
        flight = _Flight(line, sending, asyncio.get_running_loop().time())
        channel.send(sending, partial(self._on_confirmed, flight))
        self._flights[sending.id] = self._lines[line] = flight
        return await self._wait(flight.callers)

    def tell(self, exchange: str, route: str, body: bytes) -> None:
        """Send a message that may be lost; dropped while the broker is away or takes none."""
        channel = self._transient
        if channel is None or channel.ended.is_set() or self.blocked:
            return
        channel.publish(Sending(exchange, route, body, transient=True), mandatory=False)

    def probe(self, queue: str) -> None:
        """Have a queue hand a probe to whom it serves now; it is not kept, and may be lost."""
        channel = self._transient
        if channel is None or channel.ended.is_set() or self.blocked:
            return
        probe = Sending("", queue, b"", headers={PROBE: True}, expiration="0", transient=True)
        channel.publish(probe, mandatory=False)

    @staticmethod
    async def _wait(waiting: list[asyncio.Future[None]]) -> None:
        future: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        waiting.append(future)
        await future

    def _on_confirmed(self, flight: _Flight, error: MailboxDown | None) -> None:
        del self._flights[flight.sending.id], self._lines[flight.line]
        flight.end(error)

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
            try:
                async with asyncio.timeout(look_s):
                    await channel.ended.wait()
            except TimeoutError:
                await self._look(link, channel)

    async def _look(self, link: Link, channel: AmqpChannel) -> None:
        now = asyncio.get_running_loop().time()
        overdue = [each for each in self._flights.values() if now - each.begun > self._confirm_timeout_s]
        if overdue and not link.blocked:
            _log.warning("publish.timed_out", count=len(overdue), exchange=overdue[0].sending.exchange)
            # Its confirmation might still come: only the channel's end settles what "unknown" means, and the
            # same letter may be sent again.
            await channel.close()
        for flight in overdue:
            # Under an alarm the message lies in the socket and will be stored when the alarm ends: it
            # stays in flight, and whoever puts it again joins it instead of sending it twice.
            flight.give_up(MailboxDown(ALARM if link.blocked else "the broker does not confirm"))
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
