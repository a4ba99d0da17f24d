"""A letter that cannot be read, or breaks before its turn, is parked and holds up no other."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import pytest
from structlog.testing import capture_logs

from channels.errors import Unreadable
from channels.message import read_inbound
from gateway.dispatch import completion, edits, worker
from gateway.dispatch.events import Events
from gateway.dispatch.policy import UNANSWERED
from gateway.dispatch.replies import Notices
from gateway.queue.embedded.mailbox import EmbeddedMailbox
from gateway.queue.mailbox import INBOUND, Letter, Mailbox, Post
from session.errors import ModelRefused
from session.store.store import Store
from tests.contracts.posts import collect
from tests.gateway.embedded_place import BreaksAt, serving
from tests.gateway.worker_rig import ADA, Clock, letter, rig
from tests.support.guarantee import guarantee
from tests.support.until import until

EMPTY = Post(INBOUND, ADA, "m1", letter(" ", "m1").to_bytes())


def error_of(found: Letter) -> Unreadable:
    try:
        read_inbound(found.body)
    except Unreadable as error:
        return error
    raise AssertionError("it can be read")


@asynccontextmanager
async def taken(mailbox: Mailbox) -> AsyncIterator[Letter]:
    """Put the letter and take it."""
    await mailbox.put(EMPTY)
    async with mailbox.take(INBOUND) as letters:
        yield (await collect(letters, 1))[0]


async def set_aside(mailbox: Mailbox, found: Letter) -> list[float]:
    """Park it; return the pauses between the tries, in seconds."""
    pauses: list[float] = []

    async def sleep(seconds: float) -> None:
        pauses.append(seconds)

    await completion.park_unreadable(
        found,
        error_of(found),
        mailbox=mailbox,
        notices=Notices(mailbox=mailbox, events=Events(mailbox), clock=Clock()),
        closing=asyncio.Event(),
        sleep=sleep,
    )
    return pauses


async def test_it_is_parked_though_its_chat_cannot_be_told(tmp_path: Path) -> None:
    mailbox = BreaksAt(tmp_path, notices=True)
    async with serving(mailbox), taken(mailbox) as found:
        pauses = await set_aside(mailbox, found)

        assert [parked.id for parked in await mailbox.parked()] == ["m1"]
    assert (mailbox.told, pauses) == (2, [1, 2])


async def test_one_that_cannot_be_parked_stays_in_its_queue(tmp_path: Path) -> None:
    """It is tried a few times, ever later; the next life of the queue has it again."""
    mailbox = BreaksAt(tmp_path, parking=True)
    async with serving(mailbox):
        with capture_logs() as logs:
            async with taken(mailbox) as found:
                pauses = await set_aside(mailbox, found)

        assert (mailbox.tried, pauses) == (5, [1, 2, 4, 8])
        assert [log["id"] for log in logs if log["event"] == "letter.left"] == ["m1"]
    again = EmbeddedMailbox(tmp_path)
    async with serving(again), again.take(INBOUND) as letters:
        assert [each.id for each in await collect(letters, 1)] == ["m1"]


async def test_one_that_is_lost_meanwhile_is_tried_no_more(tmp_path: Path) -> None:
    mailbox = EmbeddedMailbox(tmp_path)
    async with serving(mailbox):
        async with taken(mailbox) as found:
            pass

        assert await asyncio.wait_for(set_aside(mailbox, found), 20) == []
        assert await mailbox.parked() == []


async def test_the_letters_after_it_are_answered(tmp_path: Path) -> None:
    async with rig(tmp_path, mailbox=BreaksAt(tmp_path / "state", parking=True)) as r:
        await r.mailbox.put(Post(INBOUND, ADA, "junk", b"not json"))
        assert await r.say("hello", "m1") == "script: hello"


async def test_a_drain_waits_for_none_that_cannot_be_parked(tmp_path: Path) -> None:
    """Its next try may be a minute away; the next life of the daemon makes it."""
    mailbox = BreaksAt(tmp_path / "state", parking=True)
    async with rig(tmp_path, mailbox=mailbox) as r:
        await r.mailbox.put(Post(INBOUND, ADA, "junk", b"not json"))
        await until(lambda: mailbox.tried > 0)
        await r.worker.drain(5)
        await until(lambda: all(task.get_name() != "park unreadable" for task in asyncio.all_tasks()))

        assert mailbox.tried < completion.UNREADABLE_CRASHES_MAX


@pytest.mark.slow
async def test_the_lane_goes_on_and_the_letter_stays_in_its_queue(tmp_path: Path) -> None:
    mailbox = BreaksAt(tmp_path / "state", parking=True)
    with capture_logs() as logs:
        async with rig(tmp_path, ModelRefused("no"), "fine", mailbox=mailbox) as r:
            await r.put("poison", "m1")
            await r.put("next", "m2")

            # Each try puts the same notice again, which its channel knows by its id.
            *notices, reply = await r.replies(5)
            assert {(notice.kind, notice.id) for notice in notices} == {("notice", "m1#notice.refused")}
            assert (reply.in_reply_to, reply.text) == ("m2", "fine")
            await r.until_waiting(1)

    assert mailbox.tried == 4
    assert [(log["id"], log["tries"]) for log in logs if log["event"] == "letter.left"] == [("m1", 4)]


def broken(*_: Any, **__: Any) -> Any:
    raise TypeError("odd")


@guarantee(
    "failures", "A message that fails again and again before its turn is parked, and its chat continues."
)
async def test_a_letter_that_breaks_before_its_turn_is_parked(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """So is one whose conversation cannot be opened, without it."""
    monkeypatch.setattr(worker, "back_off_s", lambda _: 0.0)
    monkeypatch.setattr(edits, "settle", broken)
    async with rig(tmp_path) as r:
        await r.put("changed", "e1", kind="edit", platform_id="7")
        await r.put("next", "m2")

        notice, reply = await r.replies(2)
        assert (notice.id, notice.text, reply.text) == ("e1#notice.failed", UNANSWERED, "script: next")
        (parked,) = await r.parked()
        assert (parked.id, parked.reason, parked.attempts) == ("e1", "failed: TypeError", 4)
        monkeypatch.setattr(Store, "open", broken)
        await r.put("asked", "m1", key="foreign:bob")

        assert await r.ids(1) == ["m1#notice.failed"]
        assert [(each.id, each.reason) for each in await r.parked(2)][1:] == [("m1", "failed: TypeError")]
        await r.settled()
