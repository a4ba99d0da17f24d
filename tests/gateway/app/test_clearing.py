"""What a conversation has under way ends with it, however it is cleared."""

from __future__ import annotations

import asyncio
import contextlib
from datetime import UTC
from pathlib import Path

import pytest

from gateway.__main__ import main
from gateway.app.daemons import DaemonRegistry
from session.approvals.files import ApprovalFiles
from session.store.store import Store
from session.subagents.records import SubagentFiles
from session.transcript.key import SessionKey
from tests.gateway.erasing_place import ADA, BOB, asked, talked, worked
from tests.gateway.http_place import open_place


async def under_way(workspace: Path, key: SessionKey, who: str) -> None:
    """Have a conversation of which a subagent works, and a call waits for a word."""
    store = Store(workspace, zone=UTC)
    await talked(store, key, who)
    await worked(store, key, who)
    await store.aclose()
    ApprovalFiles(workspace / "state").ask(asked(key, who))


@pytest.mark.parametrize("options", [[], ["--everything"]])
@pytest.mark.parametrize("daemon", [True, False])
async def test_a_conversation_that_is_cleared_has_nothing_under_way(
    tmp_path: Path, options: list[str], daemon: bool
) -> None:
    """Its subagent and its waiting call are gone, by a daemon or without; those of another one are not."""
    for key in (ADA, BOB):
        await under_way(tmp_path, key, "sesame")
    state = tmp_path / "state"
    words = ["sessions", "clear", ADA, *options, "--workspace", str(tmp_path)]
    async with contextlib.AsyncExitStack() as stack:
        if daemon:
            place = await stack.enter_async_context(open_place(tmp_path))
            stack.enter_context(DaemonRegistry(tmp_path).entry(url=place.server.url, role="all"))
        assert await asyncio.to_thread(main, words) == 0

        ended = {each.parent for each in SubagentFiles(state).everywhere() if each.state == "ended"}
        live = {each.parent for each in SubagentFiles(state).everywhere() if each.live}
        assert ended <= {ADA}
        assert ADA not in live
        assert [each.call.key for each in ApprovalFiles(state).all()] == [BOB]
