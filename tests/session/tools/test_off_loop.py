"""Tools that take long hold up no other work that is done off the loop."""

from __future__ import annotations

import asyncio
import threading
from pathlib import Path

import pytest

from session.library.library import Library
from session.tools import ToolPlace
from session.tools.beneath import threaded
from session.tools.skills import SkillRead


async def test_slow_tools_keep_no_thread_from_what_is_sent() -> None:
    """… which the loop's own few threads serve."""
    go_on = threading.Event()
    slow = [asyncio.create_task(threaded("a", go_on.wait)) for _ in range(64)]
    try:
        async with asyncio.timeout(20):
            assert await asyncio.to_thread(lambda: "sent") == "sent"
        assert not any(task.done() for task in slow)
    finally:
        go_on.set()
        await asyncio.gather(*slow)


async def test_a_skill_is_read_by_a_thread_of_the_tools(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    names: list[str] = []
    monkeypatch.setattr(
        SkillRead, "_read", lambda *_: names.append(threading.current_thread().name) or "the skill"
    )

    said = await SkillRead(Library(tmp_path)).run({"name": "x"}, ToolPlace(folder=tmp_path, key="cli:x"))

    assert said == "the skill"
    assert names[0].startswith("tool")
