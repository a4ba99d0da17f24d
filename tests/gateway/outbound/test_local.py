"""The replies of page and terminal on a queue whose disk refuses: no end of the gateway waits for them."""

from __future__ import annotations

import asyncio
import sqlite3
from pathlib import Path

import pytest
from structlog.testing import capture_logs

from channels.message import Outbound
from gateway.dispatch.events import Events
from gateway.outbound.local import LocalSender
from gateway.queue import retry
from gateway.queue.embedded.mailbox import EmbeddedMailbox
from gateway.queue.mailbox import Post, outbound
from tests.gateway.embedded_place import opened
from tests.support.until import until

BOX = outbound("web")
REPLY = Outbound(id="m1#reply", key="web:a", channel="web", chat_id="a", text="hi", in_reply_to="m1")
ENDS_WITHIN_S = 15.0


@pytest.mark.parametrize("body", [REPLY.to_bytes(), b"no letter"], ids=["reply", "unreadable"])
async def test_an_end_waits_for_no_pause_between_two_tries(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, body: bytes
) -> None:
    """The letter that could not be settled is there at the next start."""
    monkeypatch.setattr(retry, "back_off_s", lambda _: 600.0)
    full = False

    def at(instant: str) -> None:
        if full and instant == "begun":
            raise sqlite3.OperationalError("database or disk is full")

    mailbox = EmbeddedMailbox(tmp_path, at=at)
    with capture_logs() as logged:
        async with asyncio.timeout(ENDS_WITHIN_S), asyncio.TaskGroup() as group:
            serving = group.create_task(mailbox.serve())
            await mailbox.ready()
            await mailbox.put(Post(BOX, REPLY.key, REPLY.id, body))
            full = True
            delivery = LocalSender("web", mailbox=mailbox, events=Events(mailbox), group=group)
            delivering = group.create_task(delivery.run())
            await until(lambda: not mailbox.health().up)

            delivering.cancel()
            serving.cancel()

    assert "letter.not_settled" not in {line["event"] for line in logged}
    async with opened(tmp_path) as later:
        assert (await later.depths())[BOX].count == 1


async def test_what_is_settled_while_it_ends_is_settled(tmp_path: Path) -> None:
    """A reply that was told just before the end does not come again."""
    mailbox = EmbeddedMailbox(tmp_path)
    with capture_logs() as logged:
        async with asyncio.timeout(ENDS_WITHIN_S), asyncio.TaskGroup() as group:
            serving = group.create_task(mailbox.serve())
            await mailbox.ready()
            delivery = LocalSender("web", mailbox=mailbox, events=Events(mailbox), group=group)
            delivering = group.create_task(delivery.run())
            await mailbox.put(Post(BOX, REPLY.key, REPLY.id, REPLY.to_bytes()))
            while "reply.delivered" not in {line["event"] for line in logged}:
                await asyncio.sleep(0)
            # Its settling has begun, and has not been written yet.
            await asyncio.sleep(0)

            delivering.cancel()
            serving.cancel()

    async with opened(tmp_path) as later:
        assert BOX not in await later.depths()
