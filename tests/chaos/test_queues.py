"""What chaos finds in an embedded queue whose gateway has ended."""

from __future__ import annotations

from pathlib import Path

from gateway.queue.mailbox import Post
from tests.chaos.queues import left_behind
from tests.gateway.embedded_place import opened


async def test_every_letter_that_stays_in_the_file_is_named(tmp_path: Path) -> None:
    """… of either box; what was settled is gone; a queue that is gone itself hides nothing."""
    state = tmp_path / "a place" / "state"
    assert await left_behind(None, state) == ["the queue's file is gone"]
    async with opened(state) as mailbox:
        for box, key, name in (("inbound", "web:ann", "one"), ("outbound.telegram", "telegram:105", "two")):
            await mailbox.put(Post(box, key, name, b"{}"))
            await mailbox.put(Post(box, key, "", b"{}"))

    left = await left_behind(None, state)

    assert left == [
        "message 1 stays in inbound: one of web:ann",
        "message 2 stays in inbound: no id of web:ann",
        "message 3 stays in outbound.telegram: two of telegram:105",
        "message 4 stays in outbound.telegram: no id of telegram:105",
    ]
    assert await left_behind(None, state) == left
    async with opened(state) as mailbox:
        for box in ("inbound", "outbound.telegram"):
            async with mailbox.take(box) as letters:
                for _ in range(2):
                    await mailbox.settle(await anext(letters))
    assert await left_behind(None, state) == []
