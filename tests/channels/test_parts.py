"""Which arrivals are parts of one question, and what ends the wait for a further part."""

from __future__ import annotations

import asyncio
from typing import Any

from channels.base import Arrival, Quote
from channels.message import PARTS, Sender
from channels.parts import Batch, Parts


def arrival(number: int, text: str = "x", *, by: str = "1", **more: Any) -> Arrival:
    return Arrival(id=f"t:{number}", chat_id="-5", text=text, sender=Sender(id=by), **more)


def ids(batches: list[Batch[None]]) -> list[list[str]]:
    return [[arrival.id for arrival, _ in batch] for batch in batches]


async def test_the_last_part_of_a_text_is_the_first_short_one() -> None:
    parts: Parts[None] = Parts(lambda batch: None)

    taken = [
        parts.take(each, None)
        for each in (arrival(1, long=True), arrival(2, by="2"), arrival(3, long=True), arrival(4))
    ]

    assert [ids(each) for each in taken] == [[], [["t:2"]], [], [["t:1", "t:3", "t:4"]]]
    assert {(each.part_of, tuple(each.meta[PARTS])) for each, _ in taken[3][0]} == {
        ("t:1", ("t:1", "t:3", "t:4"))
    }
    assert not parts.waiting


async def test_all_parts_of_a_reply_are_replies_to_the_same_message() -> None:
    parts: Parts[None] = Parts(lambda batch: None)

    quote = Quote(text="as said")

    parts.take(arrival(1, long=True, reply_to="7", quoted=quote), None)
    (batch,) = parts.take(arrival(2, reply_to="7", quoted=quote), None)

    assert [(each.id, each.quoted) for each, _ in batch] == [("t:1", quote), ("t:2", None)]


async def test_what_is_no_part_ends_the_wait_and_comes_behind_it() -> None:
    """A command, an edit, a file, a reply, a picture of another album."""
    others = [
        arrival(2, "/status"),
        arrival(2, kind="edit", platform_id="7"),
        arrival(2, reply_to="7"),
        arrival(2, part_of="a2"),
    ]
    for other in others:
        ready: list[Batch[None]] = []
        parts: Parts[None] = Parts(ready.append)
        assert parts.take(arrival(1, long=True), None) == []

        now = ids(parts.take(other, None))

        assert now == ([["t:1"]] if other.part_of else [["t:1"], ["t:2"]])
        parts.close()


async def test_a_part_that_comes_late_is_meant_as_its_album_was_and_waits_no_longer_than_said() -> None:
    ready: asyncio.Queue[Batch[None]] = asyncio.Queue()
    parts: Parts[None] = Parts(ready.put_nowait, wait_s=0.01)
    for number in (1, 2):
        assert parts.take(arrival(number, part_of="a", mentioned=number == 2, group=True), None) == []
    together = await ready.get()
    assert parts.take(arrival(3, part_of="a", group=True), None) == []

    late = await ready.get()

    assert [each.mentioned for each, _ in [*together, *late]] == [True, True, True]
    assert (together[0][0].part_of, late[0][0].part_of) == ("a", None)
