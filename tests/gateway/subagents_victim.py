"""A subagent from its beginning to its end, in children that die at each step; then a life that ends.

``python -m tests.gateway.subagents_victim DIR MODE``: prints how many children there were. Beside DIR each
has a folder of its own, in which ``ended.json`` says what came of it: lines, replies, requests to the model,
what is on record, and what is left.

MODE is ``done``, ``refused`` (the model refuses the task), or ``new`` (the conversation ends while the
subagent works).
"""

from __future__ import annotations

import asyncio
import json
import sys
from functools import partial
from pathlib import Path

from gateway.dispatch.worker import DispatchRules
from session.errors import ModelRefused
from session.models.model import Answer, OnDelta, Prompt
from tests.contracts.models import Script
from tests.gateway.embedded_place import serving
from tests.gateway.modes_victim import Mailbox, Untaken, main
from tests.gateway.subagents_rig import SubagentRig, spawn

TASK = "count the apples"


class Model(Script):
    """Plays the parent and the subagent."""

    def __init__(self, folder: Path, mode: str) -> None:
        super().__init__()
        self.rig: Life
        self._asked = folder / "asked"
        self._mode = mode

    async def ask(self, prompt: Prompt, on_delta: OnDelta | None = None) -> Answer:
        text = next(str(m["content"]) for m in reversed(prompt.messages) if m["role"] == "user")
        again = prompt.messages[-1]["role"] == "tool"
        with self._asked.open("a") as file:
            file.write(json.dumps([text, again]) + "\n")
        if text == TASK:
            if self._mode == "refused":
                raise ModelRefused("no")
            if self._mode == "new":
                await self.rig.put("/new", "m2")
                await asyncio.Event().wait()
            return Answer("seven")
        if text.startswith("<subagent-result"):
            return Answer("heard")
        return Answer("begun") if again else spawn(TASK)


class Life(SubagentRig, Untaken):
    """One life; nobody takes the replies while it lasts."""

    async def lived(self) -> None:
        async with self.open():
            await self.subagents.sweep()
            await self.settled()
        await self.own_store.aclose()


def life(folder: Path, mode: str) -> Life:
    model = Model(folder, mode)
    built = Life(folder, model, DispatchRules(), mailbox=Mailbox(folder / "state"))
    model.rig = built
    return built


async def prepare(folder: Path, mode: str) -> None:
    """Put what waits from the beginning."""
    built = life(folder, mode)
    async with serving(built.mailbox):
        await built.put("do something", "m1")


async def recover(folder: Path, mode: str) -> None:
    """Live to the end in the folder of a child, and once more; then note what came of it."""
    for _ in range(2):
        await life(folder, mode).lived()
    built = life(folder, mode)
    archived = sorted((folder / "sessions" / "archive").rglob("*.jsonl"))
    ended = [json.loads(line) for path in archived for line in path.read_text().splitlines()[1:]]
    asked = [json.loads(line) for line in (folder / "asked").read_text().splitlines()]
    told, parked, boxes = await built.told()
    told += [(box, "waits") for box in boxes if box.startswith("outbound.sub")]
    result = {
        "lines": [*ended, *await built.lines()],
        "told": [*told, *((id_, "parked") for id_ in parked)],
        "asked": asked,
        "states": [each.state for each in built.on_record()],
        "left": built.left(),
    }
    await built.store.aclose()
    (folder / "ended.json").write_text(json.dumps(result))


if __name__ == "__main__":
    of = sys.argv[2]
    work = (partial(prepare, mode=of), lambda copy: life(copy, of).lived(), partial(recover, mode=of))
    main(Path(sys.argv[1]), *work)
