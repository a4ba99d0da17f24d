"""What an adapter emits is a durable letter when ``accept`` returns, whatever came with it."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from datetime import datetime, timedelta, timezone
from pathlib import Path

import pytest
from structlog.testing import capture_logs

from channels.base import Arrival, File, Quote
from channels.message import Inbound, Sender
from channels.pairing import Pairing, approved
from channels.tables import Platform
from gateway.queue.embedded.mailbox import EmbeddedMailbox
from tests.gateway.embedded_place import vanish
from tests.gateway.inbound.reception_front import (
    ADA,
    BOB,
    GROUP,
    NOON,
    OPEN,
    Front,
    arrival,
    begun_to_wait,
    file,
    front,
    in_group,
)

# ── what is taken ────────────────────────────────────────────────────────────────────────────────────────


async def test_a_message_is_durable_when_accept_returns(tmp_path: Path) -> None:
    async with front(tmp_path) as place:
        await place.accept(arrival())

        await vanish(place.mailbox)
        async with front(tmp_path) as again:
            [inbound] = await again.inbound()
    assert (inbound.id, inbound.key, inbound.text) == ("telegram:9:1", "telegram:100", "hello")


async def test_a_letter_says_all_that_arrived(tmp_path: Path) -> None:
    sent_at = datetime(2026, 5, 1, 13, 59, 58, tzinfo=timezone(timedelta(hours=2)))
    async with front(tmp_path) as place:
        await place.accept(
            in_group(
                kind="edit",
                mentioned=True,
                reply_to="70",
                sent_at=sent_at,
                meta={"thread": 3, "names": ["a"], "none": None},
            )
        )

        [inbound] = await place.inbound()
    assert inbound == Inbound(
        v=1,
        id="telegram:9:1",
        key="telegram:-5:topic:3",
        channel="telegram",
        chat_id="-5:topic:3",
        text="hello",
        kind="edit",
        platform_id="71",
        sender=Sender(id=BOB, name="Ada", username="ada"),
        group=True,
        mentioned=True,
        reply_to="70",
        sent_at="2026-05-01T11:59:58.000000+00:00",
        received_at="2026-05-01T12:00:00.000000+00:00",
        meta={"thread": 3, "names": ["a"], "none": None},
    )


async def test_what_no_json_can_carry_is_replaced_and_not_fatal(tmp_path: Path) -> None:
    torn = "half \ud83d of a smile \U0001f600"
    async with front(tmp_path) as place:
        await place.accept(
            arrival(text=torn, sender=Sender(id=ADA, name=torn), meta={torn: torn, "at": NOON, "set": (1, 2)})
        )

        [inbound] = await place.inbound()
    mended = "half \ufffd of a smile \U0001f600"
    assert (inbound.text, inbound.sender.name) == (mended, mended)
    assert inbound.meta == {mended: mended, "at": str(NOON), "set": [1, 2]}


async def test_a_letter_says_what_its_message_refers_to_with_its_files(tmp_path: Path) -> None:
    quote = Quote("Zed", "the rack \ud83d", "9", files=(file(b"GIF89a"), file(size=2**21)))
    async with front(tmp_path) as place:
        await place.accept(arrival(quoted=quote, forwarded_from="News \ud83d", part_of="album:1"))

        [inbound] = await place.inbound()
    assert (inbound.text, inbound.forwarded_from, inbound.part_of) == ("hello", "News \ufffd", "album:1")
    assert inbound.quoted is not None
    assert inbound.quoted.text == "the rack \ufffd\n[photo not loaded: over 1 MB]"
    assert (inbound.quoted.author, inbound.quoted.message_id, inbound.quoted.own) == ("Zed", "9", False)
    assert inbound.attachments == []
    [attachment] = inbound.files
    assert (tmp_path / attachment.ref).read_bytes() == b"GIF89a"


async def test_a_file_is_in_the_workspace_before_its_letter(tmp_path: Path) -> None:
    async with front(tmp_path) as place:
        await place.accept(arrival(text="look", files=(file(b"GIF89a", b"..", name="../cat.gif"),)))

        [inbound] = await place.inbound()
    [attachment] = inbound.attachments
    assert inbound.text == "look"
    assert (attachment.name, attachment.mime, attachment.size) == ("cat.gif", "image/gif", 8)
    assert (tmp_path / attachment.ref).read_bytes() == b"GIF89a.."


@pytest.mark.parametrize(
    ("text", "stored"),
    [
        ("look", "look\n[photo not loaded: over 1 MB]\n[voice not loaded: the platform does not provide it]"),
        ("", "[photo not loaded: over 1 MB]\n[voice not loaded: the platform does not provide it]"),
    ],
)
async def test_a_file_that_cannot_be_had_is_a_line_of_the_text(
    tmp_path: Path, text: str, stored: str
) -> None:
    gone = file(error=RuntimeError("gone"), kind="voice")
    async with front(tmp_path) as place:
        await place.accept(arrival(text=text, files=(file(size=2**21), file(b"GIF89a"), gone)))

        [inbound] = await place.inbound()
    assert inbound.text == stored
    assert len(inbound.attachments) == 1


async def test_a_slow_file_holds_up_its_own_chat_only(tmp_path: Path) -> None:
    reached, release = asyncio.Event(), asyncio.Event()

    async def fetch() -> AsyncIterator[bytes]:
        reached.set()
        await release.wait()
        yield b"x"

    slow = File(kind="video", name="", mime="", size=None, fetch=fetch)
    async with front(tmp_path, Platform(direct="open")) as place:
        waiting = asyncio.create_task(place.accept(arrival(files=(slow,))))
        await reached.wait()
        await place.accept(arrival(BOB, id="telegram:9:2"))
        first = [each.key for each in await place.inbound()]
        release.set()
        await waiting
        second = [each.key for each in await place.inbound()]
    assert (first, second) == (["telegram:200"], ["telegram:100"])


# ── the queue is away ────────────────────────────────────────────────────────────────────────────────────


async def test_while_the_queue_is_away_accept_waits_and_then_the_message_is_in(tmp_path: Path) -> None:
    """It returns as soon as the queue is back, in the order of the calls."""
    mailbox = EmbeddedMailbox(tmp_path / "queue")
    place = Front(mailbox, tmp_path, OPEN)

    async def both() -> None:
        await place.accept(arrival())
        await place.accept(arrival(id="telegram:9:2"))

    waiting = await begun_to_wait(both())
    serving = asyncio.create_task(mailbox.serve())
    await asyncio.wait_for(waiting, 10)
    try:
        assert [each.id for each in await place.inbound()] == ["telegram:9:1", "telegram:9:2"]
    finally:
        serving.cancel()
        await asyncio.wait([serving])


async def test_accept_can_be_cancelled_while_the_queue_is_away(tmp_path: Path) -> None:
    place = Front(EmbeddedMailbox(tmp_path / "queue"), tmp_path, OPEN)
    waiting = await begun_to_wait(place.accept(arrival()))

    waiting.cancel()

    with pytest.raises(asyncio.CancelledError):
        await waiting


# ── a group that moves ───────────────────────────────────────────────────────────────────────────────────


def moved() -> Arrival:
    return arrival(
        chat_id="-1005", group=True, group_ids=("-1005",), text="", sender=Sender(), moved_from=GROUP
    )


async def test_a_group_that_moves_is_one_letter_under_its_old_key(tmp_path: Path) -> None:
    """Whoever configured it is warned: a table of the policy for the old id holds no longer."""
    with capture_logs() as logs:
        async with front(tmp_path) as place:
            await place.accept(moved())

            [inbound] = await place.inbound()
    assert (inbound.id, inbound.key, inbound.chat_id) == ("telegram:9:1", "telegram:-5", GROUP)
    assert (inbound.kind, inbound.text) == ("action", "")
    assert inbound.meta == {"moved_to": "telegram:-1005"}
    (warned,) = [each for each in logs if each["event"] == "group.moved"]
    assert (warned["log_level"], warned["old"], warned["new"]) == ("warning", GROUP, "-1005")
    assert "[tools.policy.chats]" in warned["hint"]


async def test_a_group_that_was_let_in_still_is_after_it_moved(tmp_path: Path) -> None:
    async with front(tmp_path) as place:
        await place.accept(moved())
        await place.accept(moved())
        await place.accept(
            in_group(BOB, id="telegram:9:2", chat_id="-1005", group_ids=("-1005",), mentioned=True)
        )

        assert [each.key for each in await place.inbound()][-1] == "telegram:-1005"
    assert approved(place.state, "telegram").groups == {"-1005"}
    assert len(Pairing(place.state).rows()) == 1


async def test_a_group_that_was_not_let_in_is_not_after_it_moved(tmp_path: Path) -> None:
    async with front(tmp_path, Platform()) as place:
        await place.accept(moved())

    assert approved(place.state, "telegram").groups == frozenset()
