"""The agent that the files of ``annabelle`` name."""

from __future__ import annotations

import asyncio
import json
from datetime import UTC
from pathlib import Path

from gateway.__main__ import main
from session.store.store import Store
from session.transcript.key import SessionKey
from session.transcript.transcript import make_line

KEY = "telegram:1"
AT = "2026-03-01T10:00:00.000001+00:00"


async def fill(workspace: Path) -> None:
    store = Store(workspace, zone=UTC)
    async with store.open(SessionKey(KEY)) as session:
        await session.append(
            [
                make_line("user", "hi", AT, message_id="a"),
                make_line("assistant", "ho", AT, message_id="a", final=True),
            ]
        )
    await store.aclose()


def test_the_export_of_a_session_names_one_agent(tmp_path: Path) -> None:
    """A session that began here has no other."""
    asyncio.run(fill(tmp_path / "w"))
    out = tmp_path / "out.jsonl"

    words = ["sessions", "export", "--to", "annabelle", KEY, "-o", str(out)]
    assert main([*words, "--workspace", str(tmp_path / "w")]) == 0

    header = json.loads(out.read_text().splitlines()[0])
    assert (header["type"], header["agentId"]) == ("header", "annabelle")
