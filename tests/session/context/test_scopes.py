"""Whose memory a chat sees."""

from __future__ import annotations

from pathlib import Path

import pytest

from session.context.scopes import Reader, Scopes
from session.transcript.line import make_line
from tests.session.memory_place import ADA, BOB, open_workspace, talk


def test_each_chat_has_its_own(tmp_path: Path) -> None:
    """In scope ``chat`` notes and files lie under the transcript's own name, suffix included."""
    scope = Scopes(tmp_path, kind="chat").of(Reader("a:b:c", "direct"), stem="a_b_c~1a2b3c4d")

    assert scope.memory == tmp_path / "memory/chats/a_b_c~1a2b3c4d"
    assert scope.files == tmp_path / "files/chats/a_b_c~1a2b3c4d"


def test_workspace_is_one_for_all_but_groups(tmp_path: Path) -> None:
    """In scope ``workspace`` direct chats share one memory, and a group sees its own alone."""
    scopes = Scopes(tmp_path, kind="workspace")

    direct = scopes.of(Reader("telegram:1", "direct"), stem="telegram_1")
    group = scopes.of(Reader("telegram:-5", "group"), stem="telegram_-5")

    assert (direct.memory, direct.files) == (tmp_path / "memory", tmp_path / "files")
    assert group.memory == tmp_path / "memory/chats/telegram_-5"
    assert group.name != direct.name


def test_a_chat_may_be_named_as_the_shared_scope(tmp_path: Path) -> None:
    """A transcript called ``workspace`` does not fall into the state of the shared scope."""
    chat = Scopes(tmp_path, kind="chat").of(Reader("workspace", None), stem="workspace")
    shared = Scopes(tmp_path, kind="workspace").of(Reader("telegram:1", "direct"), stem="telegram_1")

    assert chat.name != shared.name


@pytest.mark.parametrize("ended", [False, True])
async def test_a_groups_talk_stays_out_of_the_shared_memory(tmp_path: Path, ended: bool) -> None:
    """Background work knows a group by its stored lines, after a restart and an end too."""
    async with open_workspace(tmp_path, kind="workspace") as first:
        await first.said(BOB, talk(10, group=True))
        if ended:
            await first.new(BOB)
            assert (await first.scope(BOB)).memory == tmp_path / "memory/chats/telegram_2"

    async with open_workspace(tmp_path, kind="workspace") as second:
        await second.said(ADA, talk(10))
        await second.jobs.at_once(BOB)
        await second.jobs.at_once(ADA)

        assert (tmp_path / "memory/chats/telegram_2/MEMORY.md").read_text() == (
            "- fact 1 (said in the group)\n"
        )
        assert (tmp_path / "memory/MEMORY.md").read_text() == "- fact 2\n"


async def test_prompt_holds_no_other_chats_notes(tmp_path: Path) -> None:
    """What one chat's memory holds is never shown to the model for another chat."""
    async with open_workspace(tmp_path) as workspace:
        await workspace.said(ADA, [make_line("user", "the code is 4711", "2026-01-31T09:00:00"), *talk(11)])
        await workspace.said(BOB, talk(12))
        await workspace.memory.consolidate(ADA)
        await workspace.memory.consolidate(BOB)

        assert "4711" in workspace.model.text(0)
        assert "4711" not in workspace.model.text(1)
        assert "fact 1" not in workspace.model.text(1)
