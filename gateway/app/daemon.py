"""Runs an application as a process: says when it is ready, drains on SIGTERM, ends at once on a second."""

from __future__ import annotations

import asyncio
import contextlib
import gc
import os
import threading
from collections.abc import Callable, Mapping, Sequence
from contextlib import AsyncExitStack
from dataclasses import dataclass, field
from typing import Any, Protocol

import structlog

from durable import first_of
from gateway.app import descriptors
from gateway.app import log as logs
from gateway.app.app import Application
from gateway.app.daemons import DaemonRegistry
from gateway.app.ending import Ending
from gateway.app.metrics import Metrics
from gateway.app.optional_tools import lacking
from gateway.app.parts import Role
from gateway.app.telemetry import OTEL_MISSING, lacks_otel, tracers
from gateway.config import extras, memory_scope
from gateway.config.settings import Settings
from gateway.errors import GatewayError
from gateway.observer import Observers
from gateway.queue.embedded.mailbox import CURE, left_behind
from gateway.systemd.notify import Manager
from gateway.workers.workers import Workers
from session.store.state import workspace_state

log = structlog.get_logger("daemon")

# Beside what the running turns are given: the adapters' end, and the last words.
END_BEYOND_DRAIN_S = 15.0
# When all is let go of and said, threads may still be in calls.
LEAVES_WITHIN_S = 3.0


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


@dataclass(frozen=True, slots=True)
class Team:
    """The workers of a daemon: how many (0: it does the work itself), with which ``values`` they start."""

    count: int = 0
    values: Mapping[str, Any] = field(default_factory=dict)
    remarks: Sequence[str] = ()


def run(
    settings: Settings,
    *,
    server: Callable[[Application], Server | None],
    role: Role = "all",
    team: Team = Team(),
) -> int:
    """Run the daemon until SIGTERM or SIGINT; return the exit code. ``server`` builds what serves HTTP.

    Raises:
        GatewayError, SessionError, OSError: it cannot start, or a worker could not be started anew.
    """
    logs.setup(settings)
    descriptors.raise_limit()
    leaving = threading.Timer(LEAVES_WITHIN_S, os._exit, (0,))
    leaving.daemon = True
    try:
        with (
            # A signal may end it before it was ready.
            contextlib.suppress(asyncio.CancelledError),
            asyncio.Runner(loop_factory=loop_factory()) as runner,
        ):
            runner.run(_main(settings, server, role, team))
            # The runner waits for threads however long they take: nothing stops one that loads the model's
            # library on a slow machine, or reads a folder that does not answer.
            leaving.start()
    finally:
        leaving.cancel()
    return 0


async def _main(
    settings: Settings, server: Callable[[Application], Server | None], role: Role, team: Team
) -> None:
    logs.catch_loop_errors(asyncio.get_running_loop())
    logs.gather(asyncio.get_running_loop())
    metrics = Metrics()
    others = tracers(settings, role)
    # Each message pays for whoever looks on.
    observer = Observers([metrics, *others]) if others else metrics
    silent_s = settings.limits.worker_timeout_s
    workers = None
    if team.count:
        workers = Workers(
            *(team.count, team.values, workspace_state(settings.state)),
            partitions=settings.broker.partitions,
            silent_s=silent_s,
        )
    application = Application(
        settings, role=role, platforms=True, observer=observer, metrics=metrics, workers=workers
    )
    http = server(application)
    if http is not None and not settings.broker.embedded:
        # With the embedded queue the port comes later: a second daemon of a folder must name the folder.
        http.bind()
    ending = Ending(application)
    ending.listen()
    # What was imported stays: no garbage collection walks over it again.
    gc.freeze()
    manager = Manager()
    with manager.watching(lambda: _standing(application)):
        serve = http.serve if http is not None else None
        async with AsyncExitStack() as ended, application.open(serve=serve):
            if http is not None:
                await http.bound.wait()
            # Whoever looks for a daemon to talk to finds none where there are metrics alone.
            url = http.url if http is not None and role != "channels" else ""
            fault = await _serve(application, ending, manager, team, url=url)
            listed = DaemonRegistry(settings.workspace).listed(url=url, role=role, ending=True)
            await ended.enter_async_context(listed)
        await asyncio.to_thread(observer.close)
    if fault is not None:
        raise fault


async def _serve(
    application: Application, ending: Ending, manager: Manager, team: Team, *, url: str
) -> GatewayError | None:
    """Say that it is ready, and wait until it shall end; return why it must, where nobody asked for it."""
    settings, role = application.settings, application.role
    async with DaemonRegistry(settings.workspace).listed(url=url, role=role):
        if settings.model.name == "echo" and role != "channels":
            logs.say("model echo: it only repeats each message; set model.name to use a real one")
        if role == "channels" and not application.adapters:
            logs.say(
                "no platform is enabled, so this process only runs scheduled jobs: set channels.NAME.enabled"
            )
        for text, cure in lacking(settings):
            logs.say(f"{text}; {cure}")
        if extras.lacks_mcp(settings):
            logs.say(f"mcp: {extras.MCP_MISSING}; {extras.CURE}")
        if lacks_otel(settings):
            logs.say(f"telemetry: {OTEL_MISSING}")
        for remark in team.remarks:
            logs.say(remark)
        if role != "channels" and not settings.broker.embedded:
            left = await left_behind(settings.state)
            if left:
                logs.say(f"{left}; {CURE}")
        level, text, cure = memory_scope.check(settings)
        if level == "warn":
            logs.say(f"{text}; {cure}")
        logs.say(f"ready {url}".rstrip())
        manager.ready()
        log.info("daemon.started", role=role, url=url, model=settings.model.name)
        workers = application.workers
        failing = workers.failed if workers is not None else asyncio.get_running_loop().create_future()
        await first_of(ending.asked.wait(), asyncio.wait((failing,)))
    ending.asked.set()
    manager.stopping(settings.limits.drain_s + END_BEYOND_DRAIN_S)
    log.info("daemon.draining", within_s=settings.limits.drain_s, hint="a second signal ends it at once")
    return failing.result() if failing.done() else None


def _standing(application: Application) -> str:
    """Say in one line how it stands, for ``systemctl status``."""
    health = application.mailbox.health()
    if not health.up:
        return f"the queue does not answer: {health.error}"
    return "answers" if application.ready.is_set() else "starts"


def loop_factory() -> Callable[[], asyncio.AbstractEventLoop] | None:
    """Return what makes the faster loop; None where it is not installed."""
    with contextlib.suppress(ImportError):
        import uvloop

        return uvloop.new_event_loop
    return None
