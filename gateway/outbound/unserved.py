"""Finds replies that nobody takes: their channel is not enabled here, and no program takes from its queue."""

from __future__ import annotations

from collections.abc import Collection, Mapping
from datetime import UTC, datetime

from gateway.queue.mailbox import Depth, outbound

Row = dict[str, str | float | None]


def unserved(depths: Mapping[str, Depth], served: Collection[str]) -> list[Row]:
    """List ``channel``, ``count`` and ``oldest_at`` of each box that waits for nobody, by name.

    ``served``: the channels that processes of this workspace serve, perhaps later.
    """
    known = {outbound(name) for name in served}
    return [
        {"channel": box.removeprefix(outbound("")), **depth.as_dict()}
        for box, depth in sorted(depths.items())
        if box.startswith(outbound("")) and box not in known and depth.count and not depth.takers
    ]


def in_words(row: Row, now: datetime) -> str:
    """Say how many replies of one row wait, and for how long."""
    since = row["oldest_at"]
    age = f", the oldest for {_age(datetime.fromisoformat(str(since)), now)}" if since else ""
    count = "1 reply waits" if row["count"] == 1 else f"{row['count']} replies wait"
    return f"{count} for {row['channel']}{age}: no channel of this name is enabled"


def cure_of(channel: str) -> str:
    """Say what lets the replies of a channel be taken."""
    return f"enable channels.{channel}, connect a program to its queue, or correct the address"


def _age(since: datetime, now: datetime) -> str:
    seconds = max((now.astimezone(UTC) - since).total_seconds(), 0)
    for unit, size in (("d", 86400), ("h", 3600), ("min", 60)):
        if seconds >= size:
            return f"{seconds / size:.1f} {unit}"
    return f"{seconds:.0f} s"
