"""An edit changes the text of a message, before and after it was asked; it never runs a turn."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from channels.message import Inbound
from gateway.turns import edits
from gateway.turns.lanes import Entry, Lane
from session.errors import ModelAway
from tests.gateway.handed_letter import HandedLetter
from tests.gateway.turns.test_parking import takes_its_time
from tests.gateway.waits import until
from tests.gateway.worker_rig import ADA, Rig, letter, rig
from tests.support.guarantee import guarantee


async def edit(r: Rig, text: str, id: str, *, of: str = "77") -> None:
    await r.put(text, id, platform_id=of, kind="edit")


async def user_and_notes(r: Rig) -> list[tuple[str, Any]]:
    return [
        (line.get("kind") or line["role"], line["content"])
        for line in await r.lines()
        if line["role"] in ("user", "system")
    ]


async def test_a_message_that_waits_is_asked_with_the_text_it_was_edited_to(tmp_path: Path) -> None:
    async with rig(tmp_path) as r:
        await r.put_edited("secnod", "second")

        assert await r.texts(2) == ["script: first", "script: second"]
        await r.settled()
        assert await user_and_notes(r) == [("user", "first"), ("user", "second")]


async def test_of_two_edits_of_a_message_that_waits_the_newer_one_counts_and_none_is_noted(
    tmp_path: Path,
) -> None:
    async with rig(tmp_path) as r:
        await r.put_edited("a", "b", "c")

        assert await r.texts(2) == ["script: first", "script: c"]
        await r.settled()
        assert await user_and_notes(r) == [("user", "first"), ("user", "c")]


@guarantee("once", "An edit of a message that was already asked adds one note and starts no turn.")
@pytest.mark.parametrize("running", [True, False])
async def test_an_edit_of_a_message_that_was_asked_is_one_note_without_turn_or_reply(
    tmp_path: Path, running: bool
) -> None:
    async with rig(tmp_path) as r:
        if running:
            await r.begin("hello", "m1", platform_id="77")
        else:
            await r.put("hello", "m1", platform_id="77")
            await r.replies(1)

        await edit(r, "/stop", "e1")
        r.model.release.set()
        if running:
            assert await r.texts(1) == ["script: hello"]
        await r.settled()

        (note,) = [line for line in await r.lines() if line["role"] == "system"]
        assert list(note)[:3] == ["role", "content", "timestamp"]
        assert (note["kind"], note["edits"], note["message_id"]) == ("note", "m1", "e1")
        assert note["content"] == "/stop"
        assert len(r.model.prompts) == 1


async def test_the_next_request_has_the_new_text_in_the_place_of_the_old_one(tmp_path: Path) -> None:
    async with rig(tmp_path, "one", "two") as r:
        await r.put("hello", "m1", platform_id="77")
        await r.replies(1)
        await edit(r, "hallo", "e1")
        await r.put("again", "m2", platform_id="78")
        await r.replies(1)

        assert [message["content"] for message in r.model.prompts[1].messages] == ["hallo", "one", "again"]


async def test_an_edit_that_comes_again_is_noted_once_also_after_a_later_edit(tmp_path: Path) -> None:
    async with rig(tmp_path) as r:
        await r.put("a", "m1", platform_id="77")
        await r.replies(1)
        for text, name in (("b", "e1"), ("c", "e2"), ("b", "e1"), ("c", "e2")):
            await edit(r, text, name)
            await r.settled()

        assert await user_and_notes(r) == [("user", "a"), ("note", "b"), ("note", "c")]


async def test_an_edit_back_to_the_first_text_is_noted_too(tmp_path: Path) -> None:
    async with rig(tmp_path) as r:
        await r.put("a", "m1", platform_id="77")
        await r.replies(1)
        for text, name in (("b", "e1"), ("a", "e2"), ("a", "e3")):
            await edit(r, text, name)
            await r.settled()

        assert await user_and_notes(r) == [("user", "a"), ("note", "b"), ("note", "a")]


async def test_an_edit_of_an_unknown_message_ends_silently_and_is_journalled(tmp_path: Path) -> None:
    async with rig(tmp_path) as r:
        await edit(r, "what", "e1", of="404")
        await r.settled()

        view = await r.store.look(ADA)
        known = view.journal.known("e1")
        assert known is not None
        assert (known.kind, known.reason, known.seq) == ("silent", "edit", None)
        assert (len(view), r.model.prompts) == (0, [])


async def test_an_edit_of_a_message_of_an_ended_session_ends_silently(tmp_path: Path) -> None:
    async with rig(tmp_path) as r:
        await r.put("hello", "m1", platform_id="77")
        await r.put("/new", "m2")
        await r.replies(2)
        await edit(r, "hallo", "e1")
        await r.settled()

        assert await r.lines() == []


async def test_a_message_that_comes_again_with_its_old_text_gets_the_note_from_the_edit_behind_it(
    tmp_path: Path,
) -> None:
    """The daemon died after the edit was taken in, before anything was stored: both letters come again."""
    async with rig(tmp_path, "hi") as r:
        await r.put("secnod", "m2", platform_id="77")
        # It is asked before the edit is seen again.
        await r.replies(1)
        await edit(r, "second", "e1")
        await r.settled()

        assert await user_and_notes(r) == [("user", "secnod"), ("note", "second")]


@pytest.mark.parametrize("platform_id", ["77", 'a"b', "zé\\", "\U0001f600"])
async def test_a_platform_id_is_found_in_whatever_way_it_is_written(tmp_path: Path, platform_id: str) -> None:
    async with rig(tmp_path) as r:
        await r.put("hello", "m1", platform_id=platform_id)
        await r.replies(1)
        await edit(r, "hallo", "e1", of=platform_id)
        await r.settled()

        assert await user_and_notes(r) == [("user", "hello"), ("note", "hallo")]


def test_only_a_message_that_has_not_begun_gets_the_new_text() -> None:
    lane = Lane(ADA)
    running, tried, waits, other = (
        Entry(letter("old", name, platform_id=on), HandedLetter(name), 0.0)
        for name, on in (("m1", "77"), ("m2", "77"), ("m3", "77"), ("m4", "78"))
    )
    tried.tries.waits = 1
    for entry in (running, tried, waits, other):
        lane.add(entry)
    lane.running = running

    edits.replace(lane, letter("new", "e1", platform_id="77", kind="edit"))

    assert [entry.inbound.text for entry in lane.entries] == ["old", "old", "new", "old"]
    assert [entry.edited for entry in lane.entries] == ["new", "new", None, None]


def test_the_first_of_a_lane_gets_the_new_text_at_its_next_try() -> None:
    """Its question may be stored, of a try in an earlier process; a command leaves none."""
    for text, now, at_next_try in (("old", "old", "new"), ("/help", "new", None)):
        lane = Lane(ADA)
        lane.add(Entry(letter(text, "m1", platform_id="77"), HandedLetter("m1"), 0.0))

        edits.replace(lane, letter("new", "e1", platform_id="77", kind="edit"))

        assert (lane.entries[0].inbound.text, lane.entries[0].edited) == (now, at_next_try)


@pytest.mark.parametrize("is_stored", [False, True])
async def test_a_message_edited_while_the_model_is_away_is_asked_with_its_new_text(
    tmp_path: Path, is_stored: bool
) -> None:
    """The line that is stored stays as it was asked, and the new text is noted beside it."""
    away = ModelAway("503", cause="unreachable", after_s=60)
    async with rig(tmp_path, away) as r:
        if is_stored:
            takes_its_time(r)
        await r.put("secnod", "m1", platform_id="77")
        await until(lambda: (lane := r.worker.lanes.get(ADA)) is not None and lane.nudge is not None)
        for text, name in (("scond", "e1"), ("/new", "e2"), ("second", "e3")):
            await edit(r, text, name)
        await r.until_in_lane(4)
        lane = r.worker.lanes.get(ADA)
        assert lane is not None
        assert lane.nudge is not None
        lane.nudge.set()

        assert await r.texts(1) == ["script: second"]
        await r.settled()
        question = [("user", "secnod")] if is_stored else [("user", "second")]
        assert [line for line in await user_and_notes(r) if line[0] == "user"] == question
        assert (await user_and_notes(r))[-1][1] == "second"


def test_an_edit_without_a_platform_id_changes_nothing() -> None:
    lane = Lane(ADA)
    lane.add(Entry(letter("old", "m1"), HandedLetter("m1"), 0.0))

    edits.replace(lane, Inbound(**letter("new", "e1", kind="edit").model_dump()))

    assert lane.entries[0].inbound.text == "old"
