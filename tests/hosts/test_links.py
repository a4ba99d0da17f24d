"""Two and three daemons, the line of one of which is broken in every way that lines break."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.support.broker import Broker
from tests.support.guarantee import guarantee
from tests.support.proxy import LINES
from tests.system.links_place import linked

pytestmark = guarantee(
    "loss", "A slow, silent or broken network link to the broker loses and reorders no message."
)


@pytest.mark.timeout(900)
@pytest.mark.parametrize("count", [2, 3])
async def test_whatever_becomes_of_a_line(
    tmp_path: Path, broker: Broker, broker_name: str, count: int
) -> None:
    """While people write nothing is lost, stored twice or reordered; each time all have their share again."""
    async with linked(tmp_path, broker, broker_name, count=count, heartbeat_s=10) as links:
        for harm in LINES:
            await links.broken(harm)
