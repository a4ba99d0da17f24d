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

from gateway.errors import MailboxDown, MailboxError
from gateway.queue.rabbitmq.beat import Beat, read_beat
from gateway.queue.rabbitmq.connection import AmqpChannel, Link
from gateway.queue.rabbitmq.declare import Topology, exclusively
from gateway.queue.rabbitmq.record import PROBE, add_record, keep_last, recorded_last
from gateway.queue.rabbitmq.topology import Names, Record, partition_of, slot_route
from gateway.queue.rabbitmq.wire import BrokerMessage, NotFound, Sending
from session.transcript.key import SLOTS, slot_of

# Daemons tell that they live each second.
LISTENS_S = 2.5
IN_FLIGHT = 200
SETTLES_S = 30.0
# The slot of a letter that has no key, which it keeps over a further move.
SLOT = "slot"
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
    link: Link, topology: Topology, *, listens_s: float = LISTENS_S, on_step: Step = lambda step: None
) -> Moved:
    """Bring the broker to the partitions of ``topology``; ``on_step`` hears of each step before it is done.

    Raises:
        StillServed: a daemon works on the old ones; nothing was changed.
        TopologyMismatch: nothing was ever set up here, or a newer version was at work.
        LinkDown: the broker went away: call it again.
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
        letters = await _move_all(link, old, names, on_step)
        on_step("bind the new queues")
        for queue, slots in names.inbound_queues():
            async with _channel(link) as channel:
                await channel.bind(queue, names.inbound_exchange, [slot_route(slot) for slot in slots])
        on_step("record the end")
        await add_record(link, names.topology, Record(names.partitions))
        on_step("forget the move")
        await keep_last(link, names.topology)
        return Moved(before, names.partitions, letters)


async def _move_all(link: Link, old: Names, new: Names, on_step: Step) -> int:
    letters = 0
    queues = [(queue, slots) for queue, slots in old.inbound_queues() if await _is_there(link, queue)]
    for queue, slots in queues:
        on_step(f"unbind {queue}")
        async with _channel(link) as channel:
            for slot in slots:
                await channel.unbind(queue, old.inbound_exchange, slot_route(slot))
    for queue, slots in queues:
        on_step(f"move {queue}")
        letters += await _Move(link, queue, new, slots[0]).run()
        on_step(f"delete {queue}")
        async with _channel(link) as channel:
            # A quorum queue knows no deletion that spares what came since; nothing leads there any more.
            if (left := (await channel.declare_queue(queue, passive=True)).ready) > 0:
                raise MailboxDown(f"{left} letters came into {queue} by its name", hint="call it again")
            await channel.delete_queue(queue)
    return letters


class _Move:
    """Moves what waits in one queue, in its order."""

    def __init__(self, link: Link, queue: str, new: Names, slot: int) -> None:
        self._link, self._queue, self._new, self._slot = link, queue, new, slot
        self._came: asyncio.Queue[BrokerMessage] = asyncio.Queue()

    async def run(self) -> int:
        """Move until nothing is left; return how many letters went."""
        letters = 0
        async with _channel(self._link) as taking, _channel(self._link, confirms=True) as putting:
            await taking.limit(IN_FLIGHT, live=False)
            await taking.consume(self._queue, self._came.put_nowait)
            while True:
                batch = await self._batch()
                if not batch:
                    return letters
                sent = [(message, self._put(putting, message)) for message in batch]
                for message, confirm in sent:
                    if confirm is not None:
                        async with asyncio.timeout(SETTLES_S):
                            await confirm
                        letters += 1
                    taking.ack(message.tag)

    async def _batch(self) -> list[BrokerMessage]:
        """Wait for letters; none: the queue is empty."""
        while self._came.empty():
            with suppress(TimeoutError):
                async with asyncio.timeout(0.2):
                    batch = [await self._came.get()]
                    break
            async with _channel(self._link) as looking:
                # What was acknowledged, or is on its way here, is not counted as ready.
                if (await looking.declare_queue(self._queue, passive=True)).ready == 0 and self._came.empty():
                    return []
        else:
            batch = []
        while not self._came.empty():
            batch.append(self._came.get_nowait())
        return batch

    def _put(self, channel: AmqpChannel, message: BrokerMessage) -> asyncio.Future[None] | None:
        if PROBE in message.headers:
            return None
        slot = self._slot_of(message)
        queue = self._new.inbound_queue(partition_of(slot, self._new.partitions))
        headers = {**message.headers, SLOT: str(slot)}
        return channel.publish(Sending("", queue, message.body, id=message.id, headers=headers))  # type: ignore[arg-type]

    def _slot_of(self, message: BrokerMessage) -> int:
        for told in (message.headers.get(SLOT), message.sent_to[1]):
            if isinstance(told, str) and len(told) == 3 and told.isdecimal() and int(told) < SLOTS:
                return int(told)
        key = message.headers.get("key")
        if not isinstance(key, str):
            with suppress(ValueError):
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
