"""The line of one of two daemons is broken in one direction while people write."""

from __future__ import annotations

from pathlib import Path

from tests.support.broker import Broker
from tests.support.guarantee import guarantee
from tests.system.links_place import linked

pytestmark = guarantee(
    "loss", "A slow, silent or broken network link to the broker loses and reorders no message."
)


async def test_a_line_that_is_open_in_one_direction_alone(
    tmp_path: Path, broker: Broker, broker_name: str
) -> None:
    """The other takes over; nothing is lost, stored twice or reordered; mended, each has its half again."""
    async with linked(tmp_path, broker, broker_name, count=2, heartbeat_s=2) as links:
        for harm in ("deaf", "mute"):
            await links.broken(harm)
