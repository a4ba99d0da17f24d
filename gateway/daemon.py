"""Runs a house as a process: says when it is ready, drains it on SIGTERM, ends at once on a second one."""

from __future__ import annotations

import asyncio
import contextlib
import os
import signal
import sys
from collections.abc import Callable

import structlog

from gateway import collector, doctor_memory
from gateway import log as logs
from gateway.house import House, Role
from gateway.roster import Roster
from gateway.settings import Settings

log = structlog.get_logger("daemon")

LAST_WORDS_S = 3.0


def run(settings: Settings, *, role: Role = "all") -> int:
    """Run the daemon until SIGTERM or SIGINT; return the exit code."""
    logs.setup(settings)
    with (
        contextlib.suppress(asyncio.CancelledError),  # told to end before it was ready
        asyncio.Runner(loop_factory=_loop_factory()) as runner,
    ):
        runner.run(_main(settings, role))
    return 0


async def _main(settings: Settings, role: Role) -> None:
    from gateway.http.server import HttpServer

    logs.catch_loop_errors(asyncio.get_running_loop())
    house = House(settings, role=role, platforms=True)
    http = HttpServer(house) if role != "channels" else None
    if http is not None and not settings.broker.embedded:
        http.bind()  # with the embedded queue later: a second daemon of a folder must say that, not the port
    ending = _Ending(house)
    ending.listen()
    collector.calm()
    async with house.open(serve=http.serve if http is not None else None):
        if http is not None:
            await http.bound.wait()
        url = http.url if http is not None else ""
        with Roster(settings.workspace).entry(url=url, role=role):
            if settings.model.name == "echo" and role != "channels":
                _say("model echo: it repeats what it is told, until model.name is set")
            level, text, cure = doctor_memory.check(settings)
            if level == "warn":
                _say(f"{text}; {cure}")
            _say(f"ready {url}".rstrip())
            log.info("daemon.started", role=role, url=url, model=settings.model.name)
            await ending.asked.wait()
        log.info("daemon.draining")


class _Ending:
    """Turns signals into an orderly end: the first drains, the second ends it at once."""

    def __init__(self, house: House) -> None:
        self.asked = asyncio.Event()
        self._house = house
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
            if not self._house.ready.is_set() and self._main is not None:
                self._main.cancel()
        elif self._task is None:
            self._task = asyncio.ensure_future(self._now())

    async def _now(self) -> None:
        asyncio.get_running_loop().call_later(LAST_WORDS_S - 0.5, os._exit, 0)
        await self._house.end_now()


def _loop_factory() -> Callable[[], asyncio.AbstractEventLoop] | None:
    with contextlib.suppress(ImportError):
        import uvloop

        return uvloop.new_event_loop
    return None


def _say(line: str) -> None:
    print(line, file=sys.stderr, flush=True)  # noqa: T201 - the one plain line that scripts wait for
