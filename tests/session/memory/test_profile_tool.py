"""The tool ``profile``: what it keeps, what it refuses, and how a profile that is too long is merged."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from session.errors import ModelAway
from session.memory.profile import Profile
from session.models.model import Answer, Prompt, ToolCall
from session.tools import Toolbox, ToolPlace, ToolResult
from tests.session.memory_place import ADA, BOB, Workspace, open_workspace, user
from tests.support.guarantee import guarantee

SECTIONS = "timezone: Europe/Berlin\n\n## Work\n" + "long " * 60 + "\n\n## Tone\nshort\n"


async def kept(house: Workspace, *, max_bytes: int = 8192, key: str = ADA, **arguments: str) -> ToolResult:
    """Let the model call the tool in a conversation."""
    scope = await house.scope(ADA)
    view = await house.store.look(ADA)
    where = ToolPlace(scope.files, key, view.stem, scope=scope.name, session_id=view.session_id)
    box = Toolbox([Profile(house.memory, max_bytes=max_bytes)])
    return await box.run(ToolCall("1", "profile", json.dumps(arguments)), where, ("profile",))


@pytest.fixture
async def house(house: Workspace) -> Workspace:
    await house.said(ADA, [user("hi")])
    return house


async def test_it_writes_into_the_scope_of_its_conversation(house: Workspace, tmp_path: Path) -> None:
    first = await kept(house, section="Name", text="Ada", timezone="Europe/Berlin")
    again = await kept(house, section="Name", text="Ada")

    assert (first.text, again.text) == ("the profile was changed", "the profile already says so")
    path = tmp_path / "memory/chats/telegram_1/USER.md"
    assert path.read_text() == "timezone: Europe/Berlin\n\n## Name\nAda\n"
    assert (path.stat().st_mode & 0o777, path.parent.stat().st_mode & 0o777) == (0o600, 0o700)


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        ({}, "nothing to change"),
        ({"timezone": "Mars/Base"}, "not a time zone"),
        ({"how": "burn", "text": "x"}, "not one of"),
    ],
)
async def test_what_it_cannot_do_it_says(
    house: Workspace, tmp_path: Path, arguments: dict[str, str], words: str
) -> None:
    refused = await kept(house, **arguments)

    assert refused.is_error
    assert words in refused.text
    assert not (tmp_path / "memory").exists()


async def test_without_a_scope_it_is_not_on_offer(house: Workspace, tmp_path: Path) -> None:
    assert not Profile(house.memory, max_bytes=1).serves(ToolPlace(tmp_path, ADA))


async def test_a_profile_that_outgrows_its_limit_is_merged_once(tmp_path: Path) -> None:
    """The small model is asked; the zone, which it forgot, is put back."""
    async with open_workspace(tmp_path, small_model="small") as house:
        house.model.wrote.append(Answer("## Work\nlong\n\n## Tone\nshort\n\n## Name\nAda"))
        await house.said(ADA, [user("hi")])
        (path := tmp_path / "memory/chats/telegram_1/USER.md").parent.mkdir(parents=True)
        path.write_text(SECTIONS)

        done = await kept(house, section="Name", text="Ada", max_bytes=300)

        assert "shortened" in done.text
        assert path.read_text() == (
            "timezone: Europe/Berlin\n\n## Work\nlong\n\n## Tone\nshort\n\n## Name\nAda\n"
        )
        assert [prompt.model for prompt in house.model.prose] == ["small"]
        assert house.memory.budget.shown()["calls_last_hour"] == 1


@guarantee("sessions", "A profile that is shortened loses no heading.")
@pytest.mark.parametrize(
    "answer",
    [
        "## Work\nlong\n\n## Name\nAda",
        "",
        "<html><body>502</body></html>",
        "## Work\n" + "long " * 80 + "\n\n## Tone\nshort\n\n## Name\nAda",
        ModelAway("away", cause="unreachable"),
    ],
    ids=["heading lost", "empty", "error page", "too long", "away"],
)
async def test_a_merge_that_loses_something_changes_nothing(
    house: Workspace, tmp_path: Path, answer: str | ModelAway
) -> None:
    house.model.wrote.append(Answer(answer) if isinstance(answer, str) else answer)
    (path := tmp_path / "memory/chats/telegram_1/USER.md").parent.mkdir(parents=True)
    path.write_text(SECTIONS)

    refused = await kept(house, section="Name", text="Ada", max_bytes=300)

    assert refused.is_error
    assert "replace a section with a shorter text" in refused.text
    assert path.read_text() == SECTIONS


async def test_one_that_a_person_let_grow_may_still_be_made_shorter(house: Workspace, tmp_path: Path) -> None:
    (path := tmp_path / "memory/chats/telegram_1/USER.md").parent.mkdir(parents=True)
    path.write_text(SECTIONS)

    done = await kept(house, section="Tone", text="", how="replace", max_bytes=300)

    assert done.text == "the profile was changed"
    assert "Tone" not in path.read_text()


async def test_an_edit_by_hand_meanwhile_stands(tmp_path: Path) -> None:
    path = tmp_path / "memory/chats/telegram_1/USER.md"

    def edited(_: Prompt) -> Answer:
        path.write_text("by hand")
        return Answer("## Work\nlong\n\n## Tone\nshort\n\n## Name\nAda")

    async with open_workspace(tmp_path) as house:
        house.model.wrote.append(edited)
        await house.said(ADA, [user("hi")])
        path.parent.mkdir(parents=True)
        path.write_text(SECTIONS)

        refused = await kept(house, section="Name", text="Ada", max_bytes=300)

        assert "it was changed at the same time" in refused.text
        assert path.read_text() == "by hand"


async def test_after_a_conversation_was_cleared_nothing_of_it_is_written(
    house: Workspace, tmp_path: Path
) -> None:
    view = await house.store.look(ADA)
    where = ToolPlace(tmp_path, ADA, view.stem, scope="chats/telegram_1", session_id=view.session_id)
    await house.store.clear(ADA, everything=True)

    call = ToolCall("1", "profile", json.dumps({"text": "secret"}))
    done = await Toolbox([Profile(house.memory, max_bytes=99)]).run(call, where, ("profile",))

    assert "the conversation no longer exists" in done.text
    assert not (tmp_path / "memory/chats/telegram_1").exists()


async def test_another_chats_profile_is_out_of_reach(house: Workspace) -> None:
    await house.said(BOB, [user("hi")])

    await kept(house, section="Name", text="Ada")

    assert not (await house.scope(BOB)).memory.exists()
