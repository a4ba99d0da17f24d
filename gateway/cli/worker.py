"""A worker: the process that a gateway starts to work on conversations, and that ends with it.

``python -m gateway.cli.worker <line> <state>``: its ends of two lines. Over the first come its settings, then
its number and its partitions. Until these come it is the spare process that replaces the next worker that
dies. Over the second it uses the state database, which the gateway holds.
It is a gateway without adapters, clock, HTTP and the clients of those.
"""

from __future__ import annotations

import asyncio
import contextlib
import faulthandler
import gc
import json
import os
import select
import signal
import socket
import sys
import threading
from collections.abc import AsyncIterator, Collection
from dataclasses import asdict
from typing import Any, Final

import structlog

import durable
from gateway.app import daemons
from gateway.app import logging as logs
from gateway.app.application import Application
from gateway.app.daemon import END_BEYOND_DRAIN_S, Ending, loop_factory, tracers
from gateway.app.daemons import DaemonRegistry
from gateway.app.metrics import Metrics
from gateway.app.status import standing_of_worker
from gateway.config.agents import settings_of
from gateway.config.load import of_values
from gateway.config.settings import Settings
from gateway.errors import GatewayError
from gateway.observer import Observers
from gateway.service.questions import Questions
from gateway.workers.line import Line, encoded
from session.errors import ModelAway, SessionError
from session.models import library

log = structlog.get_logger("worker")

BEAT_S: Final = 1.0
ROLE: Final = "worker"


def main() -> int:
    """Be a worker until the gateway says that it shall end, or is gone."""
    # The gateway knows where it stands by this, even when the loop does not move.
    faulthandler.register(signal.SIGUSR1, all_threads=True)
    end, state_end = (socket.socket(fileno=int(each)) for each in sys.argv[1:3])
    end.set_inheritable(False)
    state_end.set_inheritable(False)
    # Without a buffer: what comes later is for the loop.
    told = end.makefile("rb", buffering=0)
    if not (first := told.readline()):
        return 0
    settings = of_values(json.loads(first)["settings"])
    if not select.select([end], [], [], 0)[0]:
        _prepare(settings)
    if not (second := told.readline()):
        return 0
    place = json.loads(second)
    number, partitions = place["number"], place["partitions"]
    threading.Thread(target=_end_behind, args=(end.fileno(),), name="gateway", daemon=True).start()
    logs.setup(settings)
    structlog.contextvars.bind_contextvars(worker=number)
    daemons.raise_limit()
    try:
        with (
            contextlib.suppress(asyncio.CancelledError),
            asyncio.Runner(loop_factory=loop_factory()) as runner,
        ):
            durable.use_state(settings.state, durable.RemoteState(state_end, settings.workspace))
            runner.run(_main(settings, partitions, end))
    except Exception as fault:
        # Whoever started it says it, once for all that it started.
        from gateway.cli import output

        found = output.explained(fault, settings)
        if not found.foreseen:
            log.exception("worker.crashed")
            return found.code
        with contextlib.suppress(OSError):
            end.setblocking(True)
            end.sendall(encoded({"failed": {**asdict(found), "exit_code": found.code}}))
        return found.code
    return 0


def _prepare(settings: Settings) -> None:
    """Import what a worker imports by and by: the turns of a dead one wait for this process."""
    import gateway.queue.rabbitmq.broker  # noqa: F401

    if {settings_of(settings, agent).model.name for agent in ("", *settings.agents)} != {"echo"}:
        # A turn that needs it says why it cannot be loaded.
        with contextlib.suppress(ModelAway):
            library.load()


def _end_behind(descriptor: int) -> None:
    """End this process some time after the gateway has ended, even where its loop stands still."""
    watch = select.poll()
    watch.register(descriptor, 0)
    watch.poll()
    threading.Event().wait(END_BEYOND_DRAIN_S)
    os._exit(1)


async def _main(settings: Settings, partitions: Collection[int], end: socket.socket) -> None:
    logs.catch_loop_errors(asyncio.get_running_loop())
    metrics = Metrics()
    others = tracers(settings, "session")
    observer = Observers([metrics, *others]) if others else metrics
    application = Application(
        settings,
        role="session",
        observer=observer,
        metrics=metrics,
        serves_clients=False,
        takes=partitions,
    )
    ending = Ending(application)
    ending.listen_once()
    gc.freeze()
    # The line keeps a copy, so that why a start failed can still be told when the loop has ended.
    line = await Line.of(socket.fromfd(end.fileno(), socket.AF_UNIX, socket.SOCK_STREAM))
    async with _Gateway(line, application, ending).served(), application.open():
        async with DaemonRegistry(settings.workspace).listed(url="", role=ROLE):
            line.say({"standing": standing_of_worker(application)})
            line.say({"ready": True})
            log.info("worker.ready")
            await ending.asked.wait()
        log.info("worker.draining")
    await asyncio.to_thread(observer.close)


class _Gateway:
    """The process that started this one: it is told how this one stands, and says what it shall do."""

    def __init__(self, line: Line, application: Application, ending: Ending) -> None:
        self._line = line
        self._application = application
        self._ending = ending
        self._questions = Questions(application)
        self._answering: set[asyncio.Task[None]] = set()
        self._said: dict[str, Any] = {}

    @contextlib.asynccontextmanager
    async def served(self) -> AsyncIterator[None]:
        """Hear it and keep it told while the context is open."""
        tasks = [
            asyncio.create_task(self._hear(), name="hear the gateway"),
            asyncio.create_task(self._beat(), name="tell the gateway"),
        ]
        try:
            yield
        finally:
            for task in [*tasks, *self._answering]:
                task.cancel()

    async def _beat(self) -> None:
        """Say, from the loop alone, that it moves; and how it stands, where that has changed."""
        # Four fit into the time after which it is taken to stand still.
        every_s = min(BEAT_S, self._application.settings.limits.worker_timeout_s / 4)
        while True:
            self._line.say({"beat": 1})
            standing = standing_of_worker(self._application)
            if self._application.ready.is_set() and standing != self._said:
                self._said = standing
                self._line.say({"standing": standing})
            await asyncio.sleep(every_s)

    async def _hear(self) -> None:
        while (words := await self._line.heard()) is not None:
            if words.get("do") == "drain":
                self._ending.ask()
            elif words.get("do") == "end":
                self._ending.at_once()
            elif "ask" in words:
                answering = asyncio.create_task(self._answer(words), name=f"answer {words['what']}")
                self._answering.add(answering)
                answering.add_done_callback(self._answering.discard)
        # The gateway is gone: the workers of the next one wait for these partitions.
        log.warning("worker.gateway_gone")
        self._ending.at_once()

    async def _answer(self, words: dict[str, Any]) -> None:
        number = words["ask"]
        try:
            found = await self._questions.answer(words["what"], words["with"])
            self._line.say({"answer": number, "is": found})
        except (GatewayError, SessionError, KeyError, OSError) as error:
            self._line.say({"answer": number, "fault": str(error)})
        except Exception as error:
            # One question ends here.
            log.exception("worker.question_crashed", what=words["what"])
            self._line.say({"answer": number, "fault": type(error).__name__})


if __name__ == "__main__":
    sys.exit(main())
