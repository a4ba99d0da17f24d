"""Counts the letters of each box that wait on the broker, and those that this process works on."""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping
from datetime import datetime

import durable
from gateway.queue.mailbox import INBOUND, Depth, outbound
from gateway.queue.rabbitmq.connection import Link
from gateway.queue.rabbitmq.declare import Topology
from gateway.queue.rabbitmq.topology import Names, channel_of
from gateway.queue.rabbitmq.wire import NotFound


class Counts:
    """Counts boxes, and remembers since when letters of a channel wait that nobody takes.

    Args:
        out: says how many letters of a box this process works on.
    """

    def __init__(self, names: Names, topology: Topology, out: Callable[[str], int]) -> None:
        self._names, self._topology, self._out = names, topology, out
        self._first_put: dict[str, datetime] = {}

    def note_put(self, box: str) -> None:
        """Note that this process put something into a box."""
        if box != INBOUND and box not in self._first_put:
            self._first_put[box] = durable.now()

    async def all(self, link: Link, channels: Collection[str]) -> Mapping[str, Depth]:
        """Count what waits, by box; of the outbound ones those used here, and those of ``channels``.

        Raises:
            LinkDown: the broker went away.
        """
        boxes = {INBOUND: self._names.queues_of(INBOUND)}
        for name in sorted(self._topology.channels.union(channels)):
            boxes[outbound(name)] = self._names.queues_of(outbound(name))
        boxes["parked"] = [self._names.parked]
        counts: dict[str, Depth] = {}
        for box, queues in boxes.items():
            channel = await link.channel()
            try:
                states = [await channel.declare_queue(queue, passive=True) for queue in queues]
                ready = sum(state.ready for state in states)
                takers = sum(state.consumers for state in states)
                counts[box] = Depth(ready + self._out(box), self._alone_since(box, ready, takers), takers)
            except NotFound:
                # Nobody ever served this channel, so that it has no queue.
                counts[box] = Depth(0)
            finally:
                await channel.close()
        return counts

    def _alone_since(self, box: str, ready: int, takers: int) -> datetime | None:
        """Tell since when letters wait in an outbound box that nobody takes from, as far as was looked."""
        if not box.startswith(outbound("")) or takers or not ready:
            self._first_put.pop(box, None)
            return None
        looked_before = box in self._first_put
        since = self._first_put.setdefault(box, durable.now())
        # What other processes put has waited for longer than this one knows.
        return since if looked_before or channel_of(box) in self._topology.channels else None
