"""Several writers of one memory, and its files."""

from __future__ import annotations

import asyncio
import re
import sys
from pathlib import Path

import pytest

from session.errors import NotNow, StoreError
from session.models.model import Answer, Prompt
from session.transcript.key import SessionKey
from tests.session.memory_lines import MARK, user
from tests.session.memory_place import ADA, BOB, Workspace, open_workspace, saved, talk

# -- several writers -------------------------------------------------------------------------------------


async def test_two_sessions_in_one_scope(tmp_path: Path) -> None:
    """Two sessions at once in one scope: one after the other, the second sees the notes of the first."""

    def extend(prompt: Prompt) -> Answer:
        old = str(prompt.messages[-1]["content"]).split("## MEMORY.md\n")[1].split("\n\n## ")[0]
        text = str(prompt.messages[-1]["content"])
        return saved(
            memory=("" if old == "(empty)" else old) + ("\n- Ada" if "from ada" in text else "\n- Bob")
        )

    async with open_workspace(tmp_path, extend, extend, kind="workspace") as workspace:
        await workspace.said(ADA, [user("from ada"), *talk(9)])
        await workspace.said(BOB, [user("from bob"), *talk(9)])

        await asyncio.gather(workspace.memory.consolidate(ADA), workspace.memory.consolidate(BOB))

        memory = (tmp_path / "memory/MEMORY.md").read_text()
        assert "- Ada" in memory
        assert "- Bob" in memory
        history = (tmp_path / "memory/HISTORY.md").read_text()
        assert re.findall(r"[0-9a-f]{8} of (\S+) -->", history) == [str(ADA), str(BOB)]


async def test_another_process_is_not_overwritten(tmp_path: Path) -> None:
    """While another process works on a scope this one asks nobody; afterwards it finds nothing left to do."""
    async with open_workspace(tmp_path) as one, open_workspace(tmp_path) as two:
        await one.said(ADA, talk(10))

        async def meanwhile(prompt: Prompt) -> Answer:
            with pytest.raises(NotNow) as raised:
                await two.memory.consolidate(ADA)
            assert raised.value.reason == "busy"
            return saved()

        one.model.steps.append(meanwhile)
        await one.memory.consolidate(ADA)

        assert (await two.memory.consolidate(ADA)).messages == 0
        assert two.model.seen == []


async def test_the_notes_of_a_scope_are_taken_by_one_process_at_a_time(tmp_path: Path) -> None:
    """Two chats share it: while one's are taken elsewhere the other's wait, and a kill lets go of it."""
    async with open_workspace(tmp_path, kind="workspace") as workspace:
        for key in (ADA, BOB):
            await workspace.said(key, talk(10))
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


async def test_an_edit_by_hand_during_the_call_is_kept(tmp_path: Path) -> None:
    """MEMORY.md that somebody edits while the model thinks is read again, and the model asked again."""
    async with open_workspace(tmp_path) as workspace:
        await workspace.said(ADA, talk(10))
        path = (await workspace.scope(ADA)).memory / "MEMORY.md"

        def edit(prompt: Prompt) -> Answer:
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_text("- by hand\n")
            return saved(memory="- stale")

        workspace.model.steps += [edit, saved(memory="- by hand\n- and more")]
        await workspace.memory.consolidate(ADA)

        assert "- by hand" in workspace.model.text(1)
        assert path.read_text() == "- by hand\n- and more\n"
        assert len(MARK.findall(await workspace.read("HISTORY.md"))) == 1


async def test_endless_edits_are_waited_out(tmp_path: Path) -> None:
    """A file that changes during every call is left alone until later."""
    async with open_workspace(tmp_path) as workspace:
        await workspace.said(ADA, talk(10))
        path = (await workspace.scope(ADA)).memory / "MEMORY.md"
        path.parent.mkdir(parents=True)

        def edit(prompt: Prompt) -> Answer:
            path.write_text(f"- edit {len(workspace.model.seen)}\n")
            return saved()

        workspace.model.steps += [edit] * 3
        with pytest.raises(NotNow) as raised:
            await workspace.memory.consolidate(ADA)

        assert raised.value.reason == "edited"
        assert path.read_text() == "- edit 3\n"
        assert await workspace.read("HISTORY.md") == ""


async def test_new_during_the_call(tmp_path: Path) -> None:
    """``/new`` during the call: the pointer of the ended session moves, never that of the fresh one."""
    async with open_workspace(tmp_path) as workspace:
        await workspace.said(ADA, talk(10))

        async def end(prompt: Prompt) -> Answer:
            assert await workspace.new(ADA)
            return saved()

        workspace.model.steps.append(end)
        await workspace.memory.consolidate(ADA)

        assert await workspace.pointer(ADA) == 0
        report = await workspace.jobs.at_once(ADA)
        assert report.messages == 5
        assert "message 4" not in workspace.model.text(1)
        assert "message 9" in workspace.model.text(1)


async def test_cleared_during_the_call(tmp_path: Path) -> None:
    """A session that is cleared while the model thinks about it leaves no trace in memory."""
    async with open_workspace(tmp_path) as workspace:
        await workspace.said(ADA, talk(10))

        async def clear(prompt: Prompt) -> Answer:
            await workspace.store.clear(ADA)
            return saved(entry="poison", memory="poison")

        workspace.model.steps.append(clear)
        await workspace.memory.consolidate(ADA)

        assert await workspace.read("MEMORY.md") == ""
        assert await workspace.read("HISTORY.md") == ""


# -- files -----------------------------------------------------------------------------------------------


async def test_text_sees_an_edit_at_once(tmp_path: Path) -> None:
    """MEMORY.md is cached until the file changes; without one there is no text."""
    async with open_workspace(tmp_path) as workspace:
        scope = await workspace.scope(ADA)
        assert await workspace.memory.text(scope) == ""

        scope.memory.mkdir(parents=True)
        path = scope.memory / "MEMORY.md"
        path.write_text("one")
        assert await workspace.memory.text(scope) == "one"
        path.write_bytes(b"two \xff")
        assert await workspace.memory.text(scope) == "two \ufffd"
        path.unlink()
        assert await workspace.memory.text(scope) == ""
        path.mkdir()
        assert await workspace.memory.text(scope) == ""


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


async def test_history_of_others_only_grows(tmp_path: Path) -> None:
    """A HISTORY.md that nanobot or a person wrote keeps every byte."""
    async with open_workspace(tmp_path) as workspace:
        await workspace.said(ADA, talk(10))
        folder = await holding(workspace, "HISTORY.md", b"[2025-01-01 10:00] Old \xff entry.")
        await workspace.memory.consolidate(ADA)

        assert (
            (folder / "HISTORY.md")
            .read_bytes()
            .startswith(b"[2025-01-01 10:00] Old \xff entry.\n\n[2026-01-31 09:15] Talk 1.\n")
        )


async def test_bytes_that_no_model_can_keep(tmp_path: Path) -> None:
    """A MEMORY.md that is no UTF-8 is kept beside the new one."""
    async with open_workspace(tmp_path) as workspace:
        await workspace.said(ADA, talk(10))
        folder = await holding(workspace, "MEMORY.md", b"caf\xe9")
        await workspace.memory.consolidate(ADA)

        copies = list(folder.glob("MEMORY.md.corrupt-*"))
        assert [copy.read_bytes() for copy in copies] == [b"caf\xe9"]


async def test_a_refused_write_loses_no_answer(tmp_path: Path) -> None:
    """Where HISTORY.md cannot be written the answer is kept, and stored later without a second call."""
    async with open_workspace(tmp_path) as workspace:
        await workspace.said(ADA, talk(10))
        path = (await workspace.scope(ADA)).memory / "HISTORY.md"
        path.mkdir(parents=True)
        with pytest.raises(StoreError):
            await workspace.memory.consolidate(ADA)
        path.rmdir()

        await workspace.memory.consolidate(ADA)

        assert await workspace.pointer(ADA) == 5
        assert len(workspace.model.seen) == 1


async def test_lost_state_repeats_no_paragraph(tmp_path: Path) -> None:
    """Even without the stored answer HISTORY.md itself says which messages it holds."""
    async with open_workspace(tmp_path) as workspace:
        await workspace.said(ADA, talk(10))
        await workspace.memory.consolidate(ADA)
        async with workspace.store.open(ADA) as session:
            await session.checkpoint(last_consolidated=0)
        await workspace.said(ADA, talk(4, start=10))

        await workspace.memory.consolidate(ADA)

        marks = [mark[1:] for mark in MARK.findall(await workspace.read("HISTORY.md"))]
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


async def test_unknown_chat(tmp_path: Path) -> None:
    """A chat that never was has nothing to consolidate and gets no file."""
    async with open_workspace(tmp_path) as workspace:
        assert (await workspace.memory.consolidate(SessionKey("web:nobody"))).messages == 0

    assert list(tmp_path.iterdir()) == [] or not (tmp_path / "memory").exists()
