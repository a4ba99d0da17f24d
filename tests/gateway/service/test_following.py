"""Whoever follows a message hears what its turn shows at once."""

from __future__ import annotations

import asyncio
from pathlib import Path
from typing import Any

from gateway.service.client_message import inbound
from gateway.turns.event import Event
from tests.gateway.http_place import open_place


async def test_a_piece_is_shown_two_rounds_of_the_loop_after_it_was_told(tmp_path: Path) -> None:
    """No task is begun for it on its way: each would let all else that waits run before."""
    rounds = 0
    told: list[int] = []
    shown: list[int] = []

    async def count() -> None:
        nonlocal rounds
        while True:
            rounds += 1
            await asyncio.sleep(0)

    async with open_place(tmp_path) as place:
        model = place.gate()
        tell = place.application.events.tell

        async def noted(kind: Any, *args: Any, **more: Any) -> None:
            if kind == "delta":
                told.append(rounds)
            await tell(kind, *args, **more)

        place.application.events.tell = noted  # type: ignore[method-assign]
        counting = asyncio.create_task(count())
        async for each in place.server.chats.follow(inbound("web:ada", "hello")):
            if isinstance(each, Event) and each.kind == "delta":
                shown.append(rounds)
                model.let.set()
        counting.cancel()

    assert len(told) == len(shown) == 1
    assert shown[0] - told[0] <= 2
