"""How many bytes of bodies the embedded queue keeps in memory, over all its boxes."""

from __future__ import annotations

import asyncio
from pathlib import Path

from gateway.queue.mailbox import INBOUND
from tests.contracts.posts import ADA, WEB, collect, ids, post
from tests.gateway.embedded_place import opened
from tests.support.guarantee import guarantee

pytestmark = guarantee(
    "operation", "Messages take at most 64 MB of memory; larger backlogs wait in the queue, in order."
)

BOUND = 64_000
SIZE = 1_000
COUNT = 60


async def test_window_of_bytes_lets_one_through(tmp_path: Path) -> None:
    """A body larger than the whole window comes all the same, alone."""
    async with opened(tmp_path, window_bytes=10) as mailbox:
        for number in range(3):
            await mailbox.put(post(ADA, number, body=bytes(100)))
        async with mailbox.take(INBOUND) as letters:
            for number in range(3):
                (letter,) = await collect(letters, 1)
                assert letter.id == f"web:ada#{number}"
                await mailbox.settle(letter)


async def test_all_boxes_together_keep_within_the_bytes(tmp_path: Path) -> None:
    """A box that is full leaves the other one a share, and what is settled in one is free for both."""
    async with opened(tmp_path, window_bytes=BOUND) as mailbox:
        for box in (INBOUND, WEB):
            for number in range(COUNT):
                await mailbox.put(post(ADA, number, box=box, body=bytes(SIZE)))
        async with mailbox.take(INBOUND) as letters, mailbox.take(WEB) as replies:
            crowd = await collect(letters, BOUND // SIZE - 4)
            first = await collect(replies, 1)
            full = mailbox.in_memory()
            for letter in crowd:
                await mailbox.settle(letter)
                assert mailbox.in_memory().bytes <= BOUND
            rest = await collect(replies, COUNT - 1)
            after = mailbox.in_memory()

        assert BOUND - 4 * SIZE <= full.bytes <= BOUND == full.max_bytes
        assert (full.letters * SIZE, full.windows) == (full.bytes, {INBOUND: 100_000, WEB: 100_000})
        assert ids([*first, *rest]) == [post(ADA, number).id for number in range(COUNT)]
        assert after.letters == COUNT
        assert mailbox.in_memory().letters == 0


async def test_a_letter_that_does_not_fit_beside_others_is_not_read_again_and_again(tmp_path: Path) -> None:
    """The taker waits for what is settled, and meanwhile nothing is asked of the file."""
    asked: list[str] = []
    async with opened(tmp_path, window_bytes=BOUND, at=asked.append) as mailbox:
        for number, size in enumerate((SIZE, BOUND, SIZE)):
            await mailbox.put(post(ADA, number, body=bytes(size)))
        async with mailbox.take(INBOUND) as letters:
            (first,) = await collect(letters, 1)
            further = asyncio.ensure_future(anext(letters))
            await mailbox.depths()
            before = len(asked)
            for _ in range(3):
                await mailbox.depths()
            of_three_looks = len(asked) - before
            assert not further.done()

            await mailbox.settle(first)
            second = await further
            await mailbox.settle(second)
            (third,) = await collect(letters, 1)

    assert of_three_looks == 9
    assert ids([first, second, third]) == [post(ADA, number).id for number in range(3)]
