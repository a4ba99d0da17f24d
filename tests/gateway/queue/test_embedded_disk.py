"""The embedded mailbox on a disk that takes nothing more: it says so, loses nothing, and goes on."""

from __future__ import annotations

import asyncio
import threading
import time
from contextlib import suppress
from pathlib import Path

import pytest

from gateway.errors import MailboxDown
from gateway.queue.embedded.mailbox import EmbeddedMailbox
from gateway.queue.mailbox import INBOUND
from tests.contracts.posts import ADA, WEB, collect, ids, post, put_all
from tests.gateway.embedded_place import files_at_most, opened, vanish


async def test_full_disk_refuses_and_recovers(tmp_path: Path) -> None:
    """While the disk takes nothing, puts and settles say so; once it does, all goes on, nothing lost."""
    stored: list[str] = []
    async with opened(tmp_path, probe_s=0.01) as mailbox, mailbox.take(INBOUND) as letters:
        with files_at_most(200_000):
            with suppress(MailboxDown):
                for number in range(1_000):
                    await mailbox.put(post(ADA, number, body=bytes(5_000)))
                    stored.append(f"web:ada#{number}")
            assert 0 < len(stored) < 1_000
            assert not mailbox.health().up
            assert mailbox.health().error
            held = await collect(letters, len(stored))
            with pytest.raises(MailboxDown):
                await mailbox.settle(held[0], [post(ADA, "reply", box=WEB, body=bytes(500_000))])
            # It is down until the next probe, which is small enough for this disk.
            assert not mailbox.health().up
            assert not held[0].lost
            assert (await mailbox.depths())[INBOUND].count == len(stored)

        await asyncio.wait_for(mailbox.ready(), 10)
        await mailbox.settle(held[0], [post(ADA, "reply", box=WEB)])
        await mailbox.put(post(ADA, "after"))
        await vanish(mailbox)

    async with opened(tmp_path) as second, second.take(INBOUND) as again:
        assert ids(await collect(again, len(stored))) == [*stored[1:], "web:ada#after"]


async def test_full_disk_can_be_started_on(tmp_path: Path) -> None:
    """What a killed process left is taken on a full disk too; nothing needs room before the first write."""
    async with opened(tmp_path) as first:
        names = await put_all(first, ADA, 3)

    with files_at_most(1_000):
        async with opened(tmp_path) as second, second.take(INBOUND) as letters:
            assert ids(await collect(letters, 3)) == names
            with pytest.raises(MailboxDown):
                await second.put(post(ADA, "more"))


async def test_failed_settle_of_a_left_box_comes_again_first(tmp_path: Path) -> None:
    """Where a settle fails after its taker has left, the letter comes again before its successors."""
    gate = threading.Event()
    gate.set()
    async with opened(tmp_path, probe_s=0.01, at=lambda _: gate.wait() and None) as mailbox:
        names = await put_all(mailbox, ADA, 3)
        async with mailbox.take(INBOUND) as letters:
            held = await collect(letters, 3)
            gate.clear()
            reply = post(ADA, "reply", box=WEB, body=bytes(500_000))
            settling = asyncio.create_task(mailbox.settle(held[0], [reply]))
            await asyncio.sleep(0)
        async with mailbox.take(INBOUND) as again:
            with files_at_most(200_000):
                gate.set()
                with pytest.raises(MailboxDown):
                    await settling
            assert held[0].lost
            assert ids(await collect(again, 3)) == names


async def test_nobody_waits_for_a_queue_that_broke(tmp_path: Path) -> None:
    """Where the writer itself breaks, every put under way is told, and serve ends with the folder free."""
    steps: list[str] = []
    breaks = threading.Event()

    def at(step: str) -> None:
        steps.append(step)
        if step == "closing":
            # A slow disk: whoever opens next must not meet the lock.
            time.sleep(0.2)
        elif step == "written" and breaks.is_set():
            raise MemoryError

    mailbox = EmbeddedMailbox(tmp_path, at=at)
    serving = asyncio.create_task(mailbox.serve())
    await mailbox.ready()
    await mailbox.put(post(ADA, 0))
    breaks.set()

    with pytest.raises(MailboxDown):
        await mailbox.put(post(ADA, 1))
    with pytest.raises(MemoryError):
        await serving

    mailbox = EmbeddedMailbox(tmp_path, at=steps.append)
    async with opened(tmp_path) as second, second.take(INBOUND) as letters:
        assert ids(await collect(letters, 1)) == ["web:ada#0"]
