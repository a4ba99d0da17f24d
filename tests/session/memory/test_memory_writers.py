"""Several writers of one memory, its files, and sessions that are opened again while they go into it."""

from __future__ import annotations

import asyncio
import gc
import sys
from contextlib import AsyncExitStack
from pathlib import Path

import pytest

from durable import listening
from session.errors import NotNow, StoreError
from session.memory.scope_state import ScopeStates
from session.models.model import Answer, Prompt
from session.store.state import workspace_state
from session.transcript.key import SessionKey
from tests.session.memory_place import ADA, BOB, MARK, Workspace, open_workspace, saved, talk
from tests.session.store_place import reopen
from tests.support.guarantee import guarantee

# -- several writers -------------------------------------------------------------------------------------


async def test_the_notes_of_a_scope_are_taken_by_one_process_at_a_time(tmp_path: Path) -> None:
    """Two chats share it: while one's are taken elsewhere the other's wait, and a kill lets go of it."""

    async def changed(key: str, cleared: bool) -> None:
        workspace.store.forget(SessionKey(key), cleared=cleared)

    state = tmp_path / "state"
    async with open_workspace(tmp_path, kind="workspace") as workspace, AsyncExitStack() as stack:
        for key in (ADA, BOB):
            await workspace.said(key, talk(10))
        await stack.enter_async_context(listening(state, workspace_state(state), changed))
        process = await asyncio.create_subprocess_exec(
            *(sys.executable, "-m", "tests.session.scope_holder", str(tmp_path)),
            cwd=Path(__file__).parents[3],
            stdout=asyncio.subprocess.PIPE,
        )
        try:
            assert process.stdout is not None
            async with asyncio.timeout(60):
                assert await process.stdout.readline() == b"asked\n"
            with pytest.raises(NotNow) as raised:
                await workspace.memory.consolidate(BOB)
        finally:
            process.kill()
            await process.wait()

        assert raised.value.reason == "busy"
        assert workspace.model.seen == []
        assert (await workspace.memory.consolidate(BOB)).messages > 0


async def test_an_edit_by_hand_during_the_call_is_kept(house: Workspace) -> None:
    """MEMORY.md that somebody edits while the model thinks is read again, and the model asked again."""
    await house.said(ADA, talk(10))
    path = (await house.scope(ADA)).memory / "MEMORY.md"

    def edit(prompt: Prompt) -> Answer:
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text("- by hand\n")
        return saved(memory="- stale")

    house.model.steps += [edit, saved(memory="- by hand\n- and more")]
    await house.memory.consolidate(ADA)

    assert "- by hand" in house.model.text(1)
    assert path.read_text() == "- by hand\n- and more\n"
    assert len(MARK.findall(await house.read("HISTORY.md"))) == 1


async def test_endless_edits_are_waited_out(house: Workspace) -> None:
    """A file that changes during every call is left alone until later."""
    await house.said(ADA, talk(10))
    path = (await house.scope(ADA)).memory / "MEMORY.md"
    path.parent.mkdir(parents=True)

    def edit(prompt: Prompt) -> Answer:
        path.write_text(f"- edit {len(house.model.seen)}\n")
        return saved()

    house.model.steps += [edit] * 3
    with pytest.raises(NotNow) as raised:
        await house.memory.consolidate(ADA)

    assert raised.value.reason == "edited"
    assert path.read_text() == "- edit 3\n"
    assert await house.read("HISTORY.md") == ""


async def test_new_during_the_call(house: Workspace) -> None:
    """``/new`` during the call: the pointer of the ended session moves, never that of the fresh one."""
    await house.said(ADA, talk(10))

    # -- sessions that are opened again ----------------------------------------------------------------------

    async def end(prompt: Prompt) -> Answer:
        assert await house.new(ADA)
        return saved()

    house.model.steps.append(end)
    await house.memory.consolidate(ADA)

    assert await house.pointer(ADA) == 0
    report = await house.jobs.at_once(ADA)
    assert report.messages == 5
    assert "message 4" not in house.model.text(1)
    assert "message 9" in house.model.text(1)


# -- files -----------------------------------------------------------------------------------------------


async def test_text_sees_an_edit_at_once_and_a_turn_goes_on_without_one(house: Workspace) -> None:
    scope = await house.scope(ADA)
    assert await house.memory.text(scope) == ""

    scope.memory.mkdir(parents=True)
    path = scope.memory / "MEMORY.md"
    for data, text in ((b"one", "one"), (b"two \xff", "two \ufffd")):
        path.write_bytes(data)
        assert await house.memory.text(scope) == text
    path.unlink()
    path.mkdir()
    assert await house.memory.text(scope) == ""


async def test_files_are_private(tmp_path: Path) -> None:
    """Folders 0700, files 0600, and no temporary file left."""
    async with open_workspace(tmp_path) as workspace:
        await workspace.said(ADA, talk(10))
        await workspace.memory.consolidate(ADA)
        folder = (await workspace.scope(ADA)).memory

    assert folder.stat().st_mode & 0o777 == 0o700
    names = ["HISTORY.md", "MEMORY.md", "versions"]
    assert sorted(path.name for path in folder.iterdir()) == names
    for path in [*folder.rglob("*"), *(tmp_path / "state/memory/chats").iterdir()]:
        assert path.stat().st_mode & 0o777 == (0o700 if path.is_dir() else 0o600)


async def holding(workspace: Workspace, name: str, data: bytes) -> Path:
    """Put a file into the memory of a chat, and return the folder."""
    folder = (await workspace.scope(ADA)).memory
    folder.mkdir(parents=True)
    (folder / name).write_bytes(data)
    return folder


async def test_history_of_others_only_grows(house: Workspace) -> None:
    """A HISTORY.md that nanobot or a person wrote keeps every byte."""
    await house.said(ADA, talk(10))
    folder = await holding(house, "HISTORY.md", b"[2025-01-01 10:00] Old \xff entry.")
    await house.memory.consolidate(ADA)

    assert (
        (folder / "HISTORY.md")
        .read_bytes()
        .startswith(b"[2025-01-01 10:00] Old \xff entry.\n\n[2026-01-31 09:15] Talk 1.\n")
    )


async def test_bytes_that_no_model_can_keep(house: Workspace) -> None:
    """A MEMORY.md that is no UTF-8 is kept beside the new one."""
    await house.said(ADA, talk(10))
    folder = await holding(house, "MEMORY.md", b"caf\xe9")
    await house.memory.consolidate(ADA)

    copies = list(folder.glob("MEMORY.md.corrupt-*"))
    assert [copy.read_bytes() for copy in copies] == [b"caf\xe9"]


async def test_lost_state_repeats_no_paragraph(house: Workspace) -> None:
    """Even without the stored answer HISTORY.md itself says which messages it holds."""
    await house.said(ADA, talk(10))
    await house.memory.consolidate(ADA)
    async with house.store.open(ADA) as session:
        await session.checkpoint(last_consolidated=0)
    await house.said(ADA, talk(4, start=10))

    await house.memory.consolidate(ADA)

    marks = [mark[1:] for mark in MARK.findall(await house.read("HISTORY.md"))]
    assert marks == [("0", "4"), ("5", "8")]


async def test_prompt_names_the_small_model(tmp_path: Path) -> None:
    """Consolidation asks the small model, forces the tool, and leaves room for a large MEMORY.md."""
    async with open_workspace(tmp_path, small_model="openai/tiny") as workspace:
        await workspace.said(ADA, talk(10))
        folder = (await workspace.scope(ADA)).memory
        folder.mkdir(parents=True)
        (folder / "MEMORY.md").write_text("x" * 30_000)
        await workspace.memory.consolidate(ADA)
        prompt = workspace.model.seen[0]

    assert (prompt.model, prompt.force_tool) == ("openai/tiny", "save_memory")
    assert prompt.max_tokens is not None
    assert prompt.max_tokens > 10_000


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
async def test_a_session_reopened_during_the_call_is_sent_as_before(house: Workspace, begins: int) -> None:
    """As one is that was opened again after the call."""
    session_id = await end(house, 6, consolidated=begins)
    reopening(house, session_id)

    done = await house.memory.consolidate(ADA, session_id=session_id)

    assert done.messages == 6 - begins
    assert await places(house) == (session_id, 6, begins)


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


# -- states of scopes ------------------------------------------------------------------------------------


MANY = 20


def locks() -> int:
    return sum(type(each) is asyncio.Lock for each in gc.get_objects())


async def test_nothing_stays_in_memory_of_scopes_that_nobody_works_on(tmp_path: Path) -> None:
    """A gateway that runs for months meets each chat that there ever was."""
    states = ScopeStates(tmp_path)
    gc.collect()
    before = locks()

    for number in range(MANY):
        async with states.open(f"chats/{number}"):
            assert locks() == before + 1

    assert locks() == before


async def test_whoever_waits_for_a_scope_comes_in_alone(tmp_path: Path) -> None:
    """Also who asks at the moment in which the first one leaves, and the second has not come in yet."""
    states = ScopeStates(tmp_path)
    inside, most, came = 0, 0, 0

    async def work() -> None:
        nonlocal inside, most, came
        async with states.open("ada"):
            inside, came = inside + 1, came + 1
            most = max(most, inside)
            await asyncio.sleep(0)
            inside -= 1

    async with asyncio.TaskGroup() as group:
        async with states.open("ada"):
            waiting = group.create_task(work())
            await asyncio.sleep(0)
            assert not waiting.done()
        group.create_task(work())
        group.create_task(work())

    assert (most, came) == (1, 3)
