"""Letters of one chat in a queue mode, in children that die at each step; then a life that ends.

``python -m tests.gateway.modes_victim DIR MODE``: prints how many children there were. Beside DIR each has a
folder of its own, in which ``ended.json`` says what came of it: lines, replies, and what the model was asked.

With MODE ``poison`` letters are collected of which one kills whoever asks it: lives follow one another in DIR
until one ends by itself; prints how many died.
"""

from __future__ import annotations

import asyncio
import json
import os
import signal
import sys
from collections.abc import Callable, Coroutine
from functools import partial
from pathlib import Path
from typing import Any

import structlog

from channels.message import read_outbound
from gateway.dispatch.batching import QueueRules
from gateway.dispatch.worker import DispatchRules
from gateway.queue.embedded.mailbox import EmbeddedMailbox
from gateway.queue.mailbox import Letter, Post, outbound
from session.models.model import Answer, OnDelta, Prompt, ToolCall
from session.turn.turn import TurnLimits
from tests.contracts.models import Script
from tests.contracts.posts import collect
from tests.gateway.embedded_place import serving
from tests.gateway.worker_rig import Rig
from tests.session.dying import CHANGES, SYNCS, die_everywhere

Work = Callable[[Path], Coroutine[Any, Any, None]]


class Mailbox(EmbeddedMailbox):
    """Has the end of a letter counted among the steps: SQLite writes without a call of ours."""

    async def settle(self, letter: Letter, puts: Any = (), **how: Any) -> None:
        step()
        await super().settle(letter, puts, **how)
        step()

    async def put(self, post: Post) -> None:
        step()
        await super().put(post)
        step()


def step() -> None:
    """Be a change of the disk, at which a child may die."""
    pipe = os.open(os.devnull, os.O_WRONLY)
    os.write(pipe, b".")
    os.close(pipe)


class Model(Script):
    """Lets the next letter come while it is asked, as the mode needs it."""

    def __init__(self, folder: Path, mode: str) -> None:
        super().__init__()
        self.rig: Untaken
        self._asked = folder / "asked"
        self._mode = mode

    async def ask(self, prompt: Prompt, on_delta: OnDelta | None = None) -> Answer:
        texts = [str(message["content"]) for message in prompt.messages if message["role"] == "user"]
        with self._asked.open("a") as file:
            file.write(json.dumps(texts) + "\n")
        last = prompt.messages[-1]["role"]
        if self._mode == "poison":
            together = len(texts) > 1 and prompt.messages[1]["role"] == "user"
            if texts[-1] == "poison" or together:
                os.kill(os.getpid(), signal.SIGKILL)
            return Answer(f"about {texts[-1]}")
        if self._mode == "collect" or len(texts) > 1 or (self._mode == "steer" and last != "user"):
            return Answer("about " + ", ".join(texts))
        await self.rig.put("two", "m2")
        if self._mode == "interrupt":
            await asyncio.Event().wait()
        await self.rig.until_in_lane(2)
        return Answer("", [ToolCall("c1", "look", "{}")])


class Untaken(Rig):
    """One life; nobody takes the replies while it lasts."""

    async def _collect(self) -> None:
        await asyncio.Event().wait()

    async def lived(self) -> None:
        """Work until nothing waits any more."""
        async with self.open():
            await self.settled()

    async def told(self) -> tuple[list[tuple[str, str]], list[str], list[str]]:
        """Take the replies that are in the queue; return them, the ids of what is parked, and the boxes."""
        found: list[tuple[str, str]] = []
        async with serving(self.mailbox) as mailbox:
            depths = await mailbox.depths()
            async with mailbox.take(outbound("foreign")) as letters:
                for letter in await collect(letters, depths[outbound("foreign")].count):
                    out = read_outbound(letter.body)
                    found.append((out.id, out.text))
            return found, [str(parked.id) for parked in await mailbox.parked()], list(depths)


def life(folder: Path, mode: Any) -> Untaken:
    model = Model(folder, mode)
    rules = DispatchRules(queue=QueueRules("collect" if mode == "poison" else mode, collect_s=0.05))
    built = Untaken(folder, model, rules, mailbox=Mailbox(folder / "state"))
    built.limits = TurnLimits(max_tool_rounds=5)
    model.rig = built
    return built


async def prepare(folder: Path, mode: str) -> None:
    """Put what waits from the beginning."""
    built = life(folder, mode)
    async with serving(built.mailbox):
        texts = ["one"] if mode in ("steer", "interrupt") else ["one", "two", "three"]
        for number, text in enumerate(texts, 1):
            await built.put("poison" if (mode, number) == ("poison", 2) else text, f"m{number}")


async def recover(folder: Path, mode: str) -> None:
    """Live to the end in the folder of a child, and note what came of it."""
    built = life(folder, mode)
    await built.lived()
    built = life(folder, mode)
    lines, (told, parked, _) = await built.lines(), await built.told()
    await built.store.aclose()
    asked = [json.loads(line) for line in (folder / "asked").read_text().splitlines()]
    (folder / "ended.json").write_text(
        json.dumps({"lines": lines, "told": told, "asked": asked, "parked": parked})
    )


def in_child(work: Callable[[], Coroutine[Any, Any, None]]) -> None:
    child = os.fork()
    if child == 0:
        asyncio.run(work())
        os._exit(0)
    assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0


def until_it_lives(folder: Path) -> int:
    """Start lives in the folder until one comes to its end; return how many died."""
    deaths = 0
    while True:
        child = os.fork()
        if child == 0:
            asyncio.run(life(folder, "poison").lived())
            os._exit(0)
        code = os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])
        if code == 0:
            return deaths
        assert code == -signal.SIGKILL, "a life failed by itself"
        deaths += 1


def quiet() -> None:
    structlog.configure(
        wrapper_class=structlog.make_filtering_bound_logger(50),
        logger_factory=structlog.PrintLoggerFactory(sys.stderr),
    )


def main(folder: Path, prepare: Work, lived: Work, recover: Work) -> None:
    """Prepare a folder, die at each step of a life in a copy of it, recover in each copy; print how many."""
    quiet()
    folder.mkdir()
    in_child(partial(prepare, folder))
    # A sync changes nothing that the next life could see.
    changes = [name for name in CHANGES if name not in SYNCS]
    count = die_everywhere(folder, lived, changes=changes)
    for number in range(1, count + 1):
        in_child(partial(recover, folder.with_name(f"{folder.name}-{number}")))
    print(count)


def poisoned(folder: Path) -> None:
    quiet()
    folder.mkdir()
    in_child(partial(prepare, folder, "poison"))
    print(until_it_lives(folder), flush=True)
    in_child(partial(recover, folder, "poison"))


if __name__ == "__main__":
    at, of = Path(sys.argv[1]), sys.argv[2]
    if of == "poison":
        poisoned(at)
    else:
        main(at, partial(prepare, mode=of), lambda copy: life(copy, of).lived(), partial(recover, mode=of))
