"""Changes the number of partitions: what waits is moved in order, and a kill costs only another call.

While the record says that partitions move no daemon starts. The old queues are unbound first, so that nothing
new arrives anywhere: a put finds no queue and is made again by whoever made it. Then each letter goes into
its new queue before it is gone from the old one, and only when all have gone are the new queues bound. So the
letters of a key that waited come before those that are put afterwards, and a kill costs at most copies, which
are known by their id.
"""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager, suppress
from dataclasses import dataclass

from ulid import ULID

from durable import first_of
from gateway.errors import MailboxDown, MailboxError
from gateway.queue.mailbox import carried_in
from gateway.queue.rabbitmq.beat import Beat, read_beat
from gateway.queue.rabbitmq.connection import AmqpChannel, Link
from gateway.queue.rabbitmq.declare import Topology, exclusively
from gateway.queue.rabbitmq.parked import sendable_id
from gateway.queue.rabbitmq.publish import ALARM
from gateway.queue.rabbitmq.record import PROBE, add_record, keep_last, recorded_last
from gateway.queue.rabbitmq.topology import Names, Record, partition_of, slot_route
from gateway.queue.rabbitmq.wire import BrokerMessage, LinkDown, NotFound, Sending
from session.transcript.key import SLOTS, slot_of

# Daemons tell that they live each second.
LISTENS_S = 2.5
IN_FLIGHT = 200
SETTLES_S = 30.0
# The slot of a letter that has no key, which it keeps over a further move.
SLOT = "slot"
# No key has so many; a longer one is set aside by whoever reads the letter.
KEY_MAX_CHARS = 20_000
Step = Callable[[str], None]


class StillServed(MailboxError):
    """A daemon takes letters from the partitions that are to move."""


@dataclass(frozen=True, slots=True)
class Moved:
    """From how many partitions to how many, and how many letters went."""

    before: int
    partitions: int
    letters: int


async def repartition(
    link: Link,
    topology: Topology,
    *,
    listens_s: float = LISTENS_S,
    settles_s: float = SETTLES_S,
    on_step: Step = lambda step: None,
) -> Moved:
    """Bring the broker to the partitions of ``topology``; ``on_step`` hears of each step before it is done.

    ``settles_s`` is how long the broker may take to store letters, or to hand one out.

    Raises:
        StillServed: a daemon works on the old ones; nothing was changed.
        TopologyMismatch: nothing was ever set up here, or a newer version was at work.
        LinkDown: the broker went away, or takes no messages: call it again.
    """
    names = topology.names
    try:
        recorded = await recorded_last(link, names.topology)
    except NotFound:
        recorded = None
    if recorded is None:
        raise MailboxDown("no gateway was set up here", hint="start a session daemon: it makes what it needs")
    async with exclusively(link, names.topology_lock):
        before = recorded.partitions if recorded.before is None else recorded.before
        if recorded == Record(names.partitions):
            await keep_last(link, names.topology)
            return Moved(names.partitions, names.partitions, 0)
        if recorded.before is not None and recorded.partitions != names.partitions:
            raise MailboxDown(
                f"a move from {before} to {recorded.partitions} partitions was begun and not ended",
                hint=f"chat-gateway queues repartition {recorded.partitions}, then the number that you want",
            )
        old = Names(names.name, before)
        await _refuse_served(link, old, listens_s)
        on_step("record the move")
        if recorded.before is None:
            await add_record(link, names.topology, Record(names.partitions, before))
        await keep_last(link, names.topology)
        try:
            # One may have started between the look and the record.
            await _refuse_served(link, old, listens_s)
        except StillServed:
            await add_record(link, names.topology, Record(before))
            await keep_last(link, names.topology)
            raise
        on_step("make the new queues")
        await topology.declare_partitions(link)
        letters = await _move_all(link, old, names, on_step, settles_s=settles_s)
        on_step("bind the new queues")
        for queue, slots in names.inbound_queues():
            async with _channel(link) as channel:
                await channel.bind(queue, names.inbound_exchange, [slot_route(slot) for slot in slots])
        on_step("record the end")
        await add_record(link, names.topology, Record(names.partitions))
        on_step("forget the move")
        await keep_last(link, names.topology)
        return Moved(before, names.partitions, letters)


async def _move_all(link: Link, old: Names, new: Names, on_step: Step, *, settles_s: float) -> int:
    letters = 0
    queues = [(queue, slots) for queue, slots in old.inbound_queues() if await _is_there(link, queue)]
    for queue, slots in queues:
        on_step(f"unbind {queue}")
        async with _channel(link) as channel:
            for slot in slots:
                await channel.unbind(queue, old.inbound_exchange, slot_route(slot))
    for queue, slots in queues:
        on_step(f"move {queue}")
        letters += await _Move(link, queue, new, slot=slots[0], settles_s=settles_s).run()
        on_step(f"delete {queue}")
        async with _channel(link) as channel:
            # A quorum queue knows no deletion that spares what came since; nothing leads there any more.
            if (left := (await channel.declare_queue(queue, passive=True)).ready) > 0:
                raise MailboxDown(f"{left} letters came into {queue} by its name", hint="call it again")
            await channel.delete_queue(queue)
    return letters


class _Move:
    """Moves what waits in one queue, in its order.

    What is on its way here the broker does not count as ready, and of a quorum queue whose leader is slow it
    says that nothing is. So a mark is put behind what waits: once it is here, all that stood before it is.
    """

    def __init__(self, link: Link, queue: str, new: Names, *, slot: int, settles_s: float) -> None:
        self._link, self._queue, self._new, self._slot = link, queue, new, slot
        self._settles_s = settles_s
        self._came: list[BrokerMessage] = []
        self._arrived = asyncio.Event()

    async def run(self) -> int:
        """Move until nothing came between two marks; return how many letters went.

        Raises:
            LinkDown: a channel was closed, or the broker stores or hands out nothing.
        """
        letters = letters_before = 0
        async with _channel(self._link) as taking, _channel(self._link, confirms=True) as putting:
            mark = await self._put_mark(putting)
            await taking.limit(IN_FLIGHT, live=False)
            await taking.consume(self._queue, self._take)
            while True:
                batch = await self._batch(taking)
                confirms = [self._put(putting, message) for message in batch if PROBE not in message.headers]
                await self._stored(confirms)
                letters += len(confirms)
                for message in batch:
                    taking.ack(message.tag)
                if mark not in (message.id for message in batch):
                    continue
                if letters == letters_before:
                    return letters
                letters_before, mark = letters, await self._put_mark(putting)

    def _take(self, message: BrokerMessage) -> None:
        self._came.append(message)
        self._arrived.set()

    async def _batch(self, taking: AmqpChannel) -> list[BrokerMessage]:
        await first_of(self._arrived.wait(), taking.ended.wait(), timeout_s=self._settles_s)
        if taking.ended.is_set():
            raise LinkDown(taking.cause or "the connection was lost")
        if not self._came:
            raise LinkDown(f"the broker hands nothing out of {self._queue}")
        batch, self._came = self._came, []
        self._arrived.clear()
        return batch

    async def _stored(self, confirms: list[asyncio.Future[None]]) -> None:
        try:
            async with asyncio.timeout(self._settles_s):
                await asyncio.gather(*confirms)
        except TimeoutError:
            raise LinkDown(ALARM if self._link.blocked else "the broker does not confirm") from None

    async def _put_mark(self, putting: AmqpChannel) -> str:
        # One that a kill leaves behind is passed over as a probe by whoever takes it.
        mark = Sending("", self._queue, b"{}", id=f"mark:{ULID()}", headers={PROBE: True})
        await self._stored([putting.publish(mark)])
        return mark.id

    def _put(self, channel: AmqpChannel, message: BrokerMessage) -> asyncio.Future[None]:
        slot = self._slot_of(message)
        queue = self._new.inbound_queue(partition_of(slot, self._new.partitions))
        # What else another program wrote there nobody reads, and with ours it may be more than a frame takes.
        headers = {**carried_in(message.headers), SLOT: str(slot)}
        if isinstance(key := message.headers.get("key"), str) and len(key) <= KEY_MAX_CHARS:
            headers["key"] = key
        id_ = sendable_id(message.id) if message.id else ""
        return channel.publish(Sending("", queue, message.body, id=id_, headers=headers))

    def _slot_of(self, message: BrokerMessage) -> int:
        for told in (message.headers.get(SLOT), message.sent_to[1]):
            if isinstance(told, str) and len(told) == 3 and told.isdecimal() and int(told) < SLOTS:
                return int(told)
        key = message.headers.get("key")
        if not isinstance(key, str):
            with suppress(ValueError, RecursionError):
                said = json.loads(message.body)
                key = said.get("key") if isinstance(said, dict) else None
        return slot_of(key) if isinstance(key, str) else self._slot


async def _refuse_served(link: Link, old: Names, listens_s: float) -> None:
    living = await _living(link, old, listens_s)
    served = [queue for queue, _ in old.inbound_queues() if await _is_taken(link, queue)]
    if living or served:
        who = ", ".join(sorted(living)) or f"somebody takes from {served[0]}"
        raise StillServed(
            f"daemons with {old.partitions} partitions still run: {who}",
            hint="stop all session daemons, then call this again; adapters may go on",
        )


async def _living(link: Link, old: Names, listens_s: float) -> set[str]:
    """Listen for a while, and name the daemons that are heard: host and process id."""
    beats: list[Beat] = []

    def heard(message: BrokerMessage) -> None:
        if (beat := read_beat(message.body)) is not None:
            beats.append(beat)

    async with _channel(link) as channel:
        await channel.declare_exchange(old.daemons, "fanout")
        queue = (await channel.declare_queue("", exclusive=True)).name
        await channel.bind(queue, old.daemons, [""])
        await channel.consume(queue, heard, no_ack=True)
        await asyncio.sleep(listens_s)
    gone = {beat.daemon for beat in beats if beat.gone}
    return {f"{beat.place} ({beat.partitions} partitions)" for beat in beats if beat.daemon not in gone}


async def _is_taken(link: Link, queue: str) -> bool:
    try:
        async with _channel(link) as channel:
            return (await channel.declare_queue(queue, passive=True)).consumers > 0
    except NotFound:
        return False


async def _is_there(link: Link, queue: str) -> bool:
    try:
        async with _channel(link) as channel:
            await channel.declare_queue(queue, passive=True)
    except NotFound:
        return False
    return True


@asynccontextmanager
async def _channel(link: Link, *, confirms: bool = False) -> AsyncIterator[AmqpChannel]:
    channel = await link.channel(confirms=confirms)
    try:
        yield channel
    finally:
        await channel.close()
