"""The other daemons are asked over connections that are kept."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from gateway.http import peers
from tests.gateway.config_reading import read


async def test_a_client_is_made_once_for_each_daemon(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """To make one takes longer than many a turn."""
    made: list[str] = []

    class Counted(peers.Client):
        def __init__(self, url: str, token: str) -> None:
            made.append(url)
            super().__init__(url, token)

    async def question(client: Any) -> str:
        return "heard"

    monkeypatch.setattr(peers, "Client", Counted)
    asked = peers.Peers(read(tmp_path))

    for url in ("http://127.0.0.1:1", "http://127.0.0.1:2") * 3:
        assert await asked._answer(url, question, 5) == "heard"

    await asked.aclose()
    assert made == ["http://127.0.0.1:1", "http://127.0.0.1:2"]
