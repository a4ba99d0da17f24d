"""Builds the house from Settings, keeps it up in one TaskGroup, and drains it when it is told to end."""

from __future__ import annotations

import asyncio
import contextlib
import os
import signal
import sys
from collections.abc import AsyncIterator, Callable, Coroutine
from contextlib import asynccontextmanager
from datetime import UTC, datetime
from importlib.metadata import version
from typing import Any, Literal

import structlog

from gateway import log as logs
from gateway.control import Control
from gateway.delivery import LocalDelivery
from gateway.embedded import EmbeddedMailbox
from gateway.errors import ConfigError
from gateway.events import Events
from gateway.intake import Intake
from gateway.mailbox import Mailbox
from gateway.room import Room, build_room
from gateway.roster import Roster
from gateway.settings import Settings
from gateway.worker import Rules, Worker

log = structlog.get_logger("daemon")

Role = Literal["all", "channels", "session"]
LAST_WORDS_S = 3.0
CHANNELS_OF_SESSION = ("web", "cli")


class House:
    """One gateway process: its queue, its lanes, its sessions, and what it serves."""

    def __init__(self, settings: Settings, *, role: Role = "all") -> None:
        if role != "all" and settings.broker.embedded:
            raise ConfigError(
                [f"role {role} needs RabbitMQ, since the embedded queue is one process"],
                hint='set broker.url = "amqp://…", or run without --role',
            )
        self.settings = settings
        self.role = role
        self.started_at = datetime.now(UTC)
        self.mailbox: Mailbox = open_mailbox(settings)
        self.events = Events(self.mailbox)
        self.intake = Intake(self.mailbox)
        self.room: Room | None = None
        self.worker: Worker | None = None
        self.ready = asyncio.Event()
        self._deliveries: list[LocalDelivery] = []

    @asynccontextmanager
    async def open(
        self, *, serve: Callable[[House], Coroutine[Any, Any, None]] | None = None
    ) -> AsyncIterator[House]:
        """Keep everything up while the context is open; leaving it drains first.

        Args:
            serve: an HTTP server to run beside, from before ``ready`` until after the drain.
        """
        async with asyncio.TaskGroup() as group:
            tasks = [group.create_task(self.mailbox.serve(), name="mailbox")]
            if serve is not None:
                tasks.append(group.create_task(serve(self), name="http"))
            if self.role != "channels":
                self._open_session(group, tasks)
            stop = self.worker.stop if self.worker is not None else None
            control = Control(
                mailbox=self.mailbox,
                events=self.events,
                stop=None if stop is None else lambda key, asked: stop(key, asked_id=asked),
            )
            try:
                await self.mailbox.ready()
                tasks.append(group.create_task(control.run(), name="control"))
                if self.worker is not None:
                    tasks += [group.create_task(d.run(), name="delivery") for d in self._deliveries]
                    tasks.insert(0, group.create_task(self.worker.run(), name="worker"))
                    await self.worker.attached.wait()
                    for delivery in self._deliveries:
                        await delivery.attached.wait()
                self.ready.set()
                yield self
                await self._drain()
            finally:
                for task in tasks:
                    task.cancel()
                if self.room is not None:
                    await self.room.aclose()

    def _open_session(self, group: asyncio.TaskGroup, tasks: list[asyncio.Task[None]]) -> None:
        limits = self.settings.limits
        room = self.room = build_room(self.settings, status=self._status_lines)
        self.worker = Worker(
            mailbox=self.mailbox,
            store=room.store,
            turns=room.turns,
            chat_commands=room.commands,
            events=self.events,
            rules=Rules(
                concurrent_turns=limits.concurrent_turns,
                attempts=limits.attempts,
                outage_hours=limits.outage_hours,
                pending_per_chat=limits.pending_per_chat,
            ),
            group=group,
            turn_ended=room.turn_ended,
        )
        self._deliveries = [
            LocalDelivery(channel, mailbox=self.mailbox, events=self.events)
            for channel in CHANNELS_OF_SESSION
        ]
        tasks.append(group.create_task(room.background(self.ready), name="background"))

    async def _drain(self) -> None:
        if self.worker is not None:
            ended = await self.worker.drain(self.settings.limits.drain_s)
            log.info("daemon.drained", all_turns_ended=ended)

    async def end_now(self) -> None:
        """Cancel the running turns; their letters come again."""
        if self.worker is not None:
            await self.worker.lanes.cancel()

    # -- what it shows -----------------------------------------------------------------------------

    def readiness(self) -> tuple[bool, dict[str, dict[str, Any]]]:
        """Say whether queue and lanes are up, and each part with since when and its last error."""
        health = self.mailbox.health()
        parts: dict[str, dict[str, Any]] = {
            "queue": {"up": health.up, "since": health.since.isoformat(), "error": health.error},
        }
        up = self.ready.is_set()
        if self.worker is not None:
            since = self.started_at.isoformat()
            parts["lanes"] = {"up": up, "since": since, "error": ""}
            outage = self.worker.outage
            away = outage.since is not None
            parts["model"] = {"up": not away, "since": since, "error": outage.error}
        return health.up and up, parts

    def _status_lines(self, key: str) -> list[str]:
        lines = [f"model: {self.settings.model.name}"]
        if self.worker is not None:
            if self.worker.outage.since is not None:
                lines.append("the model does not answer right now")
            lane = self.worker.lanes.get(key)
            waiting = max(len(lane.entries) - 1, 0) if lane is not None else 0
            lines.append(f"waiting: {waiting} messages")
        return lines

    async def status(self) -> dict[str, Any]:
        """Gather what ``status`` shows: lanes, queue depths, parked, model, tokens and cost today."""
        depths = await self.mailbox.depths()
        ready, parts = self.readiness()
        now = asyncio.get_running_loop().time()
        lanes = [
            {
                "key": lane.key,
                "id": lane.running.inbound.id if lane.running is not None else None,
                "waiting": len(lane.entries) - (lane.running is not None),
                "running_s": round(now - lane.running.since, 1) if lane.running is not None else None,
            }
            for lane in (self.worker.lanes if self.worker is not None else ())
        ]
        queues = {
            box: {"count": depth.count, "oldest_at": depth.oldest_at.isoformat() if depth.oldest_at else None}
            for box, depth in depths.items()
        }
        return {
            "version": version("chat-gateway"),
            "role": self.role,
            "pid": os.getpid(),
            "started_at": self.started_at.isoformat(),
            "ready": ready,
            "parts": parts,
            "model": self.settings.model.name,
            "lanes": lanes,
            "queues": queues,
            "usage_today": self.room.usage.today() if self.room is not None else None,
            "memory": self.room.jobs.shown() if self.room is not None else None,
        }


def open_mailbox(settings: Settings) -> Mailbox:
    """Choose the mailbox that ``broker.url`` names."""
    if settings.broker.embedded:
        return EmbeddedMailbox(settings.workspace / "state")
    from gateway.rabbitmq import RabbitMailbox

    broker = settings.broker
    return RabbitMailbox(
        broker.url,
        name=broker.name,
        partitions=broker.partitions,
        queue_type=broker.queue_type,
        heartbeat_s=broker.heartbeat_s,
    )


def run(settings: Settings, *, role: Role = "all") -> int:
    """Run the daemon until SIGTERM or SIGINT; return the exit code."""
    logs.setup(settings)
    with asyncio.Runner(loop_factory=_loop_factory()) as runner:
        runner.run(_main(settings, role))
    return 0


async def _main(settings: Settings, role: Role) -> None:
    from gateway.http.server import HttpServer

    logs.catch_loop_errors(asyncio.get_running_loop())
    house = House(settings, role=role)
    http = HttpServer(house) if role != "channels" else None
    if http is not None and not settings.broker.embedded:
        http.bind()  # with the embedded queue later: a second daemon of a folder must say that, not the port
    ending = _Ending(house)
    ending.listen()
    async with house.open(serve=http.serve if http is not None else None):
        if http is not None:
            await http.bound.wait()
        url = http.url if http is not None else ""
        with Roster(settings.workspace).entry(url=url, role=role):
            if settings.model.name == "echo" and role != "channels":
                _say("model echo: it repeats what it is told, until model.name is set")
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

    def listen(self) -> None:
        loop = asyncio.get_running_loop()
        for number in (signal.SIGTERM, signal.SIGINT):
            loop.add_signal_handler(number, self._signalled)

    def _signalled(self) -> None:
        if not self.asked.is_set():
            self.asked.set()
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
