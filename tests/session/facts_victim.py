"""A process that draws facts and dies by SIGKILL at a named point: ``… WORKSPACE POINT``.

With ``timer`` it runs the first turn of a stretch, and dies before its timer has a file.

POINT is ``target.before`` or ``target.after``, see ``TARGETS``; ``none`` lets it live. Each call of the model
adds a line to ``WORKSPACE/calls``, and answers in words of its own.
"""

from __future__ import annotations

import asyncio
import sys
from pathlib import Path

from session.memory.fact_extraction import FactRules
from session.models.model import Answer, OnDelta, Prompt
from tests.session.memory.test_extraction import exchange
from tests.session.memory_place import ADA, Clock, Scripted, fact, noted, open_workspace
from tests.support.killable import Countdown, wrap
from tests.support.until import until

TARGETS = {
    "timer": "session.background.job_files:JobFiles.keep_new",
    "ask": "tests.session.facts_victim:Counting.note",
    "facts": "session.memory.fact_store:FactsFile.add",
    "state": "session.memory.scope_state:ScopeState.save",
    "strike": "session.background.job_files:JobFiles.strike",
}


class Counting(Scripted):
    """Writes down every call before it answers."""

    workspace = Path()

    async def ask(self, prompt: Prompt, on_delta: OnDelta | None = None) -> Answer:
        if prompt.force_tool == "save_facts":
            return await self.note()
        return await super().ask(prompt, on_delta)

    async def note(self) -> Answer:
        path = self.workspace / "calls"
        with path.open("a") as file:
            file.write("call\n")
        words = ["Ada lives in Milan.", "Milan is where Ada has a flat."]
        return noted(fact(words[len(path.read_text().split()) - 1], 3))


async def main(workspace: Path, point: str) -> None:
    if point != "none":
        name, _, side = point.partition(".")
        wrap(TARGETS[name].replace("tests.session.facts_victim", __name__), Countdown(side, 1))
    Counting.workspace = workspace
    clock = Clock()
    clock.advance(minutes=30)
    async with open_workspace(
        workspace, model=Counting(), run=True, clock=clock, facts=FactRules(), window=99
    ) as house:
        if point.startswith("timer"):
            await house.turn(ADA, [*exchange(0, minute=0), *exchange(1, minute=1)])
            await until(lambda: list((workspace / "state/jobs").glob("*.facts.json")))
        await until(lambda: not list((workspace / "state/jobs").glob("*.facts.json")))


if __name__ == "__main__":
    asyncio.run(main(Path(sys.argv[1]), sys.argv[2]))
