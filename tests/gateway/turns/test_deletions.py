"""A deletion takes a message out that waits, and leaves one that was asked out of later requests."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from gateway.turns.collect import QueueRules
from tests.gateway.worker_rig import ADA, Rig, rig


async def delete(r: Rig, of: str) -> None:
    await r.put("", f"{of}:d", platform_id=of, kind="edit", meta={"deleted": True})


def asked(r: Rig, number: int) -> list[Any]:
    return [message["content"] for message in r.model.prompts[number].messages]


async def test_a_message_that_waits_is_never_asked(tmp_path: Path) -> None:
    """It ends silently; handed in again, it is known."""
    async with rig(tmp_path) as r:
        await r.begin("first", "m1", platform_id="1")
        await r.put("oops", "m2", platform_id="2")
        await delete(r, "2")
        await r.put("third", "m3", platform_id="3")
        await r.until_in_lane(4)
        r.model.release.set()

        assert await r.texts(2) == ["script: first", "script: third"]
        await r.settled()
        await r.put("oops", "m2", platform_id="2")
        await r.settled()
        assert r.unread == 0
        known = (await r.store.look(ADA)).journal.known("m2")
        assert known is not None
        assert (known.kind, known.reason) == ("withdrawn", "deleted")
        assert "oops" not in str(await r.lines())


async def test_a_message_that_was_asked_is_in_no_later_request(tmp_path: Path) -> None:
    """The deletion is noted once, the lines stay."""
    async with rig(tmp_path, "one", "two", "three") as r:
        await r.put("secret", "m1", platform_id="1")
        await r.put("other", "m2", platform_id="2")
        await r.replies(2)
        await delete(r, "1")
        await delete(r, "1")
        await r.put("third", "m3")
        await r.replies(1)

        assert asked(r, 2) == ["other", "two", "third"]
        notes = [line for line in await r.lines() if line["role"] == "system"]
        assert [(note["kind"], note["edits"], note["deleted"], note["content"]) for note in notes] == [
            ("note", "m1", True, "")
        ]


async def test_an_edit_behind_a_deletion_is_not_noted(tmp_path: Path) -> None:
    async with rig(tmp_path) as r:
        await r.put("secret", "m1", platform_id="1")
        await r.replies(1)
        await delete(r, "1")
        await r.put("other", "e1", platform_id="1", kind="edit")
        await r.settled()

        assert [line.get("deleted") for line in await r.lines() if line["role"] == "system"] == [True]


async def test_of_messages_that_were_answered_together_one_alone_is_left_out(tmp_path: Path) -> None:
    async with rig(tmp_path, "zero", "both", "next", queue=QueueRules("collect", collect_s=0)) as r:
        await r.begin("first", "m0")
        await r.put("secret", "m1", platform_id="1")
        await r.put("other", "m2", platform_id="2")
        await r.until_in_lane(3)
        r.model.release.set()
        await r.replies(2)
        await delete(r, "1")
        await r.put("third", "m3")
        await r.replies(1)

        assert asked(r, 2) == ["first", "zero", "other", "both", "third"]


async def test_one_deleted_before_its_collection_begins_is_not_collected(tmp_path: Path) -> None:
    async with rig(tmp_path, "zero", "both", queue=QueueRules("collect", collect_s=0)) as r:
        await r.begin("first", "m0")
        for number in (1, 2, 3):
            await r.put(f"line {number}", f"m{number}", platform_id=str(number))
        await delete(r, "2")
        await r.until_in_lane(5)
        r.model.release.set()
        await r.replies(2)
        await r.settled()

        assert asked(r, 1) == ["first", "zero", "line 1", "line 3"]
        assert (await r.lines())[-1]["answers"] == ["m1", "m3"]


async def test_retry_passes_over_a_deleted_message(tmp_path: Path) -> None:
    async with rig(tmp_path, "one", "two", "again") as r:
        await r.put("kept", "m1", platform_id="1")
        await r.put("secret", "m2", platform_id="2")
        await r.replies(2)
        await delete(r, "2")
        await r.put("/retry", "r1")

        assert await r.texts(1) == ["again"]
        assert asked(r, 2) == ["kept"]


async def test_a_deletion_of_what_nobody_asked_leaves_no_trace(tmp_path: Path) -> None:
    async with rig(tmp_path) as r:
        await delete(r, "404")
        await r.settled()

        assert await r.lines() == []
        assert (await r.store.look(ADA)).journal.known("404:d") is None
