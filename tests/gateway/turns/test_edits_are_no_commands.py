"""An edit never turns a message into a command: who may send one was decided when the message came."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.gateway.worker_rig import rig


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
