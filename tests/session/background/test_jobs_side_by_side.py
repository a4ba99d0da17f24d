"""A job that waits for another of its scope takes no place: other chats' work goes on."""

from __future__ import annotations

import asyncio
from pathlib import Path
from typing import Literal

import pytest

from session.models.model import Answer, Prompt
from session.transcript.key import SessionKey
from tests.session.memory_place import ADA, BOB, open_workspace, saved, talk

CHATS = [SessionKey(f"telegram:{number}") for number in range(100, 106)]


@pytest.mark.parametrize("kind", ["chat", "workspace"])
async def test_a_call_that_hangs_holds_up_its_own_scope_alone(
    tmp_path: Path, kind: Literal["chat", "workspace"]
) -> None:
    """However many jobs wait behind it; those come one after the other once it is done."""
    go, group = asyncio.Event(), kind == "workspace"

    async def hangs(prompt: Prompt) -> Answer:
        await go.wait()
        return saved()

    # One chat whose sessions end one after the other, or many that share one memory.
    keys = CHATS if kind == "workspace" else [ADA] * 6
    async with open_workspace(tmp_path, hangs, kind=kind, run=True) as workspace:
        await workspace.said(keys[0], talk(7))
        await workspace.new(keys[0])
        await workspace.model.asked(1)
        for key in keys[1:]:
            await workspace.said(key, talk(7))
            await workspace.new(key)
        await workspace.said(BOB, talk(7, group=True) if group else talk(7))
        await workspace.new(BOB)

        async with asyncio.timeout(30):
            await workspace.model.asked(2)
        assert "They talked" not in await workspace.read("HISTORY.md", keys[0])

        go.set()
        await workspace.jobs.settled()
        assert len(workspace.model.seen) == len(keys) + 1
        assert (await workspace.read("HISTORY.md", BOB)).count("<!--") == 1
        assert (await workspace.read("HISTORY.md", keys[0])).count("<!--") == len(keys)
