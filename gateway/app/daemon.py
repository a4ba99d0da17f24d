"""Runs an application as a process: says when it is ready, drains on SIGTERM, ends at once on a second."""

from __future__ import annotations

import asyncio
import contextlib
import gc
import os
import signal
import threading
from collections.abc import Callable, Mapping, Sequence
from contextlib import AsyncExitStack
from dataclasses import dataclass, field
from importlib.util import find_spec
from typing import Any, Protocol

import structlog

from durable import first_of
from gateway.app import daemons, wiring_tools
from gateway.app import logging as logs
from gateway.app.application import Application, Role
from gateway.app.daemons import DaemonRegistry
from gateway.app.metrics import Metrics
from gateway.app.wiring_tools import lacking
from gateway.config import agents
from gateway.config.settings import Settings
from gateway.errors import GatewayError
from gateway.observer import Observer, Observers
from gateway.queue.embedded.mailbox import CURE, left_behind
from gateway.systemd import Manager
from gateway.workers.workers import Workers
from session.store.state import workspace_state

LAST_WORDS_S = 3.0


class Ending:
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
        self._listen_for_hangup(loop)

    def listen_once(self) -> None:
        """Take the signals over as a worker does, whose gateway alone may say that it shall end at once.

        A service manager signals each process of a service, and so does the gateway: that is one wish.
        """
        loop = asyncio.get_running_loop()
        loop.add_signal_handler(signal.SIGTERM, self.ask)
        loop.add_signal_handler(signal.SIGINT, self.ask)
        self._listen_for_hangup(loop)

    def _listen_for_hangup(self, loop: asyncio.AbstractEventLoop) -> None:
        """Take the end of a terminal for a wish to end, unless whoever started this said that it is none."""
        # Kernel and shell both tell of one terminal: a second time is no further wish.
        if signal.getsignal(signal.SIGHUP) is not signal.SIG_IGN:
            loop.add_signal_handler(signal.SIGHUP, self.ask)

    def ask(self) -> None:
        """Ask for an end in good order; asked again, nothing changes."""
        if not self.asked.is_set():
            self.asked.set()
            if not self._application.ready.is_set() and self._main is not None:
                self._main.cancel()

    def at_once(self) -> None:
        """End it at once: turns under way are cancelled, and come again."""
        self.ask()
        if self._task is None:
            self._task = asyncio.ensure_future(self._now())

    def _signalled(self) -> None:
        if self.asked.is_set():
            self.at_once()
        else:
            self.ask()

    async def _now(self) -> None:
        # A thread in a call that nothing can stop would hold the process beyond the time that was promised.
        asyncio.get_running_loop().call_later(LAST_WORDS_S - 0.5, self._exit)
        await self._application.end_now()

    def _exit(self) -> None:
        # One that stands still hears no word, and would outlive this process.
        if self._application.workers is not None:
            self._application.workers.kill()
        os._exit(0)


OTEL_MISSING = "its packages are not installed, so no traces are sent; pip install chat-gateway[otel]"
# Any of them configures the exporter of the official SDK.
VARIABLES = ("OTEL_EXPORTER_OTLP_ENDPOINT", "OTEL_EXPORTER_OTLP_TRACES_ENDPOINT")


def wanted(settings: Settings) -> bool:
    """Say whether traces are to go anywhere."""
    if os.environ.get("OTEL_SDK_DISABLED", "").lower() == "true":
        return False
    return bool(settings.telemetry.endpoint) or any(os.environ.get(name) for name in VARIABLES)


def lacks_otel(settings: Settings) -> bool:
    """Say whether traces are wanted and what sends them is not installed."""
    if not wanted(settings):
        return False
    try:
        return find_spec("opentelemetry.exporter.otlp.proto.http.trace_exporter") is None
    except ModuleNotFoundError:
        return True


def tracers(settings: Settings, role: str) -> list[Observer]:
    """Build what sends traces; nothing where none are wanted, or can be sent."""
    if not wanted(settings) or lacks_otel(settings):
        return []
    # It takes its time, and nearly nobody needs it.
    from gateway.app.tracing import Tracing

    return [Tracing(settings.telemetry.endpoint, sample=settings.telemetry.sample, role=role)]


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
    daemons.raise_limit()
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
        if wiring_tools.lacks_mcp(settings):
            logs.say(f"mcp: {wiring_tools.MCP_MISSING}; {wiring_tools.MCP_CURE}")
        if lacks_otel(settings):
            logs.say(f"telemetry: {OTEL_MISSING}")
        for remark in team.remarks:
            logs.say(remark)
        if role != "channels" and not settings.broker.embedded:
            left = await left_behind(settings.state)
            if left:
                logs.say(f"{left}; {CURE}")
        level, text, cure = agents.check_memory(settings)
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
