"""A running gateway keeps what its memory said before, lists it and puts it back."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from tests.support.guarantee import guarantee
from tests.support.harness import Daemon, ask, command
from tests.support.model_server import ModelServer, Reply
from tests.support.place import with_model
from tests.support.until import until

KEY = "web:a"
FOLDER = Path("memory/chats/web_a")
FIRST = "# Tastes\n- likes tea\n"
EDITED = "# Tastes\n- likes tea\n- written by hand\n"
SECOND = "- likes coffee\n"


def noted(memory: str) -> Reply:
    arguments = {"history_entry": "[2026-01-31 09:15] They talked.", "memory_update": memory}
    return Reply(tool_calls=[("save_memory", json.dumps(arguments))])


async def say(daemon: Daemon, id_: str, text: str) -> None:
    assert await ask(daemon, KEY, id_, text)


async def test_notes_that_cannot_be_shortened_stay_and_status_says_so(tmp_path: Path) -> None:
    """The small model leaves out a heading: nothing is changed, and nobody has to look for it in the log."""
    memory = tmp_path / FOLDER / "MEMORY.md"
    memory.parent.mkdir(parents=True)
    memory.write_text(FIRST)
    long = "# Tastes\n" + "- likes tea\n" * 200 + "# Work\n- engineer\n"
    async with ModelServer() as model:
        config = with_model(model, **{"facts.enabled": False, "memory.max_kb": 1})
        async with Daemon(tmp_path, config=config) as daemon:
            await say(daemon, "1", "I like tea")
            model.script += [noted(long), Reply(text="# Tastes\n- likes tea")]
            await say(daemon, "2", "/new")
            await daemon.said("memory.unmerged")
            _, shown = await command(tmp_path, "status", config=config)
            assert await daemon.stop() == 0

    assert "notes: MEMORY.md could not be shortened (1 time); raise memory.max_kb" in shown
    assert memory.read_text() == FIRST


@guarantee("sessions", "Earlier versions of a chat's memory are kept and can be restored, across kills.")
async def test_a_consolidation_keeps_what_stood_there_and_it_can_be_restored(tmp_path: Path) -> None:
    """What was consolidated, what a person wrote, and what a restore replaced: each stays, with its cause."""
    memory = tmp_path / FOLDER / "MEMORY.md"

    async def row_of(*words: str) -> Any:
        code, printed = await command(tmp_path, "memory", *words, "--json", config=config)
        assert code == 0
        return json.loads(printed)

    async with ModelServer() as model:
        config = with_model(model, **{"facts.enabled": False})
        async with Daemon(tmp_path, config=config) as daemon:
            for number, text in enumerate((FIRST, SECOND)):
                await say(daemon, f"{number}a", "I like tea and coffee")
                model.script.append(noted(text))
                await say(daemon, f"{number}b", "/new")
                await until(lambda text=text: memory.exists() and memory.read_text() == text)
                await until(lambda: not list(tmp_path.glob("state/jobs/*.json")))
                if text == FIRST:
                    memory.write_text(EDITED)

            newest, oldest = await row_of("history", KEY)
            restored = await row_of("restore", KEY, newest["version"])
            again = await row_of("restore", KEY, newest["version"])
            await say(daemon, "3", "what do you know?")
            rows = await row_of("history", KEY, "--file", "MEMORY.md")
            code, printed = await command(
                tmp_path, "memory", "restore", KEY, "01KG9NB3H0Q5W4XZ2WM29XRYBN", config=config
            )
            assert await daemon.stop() == 0

    assert (newest["cause"], newest["file"], newest["bytes"]) == ("consolidation", "MEMORY.md", len(EDITED))
    assert newest["changed"] == "+1 -3 lines; headings gone: Tastes"
    assert (oldest["cause"], oldest["changed"]) == ("edited by hand", "+1 -0 lines")
    assert memory.read_text() == EDITED
    assert "- written by hand" in model.turns[-1].messages[0]["content"]
    assert [row["cause"] for row in rows] == ["restore", "consolidation", "edited by hand"]
    assert (restored["former"], restored["changed"], again["changed"]) == (rows[0]["version"], True, False)
    kept = {path.name: path for path in (tmp_path / FOLDER / "versions").iterdir() if path.is_file()}
    assert sorted(path.read_text() for path in kept.values()) == sorted([FIRST, EDITED, SECOND])
    assert all(path.stat().st_mode & 0o777 == 0o600 for path in kept.values())
    assert (tmp_path / FOLDER / "versions").stat().st_mode & 0o777 == 0o700
    assert (code, printed) == (1, "")
