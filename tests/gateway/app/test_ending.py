"""A gateway that ends without a drain cancels its turns first: none of them counts as a death."""

from __future__ import annotations

import asyncio
import os
import signal
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from datetime import UTC
from pathlib import Path

import pytest
from structlog.testing import capture_logs

from bench.application import letter, settings
from gateway.app import application as application_module
from gateway.app.application import Application, see_off
from gateway.app.daemon import Ending
from gateway.config.settings import Settings
from gateway.outbound.local import LocalSender
from gateway.queue.mailbox import INBOUND
from session.store.store import Store
from session.transcript.key import SessionKey
from tests.gateway.embedded_place import opened
from tests.support.guarantee import guarantee
from tests.support.until import until

ADA = SessionKey("web:ada")
LETTER = letter(ADA, 1, "innocent")
# No turn ends within a test.
SLOW = {"model__echo_delay_s": 150}
WITHIN_S = 30.0


class Broke(Exception):
    """What a gateway is kept up for has failed."""


@pytest.fixture
async def waiting(tmp_path: Path) -> Path:
    """A workspace whose queue holds a letter from an earlier life."""
    async with opened(tmp_path / "state") as mailbox:
        await mailbox.put(LETTER)
    return tmp_path


def runs(application: Application) -> bool:
    """Say whether a turn runs whose start is on record."""
    worker = application.worker
    entry = worker.lanes.begun(ADA) if worker is not None else None
    return entry is not None and entry.tries.recorded


async def attempts(workspace: Path) -> int:
    """Count the starts of the letter's turn that are on record."""
    store = Store(workspace, zone=UTC)
    try:
        async with store.open(ADA) as session:
            return session.journal.attempts(LETTER.id)
    finally:
        await store.aclose()


async def boxes(workspace: Path) -> dict[str, int]:
    """Count what waits in each box."""
    async with opened(workspace / "state") as mailbox:
        return {box: depth.count for box, depth in (await mailbox.depths()).items() if depth.count}


async def breaks(application: Application) -> None:
    """What the gateway is kept up for fails while the turn runs."""
    async with application.open():
        await until(lambda: runs(application), within_s=WITHIN_S)
        raise Broke


async def server_breaks(application: Application) -> None:
    """A task of the gateway's own fails while the turn runs."""

    async def serve(_: Application) -> None:
        await until(lambda: runs(application), within_s=WITHIN_S)
        raise Broke

    async with application.open(serve=serve):
        await asyncio.Event().wait()


@guarantee("failures", "A turn that a shutdown cancels does not count as a crash of its message.")
@pytest.mark.parametrize("end", [breaks, server_breaks])
async def test_a_turn_that_an_end_cancels_is_struck_out(
    waiting: Path, end: Callable[[Application], Awaitable[None]]
) -> None:
    for _ in range(3):
        with capture_logs() as logged, pytest.raises(BaseExceptionGroup) as error:
            async with asyncio.timeout(WITHIN_S):
                await end(Application(settings(waiting, **SLOW)))

        assert error.group_contains(Broke)
        assert await attempts(waiting) == 0
        assert not {"turn.delayed", "turn.crashed"} & {line["event"] for line in logged}

    # It is not parked, and its chat is told of no disk.
    assert await boxes(waiting) == {INBOUND: 1}


@asynccontextmanager
async def starting(workspace: Path) -> AsyncIterator[tuple[Application, Ending, asyncio.Task[None]]]:
    """A gateway that runs the turn and is not ready yet."""
    application = Application(settings(workspace, **SLOW))
    endings: list[Ending] = []

    async def main() -> None:
        endings.append(Ending(application))
        async with application.open():
            raise AssertionError("it was not to become ready")

    task = asyncio.create_task(main(), name="main")
    try:
        await until(lambda: task.done() or runs(application), within_s=WITHIN_S)
        yield application, endings[0], task
    finally:
        task.cancel()
        await asyncio.wait((task,))


@pytest.fixture
def never_ready(monkeypatch: pytest.MonkeyPatch) -> None:
    """Have the start of a gateway wait for its deliveries for ever."""

    async def run(_: LocalSender) -> None:
        await asyncio.Event().wait()

    monkeypatch.setattr(LocalSender, "run", run)


@pytest.mark.usefixtures("never_ready")
@pytest.mark.parametrize("again_behind", [None, 0, 1, 2, 5, 20, "at once"])
async def test_a_turn_that_an_end_before_ready_cancels_is_struck_out(
    waiting: Path, monkeypatch: pytest.MonkeyPatch, again_behind: int | str | None
) -> None:
    """Asked for once or twice, whenever in the course of the first the second comes, or at once.

    The last is what its gateway may say to a worker that still starts.
    """
    monkeypatch.setattr(os, "_exit", lambda _: None)
    async with starting(waiting) as (application, ending, task):
        with capture_logs() as logged:
            if again_behind == "at once":
                ending.at_once()
            else:
                ending.ask()
            if isinstance(again_behind, int):
                for _ in range(again_behind):
                    await asyncio.sleep(0)
                ending.ask()
                # As a second signal does, without the end of the process.
                async with asyncio.timeout(WITHIN_S):
                    await application.end_now()
            await asyncio.wait((task,), timeout=WITHIN_S)

        assert task.cancelled()
        assert not application.ready.is_set()
    assert await attempts(waiting) == 0
    assert "turn.delayed" not in {line["event"] for line in logged}
    assert await boxes(waiting) == {INBOUND: 1}


async def test_a_process_that_is_to_outlive_its_terminal_does(tmp_path: Path) -> None:
    """Whoever starts it by nohup has said that the end of a terminal is none of its business."""
    before = signal.signal(signal.SIGHUP, signal.SIG_IGN)
    loop = asyncio.get_running_loop()
    try:
        for listen in (Ending.listen, Ending.listen_once):
            ending = Ending(Application(settings(tmp_path)))
            listen(ending)
            os.kill(os.getpid(), signal.SIGHUP)
            await asyncio.sleep(0.01)

            assert not ending.asked.is_set()
    finally:
        for number in (signal.SIGTERM, signal.SIGINT):
            loop.remove_signal_handler(number)
        signal.signal(signal.SIGHUP, before)


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
    monkeypatch.setattr(application_module, "AGAIN_S", 0.02)
    deaf, quick = Deaf(2), Deaf(0)
    tasks = [asyncio.create_task(each.run(), name=name) for each, name in ((deaf, "deaf"), (quick, "quick"))]
    await asyncio.sleep(0)
    for task in tasks:
        task.cancel()

    with capture_logs() as logged:
        await see_off(tasks)

    assert [task.cancelled() for task in tasks] == [True, True]
    assert [line["task"] for line in logged] == ["deaf", "deaf"]
    assert all("test_ending.py:" in line["at"] for line in logged)


async def test_a_gateway_ends_all_the_same(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(application_module, "AGAIN_S", 0.02)
    settings = Settings(workspace=tmp_path)
    deaf = Deaf(1)
    async with asyncio.timeout(30):
        async with Application(settings).open(serve=deaf.run):
            pass

    assert deaf.heard == 2
