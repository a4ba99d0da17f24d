"""A task that lost the one cancellation it was given does not keep a daemon from ending."""

from __future__ import annotations

import asyncio
from pathlib import Path

import pytest
from structlog.testing import capture_logs

from gateway.app import seeing_off
from gateway.app.app import Application
from gateway.app.seeing_off import see_off
from gateway.config.settings import Settings


class Deaf:
    """Goes on when it is told to end, as where a library took the word for its own."""

    def __init__(self, times: int) -> None:
        self.heard = 0
        self._times = times

    async def run(self, *_: object) -> None:
        while True:
            try:
                await asyncio.Event().wait()
            except asyncio.CancelledError:
                self.heard += 1
                if self.heard > self._times:
                    raise


async def test_it_is_named_and_told_again(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(seeing_off, "AGAIN_S", 0.02)
    deaf, quick = Deaf(2), Deaf(0)
    tasks = [asyncio.create_task(each.run(), name=name) for each, name in ((deaf, "deaf"), (quick, "quick"))]
    await asyncio.sleep(0)
    for task in tasks:
        task.cancel()

    with capture_logs() as logged:
        await see_off(tasks)

    assert [task.cancelled() for task in tasks] == [True, True]
    assert [line["task"] for line in logged] == ["deaf", "deaf"]
    assert all("test_seeing_off.py:" in line["at"] for line in logged)


async def test_nobody_is_waited_for_in_vain() -> None:
    async with asyncio.timeout(5):
        await see_off([])


async def test_a_gateway_ends_all_the_same(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(seeing_off, "AGAIN_S", 0.02)
    settings = Settings(workspace=tmp_path)
    deaf = Deaf(1)
    async with asyncio.timeout(30):
        async with Application(settings).open(serve=deaf.run):
            pass

    assert deaf.heard == 2
