"""What is erased of the embedded queue is gone from its bytes; the letters of others stay in their order."""

from __future__ import annotations

from pathlib import Path

from gateway.queue.mailbox import INBOUND, ParkedAs, Post, outbound
from tests.gateway.embedded_place import opened


def bytes_of(state: Path) -> bytes:
    return b"".join(path.read_bytes() for path in state.glob("gateway.db*"))


async def test_no_byte_of_a_key_stays_and_its_neighbours_go_on_in_order(tmp_path: Path) -> None:
    """Waiting, out, parked, settled long ago; one that is worked on ends, and is not parked again."""
    async with opened(tmp_path) as mailbox:
        for number in range(8):
            for key in ("a:1", "b:2"):
                body = f"{'sesame' if key == 'a:1' else 'bob'} {number}".encode() * 100
                await mailbox.put(Post(INBOUND, key, f"{key}-{number}", body))
        await mailbox.put(Post(outbound("a"), "a:1", "a:1-0#reply", b"sesame told" * 100))
        async with mailbox.take(INBOUND) as letters:
            settled, theirs, parked, _, running = [await anext(letters) for _ in range(5)]
            await mailbox.settle(settled)
            await mailbox.park(parked, ParkedAs("a:1", "failed", 1))

            bodies = await mailbox.erase(["a:1"])

            assert len(bodies) == 8
            assert b"sesame" not in bytes_of(tmp_path)
            assert dict((await mailbox.depths()).items())[INBOUND].count == 8
            await mailbox.park(running, ParkedAs("a:1", "failed", 1))
            assert await mailbox.parked() == []
            await mailbox.settle(theirs)
            assert (await mailbox.depths())[INBOUND].count == 7
            assert [(await anext(letters)).id for _ in range(6)] == [f"b:2-{n}" for n in range(2, 8)]
        assert b"sesame" not in bytes_of(tmp_path)

    async with opened(tmp_path) as mailbox, mailbox.take(INBOUND) as letters:
        assert [(await anext(letters)).id for _ in range(7)] == [f"b:2-{n}" for n in range(1, 8)]


async def test_a_settled_running_letter_leaves_its_answer_alone(tmp_path: Path) -> None:
    """Its row is gone; what it puts is put, and no count goes below what there is."""
    async with opened(tmp_path) as mailbox:
        await mailbox.put(Post(INBOUND, "a:1", "1", b"x"))
        async with mailbox.take(INBOUND) as letters:
            running = await anext(letters)
            await mailbox.erase(["a:1"])
            await mailbox.settle(running, [Post(outbound("a"), "a:1", "1#notice", b"gone")])

        depths = await mailbox.depths()
        assert (depths[INBOUND].count, depths[outbound("a")].count) == (0, 1)
