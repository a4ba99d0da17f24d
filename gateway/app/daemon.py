"""Runs an application as a process: says when it is ready, drains on SIGTERM, ends at once on a second."""

from __future__ import annotations

import asyncio
import contextlib
import os
import signal
import sys
from collections.abc import Callable
from typing import Protocol

import structlog

from gateway.app import collector, descriptors
from gateway.app import log as logs
from gateway.app.app import Application, Role
from gateway.app.daemons import DaemonRegistry
from gateway.app.metrics import Metrics
from gateway.app.optional_tools import lacking
from gateway.app.telemetry import OTEL_MISSING, lacks_otel, tracers
from gateway.config import extras, memory_scope
from gateway.config.not_built import WORDS, not_built
from gateway.config.settings import Settings
from gateway.observer import Observers
from gateway.systemd.notify import Manager

log = structlog.get_logger("daemon")

LAST_WORDS_S = 3.0
# Beside what the running turns are given: the adapters' end, and the last words.
END_BEYOND_DRAIN_S = 15.0


class Server(Protocol):
    """What serves the clients of a gateway over the network."""

    bound: asyncio.Event

    @property
    def url(self) -> str:
        """Its address, once it is bound."""
        ...

    def bind(self) -> None:
        """Take the port. Raises GatewayError where it is taken."""
        ...

    async def serve(self, application: Application) -> None:
        """Serve until cancelled; the port is taken once the queue is open, where it was not before."""
        ...


def run(settings: Settings, *, server: Callable[[Application], Server | None], role: Role = "all") -> int:
    """Run the daemon until SIGTERM or SIGINT; return the exit code. ``server`` builds what serves HTTP."""
    logs.setup(settings)
    descriptors.raise_limit()
    with (
        # A signal may end it before it was ready.
        contextlib.suppress(asyncio.CancelledError),
        asyncio.Runner(loop_factory=_loop_factory()) as runner,
    ):
        runner.run(_main(settings, server, role))
    return 0


async def _main(settings: Settings, server: Callable[[Application], Server | None], role: Role) -> None:
    logs.catch_loop_errors(asyncio.get_running_loop())
    metrics = Metrics()
    others = tracers(settings, role)
    # Each message pays for whoever looks on.
    observer = Observers([metrics, *others]) if others else metrics
    application = Application(settings, role=role, platforms=True, observer=observer, metrics=metrics)
    http = server(application)
    if http is not None and not settings.broker.embedded:
        # With the embedded queue the port comes later: a second daemon of a folder must name the folder.
        http.bind()
    ending = _Ending(application)
    ending.listen()
    collector.calm()
    manager = Manager()
    with manager.watching(lambda: _standing(application)):
        async with application.open(serve=http.serve if http is not None else None):
            if http is not None:
                await http.bound.wait()
            # Whoever looks for a daemon to talk to finds none where there are metrics alone.
            url = http.url if http is not None and role != "channels" else ""
            await _serve(application, ending, manager, url=url)
        await asyncio.to_thread(observer.close)


async def _serve(application: Application, ending: _Ending, manager: Manager, *, url: str) -> None:
    """Say that it is ready, and wait until it shall end."""
    settings, role = application.settings, application.role
    with DaemonRegistry(settings.workspace).entry(url=url, role=role):
        if settings.model.name == "echo" and role != "channels":
            _say("model echo: it repeats what it is told, until model.name is set")
        for key in not_built(settings):
            _say(f"{key}: {WORDS}")
        for text, cure in lacking(settings):
            _say(f"{text}; {cure}")
        if extras.lacks_mcp(settings):
            _say(f"mcp: {extras.MCP_MISSING}; {extras.CURE}")
        if lacks_otel(settings):
            _say(f"telemetry: {OTEL_MISSING}")
        level, text, cure = memory_scope.check(settings)
        if level == "warn":
            _say(f"{text}; {cure}")
        _say(f"ready {url}".rstrip())
        manager.ready()
        log.info("daemon.started", role=role, url=url, model=settings.model.name)
        await ending.asked.wait()
    manager.stopping(settings.limits.drain_s + END_BEYOND_DRAIN_S)
    log.info("daemon.draining")


def _standing(application: Application) -> str:
    """Say in one line how it stands, for ``systemctl status``."""
    health = application.mailbox.health()
    if not health.up:
        return f"the queue is away: {health.error}"
    return "answers" if application.ready.is_set() else "starts"


class _Ending:
    """Turns signals into an orderly end: the first drains, the second ends it at once."""

    def __init__(self, application: Application) -> None:
        self.asked = asyncio.Event()
        self._application = application
        self._task: asyncio.Task[None] | None = None
        self._main = asyncio.current_task()

    def listen(self) -> None:
        """Take the signals over."""
        loop = asyncio.get_running_loop()
        for number in (signal.SIGTERM, signal.SIGINT):
            loop.add_signal_handler(number, self._signalled)

    def _signalled(self) -> None:
        if not self.asked.is_set():
            self.asked.set()
            if not self._application.ready.is_set() and self._main is not None:
                self._main.cancel()
        elif self._task is None:
            self._task = asyncio.ensure_future(self._now())

    async def _now(self) -> None:
        # A thread in a call that nothing can stop would hold the process beyond the time that was promised.
        asyncio.get_running_loop().call_later(LAST_WORDS_S - 0.5, os._exit, 0)
        await self._application.end_now()


def _loop_factory() -> Callable[[], asyncio.AbstractEventLoop] | None:
    with contextlib.suppress(ImportError):
        import uvloop

        return uvloop.new_event_loop
    return None


def _say(line: str) -> None:
    print(line, file=sys.stderr, flush=True)  # noqa: T201 - the one plain line that scripts wait for
