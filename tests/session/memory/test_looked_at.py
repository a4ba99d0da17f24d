"""Messages from which facts were drawn are known again wherever they go."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from datetime import UTC
from functools import partial
from pathlib import Path
from typing import Any

import pytest

from session.background.moving import move
from session.memory.scope_state import LOOKED_AT_MAX, ScopeState, ScopeStates
from session.store.end_for_compaction import roll_over
from session.store.switch_session import reopen, split_after_idle
from session.transcript.line import make_line, stamp
from tests.session.memory.test_extraction import MILAN, drawn, exchange, session_of, texts, two_exchanges
from tests.session.memory_place import ADA, BOB, Workspace, noted, open_workspace


async def rolled_over(house: Workspace) -> None:
    """A compaction that keeps the newest exchange."""

    def record(name: str, kept: int) -> dict[str, Any]:
        previous = {"type": "compact", "previousSession": name}
        at = stamp(house.clock(), UTC)
        return make_line("system", "They met.", at, kind="compact", kept=kept or None, metadata=previous)

    async with house.store.open(ADA) as session:
        first = len(session) - 2
        assert await session.change(
            partial(roll_over, first_kept=first, record=record, still=lambda transcript: True)
        )


async def joined(house: Workspace) -> None:
    """A pause that ended the session, and ``/resume`` behind it."""
    first = await session_of(house)
    async with house.store.open(ADA) as session:
        assert await session.change(partial(split_after_idle, by="m8", due=lambda times: True))
    house.model.drew.append(noted())
    await house.said(ADA, [*exchange(2, minute=20), *exchange(3, minute=21)])
    house.clock.advance(minutes=30)
    await drawn(house)
    async with house.store.open(ADA) as session:
        assert await session.change(partial(reopen, session_id=first, by="m9"))


async def moved(house: Workspace) -> None:
    """A group that became another one, of which something is known already."""
    house.model.drew.append(noted())
    await two_exchanges(house, BOB)
    await drawn(house, BOB)
    await move(house.store, ADA, BOB)


@pytest.mark.parametrize("happens", [rolled_over, joined, moved])
async def test_messages_that_go_elsewhere_were_looked_at_there_too(
    tmp_path: Path, happens: Callable[[Workspace], Awaitable[None]]
) -> None:
    """What a person had forgotten would come back, and be paid for."""
    async with open_workspace(tmp_path) as house:
        house.model.drew = [noted(MILAN)]
        await two_exchanges(house)
        await drawn(house)
        (known,) = await house.known.holding(await house.scope(ADA))
        await house.known.forget(ADA, await house.scope(ADA), known.id)
        await happens(house)
        house.model.drew.append(noted(MILAN))
        asked = len(house.model.extractions)
        house.clock.advance(minutes=60)
        key = BOB if happens is moved else ADA
        await drawn(house, key)

        assert len(house.model.extractions) == asked
        assert await texts(house, key) == []


async def test_of_many_sessions_those_are_remembered_that_were_looked_at_last(tmp_path: Path) -> None:
    """An old one in which people still write would be paid for again and again."""
    state = ScopeState(tmp_path / "chats" / "a.json")
    for number in range(LOOKED_AT_MAX):
        state.note_looked_at("web:a", f"s{number:05}", [{"message_id": f"m{number}"}], 1)
    state.note_looked_at("web:a", "s00000", [{"message_id": "m0"}], 2)
    state.note_looked_at("web:a", "new", [{}], 1)
    await state.save()
    states = ScopeStates(tmp_path)

    kept = [await states.looked_at("chats/a", name) for name in ("s00000", "s00001", "s00002", "new")]
    assert kept == [2, 0, 1, 1]
