"""A session that is opened again while it goes into memory: its history begins where it began."""

from __future__ import annotations

from pathlib import Path

import pytest

from session.errors import StoreError
from session.models.model import Answer, Prompt
from tests.session.boundary_place import reopen
from tests.session.memory_place import ADA, Workspace, open_workspace, saved, talk
from tests.support.guarantee import guarantee


async def end(workspace: Workspace, count: int, *, consolidated: int = 0) -> str:
    """End a session of that many messages, of which memory holds some; return its ULID."""
    await workspace.said(ADA, talk(count))
    async with workspace.store.open(ADA) as session:
        if consolidated:
            await session.checkpoint(last_consolidated=consolidated)
        session_id = session.session_id
    await workspace.new(ADA)
    return session_id


async def places(workspace: Workspace) -> tuple[str, int, int]:
    """Say which session is active, up to where memory holds it, and from where on it is sent."""
    view = await workspace.store.look(ADA)
    return view.session_id, view.last_consolidated, view.history_start


def reopening(workspace: Workspace, session_id: str) -> None:
    """Let the session be opened again while the model is asked next."""

    async def meanwhile(prompt: Prompt) -> Answer:
        await reopen(workspace.store, session_id, ADA)
        return saved()

    workspace.model.steps.append(meanwhile)


@guarantee("sessions", "A session that is reopened during memory consolidation keeps its history.")
@pytest.mark.parametrize("begins", [0, 2])
async def test_a_session_reopened_during_the_call_is_sent_as_before(tmp_path: Path, begins: int) -> None:
    """As one is that was opened again after the call."""
    async with open_workspace(tmp_path) as workspace:
        session_id = await end(workspace, 6, consolidated=begins)
        reopening(workspace, session_id)

        done = await workspace.memory.consolidate(ADA, session_id=session_id)

        assert done.messages == 6 - begins
        assert await places(workspace) == (session_id, 6, begins)


async def test_a_session_reopened_between_two_pieces_is_consolidated_no_further(tmp_path: Path) -> None:
    """Its newest messages are those of an active session; when it ends, each goes into memory once."""
    async with open_workspace(tmp_path, max_chars=120) as workspace:
        session_id = await end(workspace, 8)
        reopening(workspace, session_id)

        done = await workspace.memory.consolidate(ADA, session_id=session_id)

        assert (done.calls, await places(workspace)) == (1, (session_id, done.messages, 0))
        assert 0 < done.messages < 8

        await workspace.new(ADA)
        await workspace.memory.consolidate(ADA, session_id=session_id)

        asked = [workspace.model.text(call) for call in range(len(workspace.model.seen))]
        assert [sum(f"message {number}" in text for text in asked) for number in range(8)] == [1] * 8


async def test_an_answer_that_a_process_left_takes_no_history_from_a_reopened_session(tmp_path: Path) -> None:
    """It says itself that its session had ended when it was made."""
    async with open_workspace(tmp_path) as workspace:
        session_id = await end(workspace, 6)
        path = (await workspace.scope(ADA)).memory / "HISTORY.md"

        def refused(prompt: Prompt) -> Answer:
            path.mkdir(parents=True)
            return saved()

        workspace.model.steps.append(refused)
        with pytest.raises(StoreError):
            await workspace.memory.consolidate(ADA, session_id=session_id)
        path.rmdir()
    async with open_workspace(tmp_path) as workspace:
        await reopen(workspace.store, session_id, ADA)

        await workspace.memory.settle()

        assert workspace.model.seen == []
        assert await places(workspace) == (session_id, 6, 0)
