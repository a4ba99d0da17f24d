"""The line to a worker: what is too long for it, and what cannot be read."""

from __future__ import annotations

import asyncio
import socket
from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

import pytest

from gateway.cli.worker import _Gateway
from gateway.service.questions import Questions
from gateway.workers import line, process
from gateway.workers.line import Line
from gateway.workers.process import NoAnswer, WorkerProcess
from gateway.workers.workers import Workers
from session.store.state import workspace_state
from tests.support.prepared import ROOT
from tests.support.until import until

LIMIT = 2**12


async def pair() -> tuple[Line, Line]:
    """Both ends of one."""
    ours, theirs = socket.socketpair()
    return await Line.of(ours), await Line.of(theirs)


async def answered(monkeypatch: pytest.MonkeyPatch, answer: Any) -> list[dict[str, Any]]:
    """What a gateway hears of a worker that has this to answer, up to its next word."""

    async def found(*_: object) -> Any:
        return answer

    monkeypatch.setattr(Questions, "answer", found)
    ours, theirs = await pair()
    try:
        worker = _Gateway(theirs, cast(Any, SimpleNamespace()), cast(Any, SimpleNamespace()))
        await worker._answer({"ask": 7, "what": "trace", "with": {}})
        theirs.say({"beat": 1})
        async with asyncio.timeout(10):
            heard = [await ours.heard(), await ours.heard()]
        return [words for words in heard if words is not None]
    finally:
        ours.close()
        theirs.close()


async def test_an_answer_that_is_too_long_is_a_fault_and_the_line_goes_on(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """The worker was taken for dead, and killed."""
    monkeypatch.setattr(line, "MAX_LINE_BYTES", LIMIT)

    fault, beat = await answered(monkeypatch, "x" * LIMIT)

    assert fault["answer"] == 7
    assert "too long" in fault["fault"]
    assert beat == {"beat": 1}


async def test_the_longest_answer_goes_over_the_line(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(line, "MAX_LINE_BYTES", LIMIT)
    longest = "x" * (LIMIT - len(line.encoded({"answer": 7, "is": ""})))

    assert await answered(monkeypatch, longest) == [{"answer": 7, "is": longest}, {"beat": 1}]


@pytest.fixture
def garbler(monkeypatch: pytest.MonkeyPatch) -> None:
    """Workers that say what they are asked, as it is."""
    monkeypatch.setattr(process, "MODULE", "tests.support.garbler")
    monkeypatch.setenv("PYTHONPATH", str(ROOT))


@pytest.mark.usefixtures("garbler")
@pytest.mark.parametrize(
    ("said", "times", "error"),
    [
        ("Traceback (most recent call last):", 1, "it said what is no JSON object"),
        ("7", 1, "it said what is no JSON object"),
        ("x", 2 * LIMIT, "it said more than one line holds"),
    ],
    ids=["no JSON", "no object", "too long"],
)
async def test_a_worker_that_cannot_be_read_is_replaced(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, said: str, times: int, error: str
) -> None:
    """It alone: the others, and the gateway, go on. What is shown of it tells why."""
    monkeypatch.setattr(line, "MAX_LINE_BYTES", LIMIT)
    async with workspace_state(tmp_path / "state").opened() as state, asyncio.timeout(60):
        workers = Workers(2, {}, state, partitions=4, silent_s=600)
        running = asyncio.create_task(workers.run())
        await workers.started()
        first, other = (shown["pid"] for shown in workers.shown())

        asking = asyncio.create_task(workers.ask_one(said, within_s=60, times=times))
        await until(lambda: running.done() or error in workers.shown()[0]["error"])
        assert not running.done()
        await until(lambda: workers.shown()[0]["up"])

        assert await asking == "the other one"
        assert workers.shown()[0]["pid"] != first
        assert workers.shown()[1]["pid"] == other
        running.cancel()
        await asyncio.wait((running,))


@pytest.mark.usefixtures("garbler")
async def test_a_question_that_is_too_long_is_not_asked(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    """The worker would take the gateway for gone."""
    async with workspace_state(tmp_path / "state").opened() as state, asyncio.timeout(60):
        worker = WorkerProcess({}, state, changed=lambda: None)
        running = asyncio.create_task(worker.run(1, []))
        await worker.ready.wait()
        monkeypatch.setattr(line, "MAX_LINE_BYTES", LIMIT)

        with pytest.raises(NoAnswer, match="too long"):
            await worker.ask("x" * LIMIT)

        assert worker.up
        running.cancel()
        await asyncio.wait((running,))
