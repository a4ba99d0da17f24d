"""Wherever a process dies while it draws facts, the next one ends with each fact once."""

from __future__ import annotations

import asyncio
import signal
import sys
from pathlib import Path

import pytest

from session.memory.extraction import FactRules
from session.memory.facts import active
from tests.session.facts_victim import Counting, main
from tests.session.memory.test_extraction import exchange
from tests.session.memory_place import ADA, place, timers_in
from tests.support.harness import ROOT


async def victim(workspace: Path, point: str) -> int:
    process = await asyncio.create_subprocess_exec(
        *(sys.executable, "-m", "tests.session.facts_victim", str(workspace), point),
        cwd=ROOT,
        stderr=asyncio.subprocess.DEVNULL,
    )
    try:
        async with asyncio.timeout(30):
            return await process.wait()
    finally:
        if process.returncode is None:
            process.kill()


@pytest.mark.parametrize(("point", "asked"), [("ask.after", 2), ("facts.after", 1), ("strike.before", 1)])
async def test_killed_at_any_step_it_loses_and_repeats_nothing(
    tmp_path: Path, point: str, asked: int
) -> None:
    """Asked again the model would use other words; it is asked again only if nothing was stored."""
    async with place(tmp_path, facts=FactRules()) as house:
        await house.turn(ADA, [*exchange(0, minute=0), *exchange(1, minute=1)])
        await house.jobs.aclose()

    assert await victim(tmp_path, point) == -signal.SIGKILL
    await main(tmp_path, "none")

    async with place(tmp_path) as house:
        assert len(active(await house.known.facts(await house.scope(ADA)))) == 1
    assert (Counting.workspace / "calls").read_text().split() == ["call"] * asked
    assert timers_in(tmp_path) == []
