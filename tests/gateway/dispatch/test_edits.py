"""An edit changes the text of a message, before and after it was asked; it never runs a turn."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from channels.message import Inbound
from gateway.dispatch import edits
from gateway.dispatch.lanes import Lane, PendingMessage
from session.errors import ModelAway
from tests.gateway.dispatch.test_parking import takes_its_time
from tests.gateway.handed_letter import HandedLetter
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
            await r.say("hello", "m1", platform_id="77")

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


async def test_an_edit_that_comes_again_is_noted_once_also_after_a_later_edit(tmp_path: Path) -> None:
    """One back to the first text is noted as well, once."""
    async with rig(tmp_path) as r:
        await r.say("a", "m1", platform_id="77")
        for text, name in (
            *(("b", "e1"), ("c", "e2"), ("b", "e1"), ("c", "e2")),
            *(("a", "e3"), ("a", "e4")),
        ):
            await edit(r, text, name)
            await r.settled()

        assert await user_and_notes(r) == [("user", "a"), ("note", "b"), ("note", "c"), ("note", "a")]


async def test_an_edit_of_an_unknown_message_ends_silently_and_is_journalled(tmp_path: Path) -> None:
    async with rig(tmp_path) as r:
        await edit(r, "what", "e1", of="404")
        await r.settled()

        view = await r.store.look(ADA)
        known = view.journal.known("e1")
        assert known is not None
        assert (known.kind, known.reason, known.seq) == ("silent", "edit", None)
        assert (len(view), r.model.prompts) == (0, [])


@pytest.mark.parametrize("platform_id", ["77", 'a"b', "zé\\", "\U0001f600"])
async def test_a_platform_id_is_found_in_whatever_way_it_is_written(tmp_path: Path, platform_id: str) -> None:
    async with rig(tmp_path) as r:
        await r.say("hello", "m1", platform_id=platform_id)
        await edit(r, "hallo", "e1", of=platform_id)
        await r.settled()

        assert await user_and_notes(r) == [("user", "hello"), ("note", "hallo")]


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
        await r.until_paused()
        for text, name in (("scond", "e1"), ("/new", "e2"), ("second", "e3")):
            await edit(r, text, name)
        await r.until_in_lane(4)
        await r.go_on()

        assert await r.texts(1) == ["script: second"]
        await r.settled()
        question = [("user", "secnod")] if is_stored else [("user", "second")]
        assert [line for line in await user_and_notes(r) if line[0] == "user"] == question
        assert (await user_and_notes(r))[-1][1] == "second"


def test_an_edit_without_a_platform_id_changes_nothing() -> None:
    lane = Lane(ADA)
    lane.add(PendingMessage(letter("old", "m1"), HandedLetter("m1"), 0.0))

    edits.replace(lane, Inbound(**letter("new", "e1", kind="edit").model_dump()))

    assert lane.entries[0].inbound.text == "old"


@pytest.mark.parametrize(
    "command", ["/new", " /NEW now", "/resume", "/undo", "/compact", "/status", "/retry"]
)
@pytest.mark.parametrize("group", [True, False])
async def test_a_waiting_message_edited_to_a_command_is_asked_as_it_was(
    tmp_path: Path, command: str, group: bool
) -> None:
    async with rig(tmp_path) as r:
        await r.put_edited("second", command, group=group)

        assert await r.texts(2) == ["script: first", "script: second"]
        await r.settled()
        lines = [line for line in await r.lines() if line["role"] != "assistant"]
        assert [(line.get("kind"), line["content"]) for line in lines] == [
            (None, "first"),
            (None, "second"),
            ("note", command),
        ]


async def test_a_waiting_command_edited_to_another_is_run_as_it_was(tmp_path: Path) -> None:
    """Whoever may ask for ``/help`` need not be one who may ask for ``/new``."""
    async with rig(tmp_path) as r:
        await r.put_edited("/help", "/new")

        assert "/new starts a new conversation" in (await r.texts(2))[1]
        await r.settled()
        assert not (tmp_path / "sessions" / "archive").exists()


async def test_a_waiting_command_edited_to_a_question_is_asked(tmp_path: Path) -> None:
    """What a command was may be taken back, as long as it waits."""
    async with rig(tmp_path) as r:
        await r.put_edited("/new", "and now?")

        assert (await r.texts(2))[1] == "script: and now?"
        assert not (tmp_path / "sessions" / "archive").exists()


async def test_of_an_edit_to_a_command_and_one_to_a_text_the_text_counts(tmp_path: Path) -> None:
    async with rig(tmp_path) as r:
        await r.put_edited("secnod", "/new", "second")

        assert (await r.texts(2))[1] == "script: second"
        await r.settled()
        assert [line["content"] for line in await r.lines() if line["role"] == "system"] == []
