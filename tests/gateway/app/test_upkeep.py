"""What is done now and then, beside turns: a disk that refuses it once does not end the daemon."""

from __future__ import annotations

import asyncio
import errno
from collections.abc import Callable, Coroutine
from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

import pytest

from gateway.app import wiring_tools
from gateway.dispatch import subagents
from gateway.http import media
from session.recall import recall
from tests.session.recall.place import ADA, place
from tests.support.until import until


class Refusing:
    """A look at the disk, of which the first one fails."""

    def __init__(self, then: object = None) -> None:
        self.count = 0
        self._then = then

    def __call__(self, *_: object, **__: object) -> Any:
        self.count += 1
        if self.count == 1:
            raise OSError(errno.ESTALE, "Stale file handle")
        return self._then

    async def soon(self) -> None:
        self()


async def goes_on(work: Coroutine[Any, Any, None], refusing: Refusing) -> None:
    task = asyncio.ensure_future(work)
    await until(lambda: refusing.count >= 2 or task.done())
    task.cancel()
    await asyncio.wait((task,))
    assert task.cancelled()


async def swept_subagents(refusing: Refusing) -> None:
    ready = asyncio.Event()
    ready.set()
    mine = cast("subagents.Subagents", SimpleNamespace(sweep=refusing.soon))
    await subagents.Subagents.keep_clean(mine, ready.wait())


async def pruned_approvals(refusing: Refusing) -> None:
    await wiring_tools.keep_pruned(cast("Any", SimpleNamespace(prune=refusing)))


@pytest.mark.parametrize(
    ("work", "module", "every"),
    [(swept_subagents, subagents, "_SWEEP_S"), (pruned_approvals, wiring_tools, "PRUNE_EVERY_S")],
)
async def test_what_is_cleaned_up_is_looked_at_again(
    work: Callable[[Refusing], Coroutine[Any, Any, None]],
    module: object,
    every: str,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(module, every, 0.0)
    refusing = Refusing()

    await goes_on(work(refusing), refusing)


async def test_files_that_no_message_named_are_looked_at_again(monkeypatch: pytest.MonkeyPatch) -> None:
    refusing = Refusing()
    monkeypatch.setattr(media, "SWEEP_S", 0.0)
    monkeypatch.setattr(media, "media_folder", refusing)

    await goes_on(media.keep_swept(cast("Any", None)), refusing)


@pytest.mark.parametrize("what", ["said_since", "_size"])
async def test_an_index_is_kept_up_all_the_same(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, what: str
) -> None:
    """Whether the disk refuses at the start or behind a turn."""
    refusing = Refusing(then=[] if what == "said_since" else 0)
    monkeypatch.setattr(recall, what, refusing)
    async with place(tmp_path) as here:

        async def run() -> None:
            running = asyncio.ensure_future(here.recall.run())
            while not running.done() and refusing.count < 2:
                here.recall.note(ADA)
                # It looks for transcripts at its start alone.
                refusing.count += what == "said_since" and refusing.count == 1
                await asyncio.sleep(0.01)
            await running

        await goes_on(run(), refusing)
