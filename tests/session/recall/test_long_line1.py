"""A session belongs to the agent that its line 1 names, however long that line is."""

from __future__ import annotations

import asyncio
from pathlib import Path

import pytest

from session.recall.scope_files import WHOSE
from session.store import archived
from session.store.listing import key_at
from session.transcript import beginning
from session.transcript.agent import AGENT
from tests.session.recall.place import ADA, Place, place

LONG = {AGENT: "work", "instructions": "漢" * 90_000}


async def found_by(here: Place, agent: str) -> list[str]:
    scope = await here.circles.of_key(ADA, agent=agent)
    return [hit.text for hit in (await here.recall.search(scope, ADA, "swordfish", limit=5)).hits]


async def test_long_instructions_leave_an_ended_session_with_its_agent(tmp_path: Path) -> None:
    async with place(tmp_path) as here:
        await here.say(ADA, "the password is swordfish", "noted")
        async with here.store.open(ADA) as session:
            await session.checkpoint(metadata=LONG)
            id_, layout, stem = session.session_id, here.store.layout, session.stem
            assert await asyncio.to_thread(session.is_still, id_)
            assert archived.is_there(layout, stem, id_)
            assert key_at(session.path, stem) == ADA
            await session.end()

        assert await found_by(here, "") == []
        assert await found_by(here, "work") == ["the password is swordfish"]


@pytest.mark.parametrize(
    "first", ['{"_type":"metadata","metadata":{"agent":"work', "", '{"a":' + "1" * 90_000]
)
def test_nobody_knows_whose_a_session_with_a_lost_line_1_is(tmp_path: Path, first: str) -> None:
    path = tmp_path / "a.jsonl"
    path.write_text(first + '\n{"role":"user","content":"a"}\n')

    assert WHOSE.get(path) is None


def test_a_session_that_never_had_a_line_1_is_the_default_agents(tmp_path: Path) -> None:
    path = tmp_path / "a.jsonl"
    path.write_text('{"role":"user","content":"a"}\n')

    whose = WHOSE.get(path)
    assert whose is not None
    assert whose.agent == ""


def test_a_line_1_longer_than_any_may_be_is_nobodys(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(beginning, "MAX_LINE_BYTES", 1000)
    path = tmp_path / "a.jsonl"
    path.write_text('{"_type":"metadata","key":"a","metadata":{"a":"' + "x" * 1000 + '"}}\n')

    assert WHOSE.get(path) is None
    assert archived.read_beginning(path, "a") is None
    assert key_at(path, "a") == ""
