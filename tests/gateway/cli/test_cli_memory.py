"""``memory show|consolidate`` as a person runs it."""

from __future__ import annotations

import asyncio
import json
import sys
from pathlib import Path

import pytest

from tests.gateway.cli_place import Ran
from tests.session.memory_place import ADA, open_workspace, talk
from tests.support import forked
from tests.support.model_server import ModelServer, Reply

ROOT = Path(__file__).parents[3]


async def run(workspace: Path, *words: str, url: str = "") -> tuple[int, str, str]:
    """Run one command; return its exit code, stdout and stderr."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("CHAT_GATEWAY_MEMORY__WINDOW", "10")
        if url:
            patch.setenv("CHAT_GATEWAY_MODEL__NAME", "openai/stub")
            patch.setenv("CHAT_GATEWAY_MODEL__API_BASE", url)
        ran = await asyncio.to_thread(Ran, workspace, *words)
    return ran.code, ran.out, ran.err


async def talked(workspace: Path, count: int = 10) -> None:
    async with open_workspace(workspace) as memory:
        await memory.said(ADA, talk(count))


async def test_consolidate_asks_the_model_and_says_what_it_did(tmp_path: Path) -> None:
    """It runs at once; a provider that refuses a forced tool is asked with ``auto``."""
    await talked(tmp_path)
    refusal = {"message": "tool_choice: only 'auto' is supported", "type": "invalid_request_error"}
    arguments = json.dumps({"history_entry": "They talked.", "memory_update": "- noted"})

    async with ModelServer() as server:
        server.script += [Reply(status=400, error=refusal), Reply(tool_calls=[("save_memory", arguments)])]
        code, out, _ = await run(tmp_path, "memory", "consolidate", ADA, url=server.url)

    assert code == 0
    assert out.startswith("5 messages summarised into memory with 1 model call\nMEMORY.md: 0 → 8 bytes\n")
    forced, free = (seen.body["tool_choice"] for seen in server.seen)
    assert (forced["function"]["name"], free) == ("save_memory", "auto")
    assert (tmp_path / "memory/chats/telegram_1/MEMORY.md").read_text() == "- noted\n"


async def test_a_version_that_is_not_there_is_refused_with_a_cure(tmp_path: Path) -> None:
    await talked(tmp_path)

    code, out, err = await run(tmp_path, "memory", "restore", ADA, "01KG9NB3H0Q5W4XZ2WM29XRYBN")
    none = await run(tmp_path, "memory", "history", ADA)

    assert (code, out) == (1, "")
    assert f"error: {ADA} has no version 01KG9NB3H0Q5W4XZ2WM29XRYBN\n" in err
    assert f"try: chat-gateway memory history {ADA} lists them\n" in err
    assert none == (0, "", f"no earlier versions of the memory of {ADA}\n")


async def test_while_another_process_works_on_the_memory_nothing_is_restored(tmp_path: Path) -> None:
    """It is asking its model, and would find another text than it asked about."""
    async with open_workspace(tmp_path, kind="workspace") as house:
        await house.said(ADA, talk(10))
        notes = house.memory.notes(await house.scope(ADA))
        for text in ("one\n", "two\n"):
            notes.write_memory(text)
        (version,) = notes.versions.all()
    (tmp_path / "c.toml").write_text('[memory]\nscope = "workspace"\n')
    words = ("--config", str(tmp_path / "c.toml"), "memory", "restore", ADA, version.id)
    holder = await forked.spawn(
        *(sys.executable, "-m", "tests.session.scope_holder", str(tmp_path)),
        cwd=ROOT,
        stdout=asyncio.subprocess.PIPE,
    )
    try:
        assert holder.stdout is not None
        async with asyncio.timeout(60):
            assert await holder.stdout.readline() == b"asked\n"
        code, _, err = await run(tmp_path, *words)
    finally:
        holder.kill()
        await holder.wait()
    again, _, said = await run(tmp_path, *words)

    assert (code, again) == (1, 0)
    assert "another process is changing this memory" in err
    assert "try again in a moment" in err
    assert said.startswith("restored MEMORY.md; the previous text is version 0")
    assert (tmp_path / "memory/MEMORY.md").read_text() == "one\n"


async def test_model_away(tmp_path: Path) -> None:
    """Exit 69, and nothing has changed."""
    await talked(tmp_path)
    async with ModelServer() as server:
        server.script += [Reply(status=503)] * 3
        code, out, err = await run(tmp_path, "memory", "consolidate", ADA, url=server.url)

    assert (code, out) == (69, "")
    assert "error: the language model is not available" in err
    assert not (tmp_path / "memory").exists()


async def test_what_cannot_be_summarized_says_why(tmp_path: Path) -> None:
    """Without a model it is exit 1; a short conversation stays whole."""
    await talked(tmp_path, 4)
    async with ModelServer() as server:
        short = await run(tmp_path, "memory", "consolidate", ADA, url=server.url)
    await talked(tmp_path, 6)
    code, out, err = await run(tmp_path, "memory", "consolidate", ADA)

    assert short[:2] == (0, "nothing to summarise: the newest 5 messages stay in the session\n")
    assert server.seen == []
    assert (code, out) == (1, "")
    assert "no language model is configured" in err
    assert "model.name" in err


async def test_show(tmp_path: Path) -> None:
    """MEMORY.md goes to stdout and the place of HISTORY.md to stderr; JSON has all three."""
    unknown = await run(tmp_path, "memory", "show", "telegram:99")
    assert not (tmp_path / "memory").exists()
    await talked(tmp_path)
    async with open_workspace(tmp_path) as memory:
        await memory.memory.consolidate(ADA)
        history = await memory.read("HISTORY.md")

    code, out, err = await run(tmp_path, "memory", "show", ADA)
    _, document, _ = await run(tmp_path, "memory", "show", ADA, "--json")

    assert unknown[:2] == (0, "")
    assert "no memory of telegram:99" in unknown[2]
    assert (code, out) == (0, "- fact 1\n")
    assert str(tmp_path / "memory/chats/telegram_1/HISTORY.md") in err
    assert json.loads(document) == {"key": ADA, "memory": "- fact 1\n", "history": history}
