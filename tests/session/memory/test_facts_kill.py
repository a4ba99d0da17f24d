"""Wherever a process dies while it draws facts, the next one ends with each fact once."""

from __future__ import annotations

import signal
from pathlib import Path

import pytest

from session.memory.extraction import FactRules
from session.memory.facts import active
from tests.session.dying import victim
from tests.session.facts_victim import Counting, main
from tests.session.memory.test_extraction import exchange
from tests.session.memory_place import ADA, open_workspace, timers_in


@pytest.mark.parametrize(("point", "asked"), [("ask.after", 2), ("facts.after", 1), ("strike.before", 1)])
async def test_killed_at_any_step_it_loses_and_repeats_nothing(
    tmp_path: Path, point: str, asked: int
) -> None:
    """Asked again the model would use other words; it is asked again only if nothing was stored."""
    async with open_workspace(tmp_path, facts=FactRules()) as house:
        await house.turn(ADA, [*exchange(0, minute=0), *exchange(1, minute=1)])
        await house.jobs.aclose()

    assert await victim("facts_victim", tmp_path, point) == -signal.SIGKILL
    await main(tmp_path, "none")

    async with open_workspace(tmp_path) as house:
        assert len(active(await house.known.facts(await house.scope(ADA)))) == 1
    assert (Counting.workspace / "calls").read_text().split() == ["call"] * asked
    assert timers_in(tmp_path) == []
