"""A client that still waits when the daemon ends is told to come again, with words."""

from __future__ import annotations

import asyncio
from pathlib import Path

import httpx
import pytest

from channels.message import Inbound
from tests.gateway.http_place import open_place


class Stuck:
    """An intake whose queue never answers."""

    def __init__(self) -> None:
        self.asked = asyncio.Event()

    async def accept(self, _: Inbound) -> None:
        self.asked.set()
        await asyncio.Event().wait()


@pytest.mark.slow
async def test_what_is_cut_off_by_the_end_is_told_so(tmp_path: Path) -> None:
    """503 with a cure and the time to come again; not a fault of ours."""
    stuck = Stuck()
    async with open_place(tmp_path) as place:
        place.server.chats.accept_within_s = 600
        place.application.intake = stuck  # type: ignore[assignment]
        client = httpx.AsyncClient(base_url=place.server.url, timeout=30, trust_env=False)
        body = {"chat_id": "ada", "text": "hello", "id": "one"}
        asking = asyncio.create_task(client.post("/v1/messages", json=body, params={"wait": "20"}))
        await stuck.asked.wait()
    answer = await asking
    await client.aclose()

    assert answer.status_code == 503
    assert answer.json() == {
        "error": "the gateway shut down before this was answered",
        "hint": "send it again once the gateway runs; use the same id to avoid duplicates",
    }
    assert int(answer.headers["Retry-After"]) > 0
