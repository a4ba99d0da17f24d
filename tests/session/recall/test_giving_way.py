"""Indexes are kept up while no chat talks: a turn shares its interpreter with whatever reads beside it."""

from __future__ import annotations

import asyncio
from pathlib import Path

import pytest

from session.recall import recall
from tests.session.recall.place import ADA, Place, place
from tests.support.until import until

# They wait for seconds.
pytestmark = pytest.mark.slow

# A machine that stands still for longer than this is taken for chats that rest.
QUIET_S = 1.5
LONG = ["word " * 2_000] * 8


async def test_what_chats_said_is_taken_in_when_none_has_talked_for_a_while(tmp_path: Path) -> None:
    """Not so long after the first of many turns, in the midst of the others."""
    async with place(tmp_path, quiet_s=QUIET_S) as here:
        await here.say(ADA, *LONG)
        keeping = asyncio.create_task(here.recall.run())
        await talk(here, 2 * QUIET_S)
        assert not here.index().exists()
        await until(here.index().exists)
        keeping.cancel()


async def test_where_chats_never_rest_it_is_taken_in_all_the_same(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Else the first search of a busy daemon found all of it unread."""
    monkeypatch.setattr(recall, "LATEST_S", 0.5)
    async with place(tmp_path, quiet_s=100 * QUIET_S) as here:
        await here.say(ADA, *LONG)
        keeping = asyncio.create_task(here.recall.run())
        talking = asyncio.create_task(talk(here, 60))
        await until(here.index().exists)
        assert not talking.done()
        talking.cancel()
        keeping.cancel()


async def test_what_a_search_left_unread_waits_for_no_rest(tmp_path: Path) -> None:
    """Somebody asked for it, and was told that not everything was searched."""
    async with place(tmp_path, quiet_s=QUIET_S) as here:
        await here.say(ADA, *LONG)
        keeping = asyncio.create_task(here.recall.run())
        here.recall.want(ADA)
        talking = asyncio.create_task(talk(here, 60))
        await until(here.index().exists)
        assert not talking.done()
        talking.cancel()
        keeping.cancel()


async def talk(here: Place, seconds: float) -> None:
    """Tell of turns, one right after the other."""
    for _ in range(round(seconds / 0.02)):
        here.recall.note(ADA)
        await asyncio.sleep(0.02)
