"""A process that consolidates and dies by SIGKILL at a named point: ``… WORKSPACE TASK POINT NUMBER``.

TASK is ``ended`` (what ``/new`` does, then the background) or ``rest`` (only the
background). POINT is ``target.before`` or ``target.after``, see ``TARGETS``; ``none`` lets it live. Each call
of the model adds a line to ``WORKSPACE/calls``, one for a summary to ``WORKSPACE/summaries``.
"""

from __future__ import annotations

import asyncio
import sys
from pathlib import Path

from session.models.model import Answer, Prompt
from tests.session.memory_place import ADA, Scripted, open_workspace, saved, talk
from tests.support.killable import Countdown, wrap

TARGETS = {
    "scope_state": "session.memory.scope_state:ScopeState.save",
    "history": "session.memory.notes:Notes.add_history",
    "memory": "session.memory.notes:Notes.write_memory",
    "pointer": "session.memory.unconsolidated:UnconsolidatedReader.move_pointer",
    "end": "session.store.store:Session.end",
    "job": "session.background.jobs:Background.ended",
    "strike": "session.background.job_files:JobFiles.strike?kind='consolidate')",
    "ask": "tests.session.memory_victim:Counting.note",
    "write": "tests.session.memory_victim:Counting.write",
    "renew": "session.memory.titles:SessionTitles._write_summary",
    "forget": "session.background.job_files:JobFiles.strike?kind='summary')",
}


class Counting(Scripted):
    """Writes down every call before it answers."""

    folder = Path()

    async def ask(self, prompt: Prompt, on_delta: object = None) -> Answer:
        return await (self.note() if prompt.force_tool else self.write())

    async def note(self) -> Answer:
        with (self.folder / "calls").open("a") as file:
            file.write("call\n")
        return saved("They talked.", "- remembered")

    async def write(self) -> Answer:
        with (self.folder / "summaries").open("a") as file:
            file.write("call\n")
        return Answer("Ada and the assistant talked.")


async def main(folder: Path, task: str, point: str, number: int) -> None:
    if point != "none":
        name, _, side = point.partition(".")
        wrap(TARGETS[name].replace("tests.session.memory_victim", __name__), Countdown(side, number))
    Counting.folder = folder
    async with open_workspace(folder, model=Counting(), run=True) as workspace:
        if task == "ended":
            await workspace.new(ADA)
        else:
            await workspace.jobs.looked.wait()
        await workspace.jobs.settled()


def lines_of(folder: Path) -> None:
    async def write() -> None:
        async with open_workspace(folder) as workspace:
            await workspace.said(ADA, talk(10))

    asyncio.run(write())


if __name__ == "__main__":
    asyncio.run(main(Path(sys.argv[1]), sys.argv[2], sys.argv[3], int(sys.argv[4])))
