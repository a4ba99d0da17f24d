"""Builds a whole gateway from Settings and keeps it up in one TaskGroup, until it is left and drains."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable, Collection, Coroutine, Iterable, Sequence
from contextlib import AsyncExitStack, ExitStack, asynccontextmanager
from datetime import datetime
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

import structlog

import durable
from channels import plugins
from channels.message import Inbound
from gateway.app import state_folder
from gateway.app.daemons import others
from gateway.app.wiring_broker import RepliedChannels, awaited_files, open_mailbox
from gateway.app.wiring_cron import Clock, Outcomes
from gateway.app.wiring_session import SessionServices, letter_rules
from gateway.app.wiring_tools import Deciders, warn_of_unknown
from gateway.config.agents import agents_of, commands_of, described, settings_of
from gateway.config.finding import operator_command
from gateway.config.settings import Settings
from gateway.dispatch import messages
from gateway.dispatch.events import Events
from gateway.dispatch.failures import Confidants, cause_of_lanes
from gateway.dispatch.jobs import Jobs
from gateway.dispatch.lanes import Lane, PendingMessage
from gateway.dispatch.open_letters import LettersHere, OpenLetter, OpenLetters
from gateway.dispatch.routing import AgentSet
from gateway.dispatch.subagents import Spawning, Subagents
from gateway.dispatch.worker import Worker
from gateway.errors import ConfigError
from gateway.inbound.control import Control
from gateway.inbound.pipeline import Intake
from gateway.observer import Observer
from gateway.outbound.attachments import folders_by
from gateway.outbound.local import LocalSender
from gateway.outbound.unserved import Row
from gateway.queue.mailbox import Mailbox
from gateway.queue.rabbitmq.topology import partition_of
from gateway.state import open_state, watch_state
from gateway.workers.process import NoAnswer
from gateway.workers.workers import Workers
from session.store.state import workspace_state
from session.store.store import utc_now
from session.subagents.records import SubagentFiles
from session.transcript.key import SessionKey, slot_of
from session.turn.command_names import DESCRIPTIONS

if TYPE_CHECKING:
    from gateway.app.metrics import Metrics
    from gateway.outbound.adapters import Adapter
    from session.models.model import Model


log = structlog.get_logger("application")

Role = Literal["all", "channels", "session"]

ADAPTERS_END_S = 8.0
# Shorter than the command line waits for its answer.
DEPTHS_WITHIN_S = 4.0


class Application:
    """One gateway process: its queue, its lanes, its sessions, and what it serves.

    Args:
        platforms: whether it runs the adapters and the cron jobs, too, where its role says so.
        clock: the time of turns, sessions and caps, aware.
        observer: hears of each step when it is over.
        metrics: those among its observers that are shown.
        workers: the processes that run its lanes, where it runs none itself.
        serves_clients: whether it hands replies to the clients of web and terminal; a worker leaves that to
            the process that started it.
        takes: the partitions whose messages it works on, of a worker; None: all.
    """

    def __init__(
        self,
        settings: Settings,
        *,
        role: Role = "all",
        platforms: bool = False,
        clock: Callable[[], datetime] = utc_now,
        observer: Observer | None = None,
        metrics: Metrics | None = None,
        workers: Workers | None = None,
        serves_clients: bool = True,
        takes: Collection[int] | None = None,
    ) -> None:
        if role != "all" and settings.broker.embedded:
            raise ConfigError(
                [f"role {role} needs RabbitMQ: the embedded queue serves one process only"],
                hint='set broker.url = "amqp://…", or run without --role',
            )
        self.settings = settings
        self.role = role
        self.workers = workers
        self._serves_clients, self._takes = serves_clients, takes
        self._clock = clock
        self._platforms = platforms and role != "session"
        self.started_at = durable.now()
        self.mailbox: Mailbox = open_mailbox(settings, follows=role == "channels", takes=takes)
        self.events = Events(self.mailbox)
        self.observer, self.metrics = observer or Observer(), metrics
        self._agents = agents_of(settings)
        self.intake = Intake(self.mailbox, received=self.observer.received)
        self.replied = RepliedChannels(settings.state)
        self.services: SessionServices | None = None
        self.worker: Worker | None = None
        self.subagents: Subagents | None = None
        self.ready = asyncio.Event()
        self.ready_at: datetime | None = None
        self.depths_within_s = DEPTHS_WITHIN_S
        self.adapters: list[Adapter] = []
        self.clock: Clock | None = None
        self._deliveries: list[LocalSender] = []
        self.unserved: list[Row] = []
        self._outside: list[asyncio.Task[None]] = []

    @asynccontextmanager
    async def open(
        self, *, serve: Callable[[Application], Coroutine[Any, Any, None]] | None = None
    ) -> AsyncIterator[Application]:
        """Keep everything up while the context is open; leaving it drains first.

        Args:
            serve: an HTTP server to run beside, from before ``ready`` until after the drain.
        """
        async with self._entered(), asyncio.TaskGroup() as group:
            tasks = [group.create_task(self.mailbox.serve(), name="mailbox")]
            if serve is not None:
                tasks.append(group.create_task(serve(self), name="http"))
            if self.metrics is not None:
                tasks.append(group.create_task(self.metrics.watch_loop(), name="loop lag"))
            if self.role != "channels":
                self._open_session(group, tasks)
                if self._serves_clients and self.settings.state_table.url:
                    watching = watch_state(workspace_state(self.settings.state), self.mailbox.health)
                    tasks.append(group.create_task(watching, name="state"))
            orders = self.worker.orders if self.worker is not None else None
            control = Control(mailbox=self.mailbox, events=self.events, orders=orders)
            try:
                await self.mailbox.ready()
                tasks.append(group.create_task(control.run(), name="control"))
                await self._finish_erasures()
                tasks += [group.create_task(d.run(), name="delivery") for d in self._deliveries]
                # In front, so that it is cancelled before the mailbox on which it settles its letters.
                if self.worker is not None:
                    tasks.insert(0, group.create_task(self.worker.run(), name="worker"))
                    await self.worker.attached.wait()
                if self.workers is not None:
                    tasks.insert(0, group.create_task(self.workers.run(), name="workers"))
                    await self.workers.started()
                for delivery in self._deliveries:
                    await delivery.attached.wait()
                if self._platforms:
                    self._open_channels(group, tasks)
                self.ready_at = durable.now()
                self.ready.set()
                yield self
                for adapter in self.adapters:
                    adapter.stop_receiving()
                await self._drain()
                # The adapters end before the queue: a send under way ends, and is settled.
                await _end(self._outside)
            finally:
                try:
                    # A turn that was not drained strikes its start out, while nobody else has its letter.
                    if self.worker is not None:
                        await self.worker.lanes.cancel()
                finally:
                    leaving = [*tasks, *self._outside]
                    for task in leaving:
                        task.cancel()
                    if self.services is not None:
                        await self.services.aclose()
                    await see_off(leaving)

    @asynccontextmanager
    async def _entered(self) -> AsyncIterator[None]:
        """Move this machine's files to where they are wanted, then hold a share of the workspace."""
        settings = self.settings
        workspace = settings.workspace
        beside = partial(others, workspace)
        with ExitStack() as held:
            moving = partial(state_folder.settle_indexes, workspace, settings.local_dir, beside=beside)
            # A program that may not work on the workspace moves none of its files.
            await asyncio.to_thread(state_folder.check, settings.state)
            await asyncio.to_thread(moving)
            await asyncio.to_thread(held.enter_context, state_folder.entered(settings.state))
            if self.role == "channels" or not self._serves_clients:
                yield
                return
            async with (
                open_state(workspace_state(settings.state)) as state,
                _listening(settings.state, state, self._changed_by_command),
            ):
                yield

    def _open_session(self, group: asyncio.TaskGroup, tasks: list[asyncio.Task[None]]) -> None:
        files = SubagentFiles(self.settings.state, clock=self._clock)
        spawning = Spawning(files, self.mailbox, self._asking)
        services = self.services = SessionServices(
            self.settings,
            status=self._status_lines,
            spawning=spawning,
            clock=self._clock,
            observer=self.observer,
        )
        for name, agent in services.agents.items():
            warn_of_unknown(settings_of(self.settings, name), agent.turns.toolbox)
        if self._serves_clients:
            self._open_deliveries(group)
        if self.workers is not None:
            services.store.shared_with(partial(self._forgotten, self.workers))
            # A turn that waits for a person's word waits in a worker.
            services.answers.heard = partial(self._decided, self.workers, group)
            # What follows turns is done where they run.
            tasks.append(group.create_task(services.aside(self.ready), name="background"))
            return
        subagents = self.subagents = Subagents(
            files,
            spawning,
            store=services.subagent_store,
            parents=services.store,
            mailbox=self.mailbox,
        )
        if (takes := self._takes) is not None:
            partitions = self.settings.broker.partitions
            services.store.serves = lambda key: partition_of(slot_of(key), partitions) in takes
        services.retention.awaited = partial(awaited_files, self.mailbox)
        self.worker = self._build_worker(group, services, subagents)
        tasks.append(group.create_task(services.background(self.ready), name="background"))
        tasks.append(group.create_task(services.retention.run(), name="retention"))
        tasks.append(group.create_task(subagents.keep_clean(self.ready.wait()), name="subagents"))

    def _build_worker(
        self, group: asyncio.TaskGroup, services: SessionServices, subagents: Subagents
    ) -> Worker:
        return Worker(
            mailbox=self.mailbox,
            store=services.store,
            agents=AgentSet(services.agents, self._agents, commands_of(self.settings)),
            events=self.events,
            rules=letter_rules(self.settings),
            group=group,
            quota=services.quota,
            enclosures=services.enclosures,
            jobs=Jobs(self.settings.state),
            turn_ended=services.turn_ended,
            letter_ended=partial(self._letter_ended, Outcomes(self.settings, group), group),
            confides=Confidants(self.settings),
            subagents=subagents,
            decides=Deciders(self.settings),
            clock=self._clock,
            observer=self.observer,
        )

    def _open_deliveries(self, group: asyncio.TaskGroup) -> None:
        self._deliveries = [
            LocalSender(
                channel,
                mailbox=self.mailbox,
                events=self.events,
                group=group,
                workspace=self.settings.workspace,
            )
            for channel in plugins.OWN
        ]

    async def _changed_by_command(self, key: str, cleared: bool) -> None:
        """Read a conversation again that a command changed, or is about to clear."""
        if self.services is not None:
            self.services.store.forget(SessionKey(key), cleared=cleared)
        if self.workers is not None:
            await self._forgotten(self.workers, key, cleared)

    async def _forgotten(self, workers: Workers, key: str, cleared: bool) -> None:
        """Have the workers read a conversation again that was changed here."""
        await workers.ask("forget", key=key, cleared=cleared)

    def _decided(self, workers: Workers, group: asyncio.TaskGroup, approval: str) -> None:
        group.create_task(workers.ask("decided", id=approval), name="tell workers")

    def _asking(self, key: str, message_id: str) -> Inbound | None:
        return self.worker.lanes.asking(key, message_id) if self.worker is not None else None

    async def _finish_erasures(self) -> None:
        """End what a killed process began to erase, before any letter is taken."""
        # A start without one is quicker without what only an erasure imports. A worker may be started anew
        # while the process that started it erases.
        if (
            self._serves_clients
            and self.services is not None
            and any((self.settings.state / "erasing").glob("*.json"))
        ):
            from gateway.app.erasure import Erasure

            await Erasure(self.settings, self.services, mailbox=self.mailbox).finish()

    @property
    def letters(self) -> OpenLetters | None:
        """The letters in its lanes, in whichever of its processes; None: it has none."""
        if self.workers is not None:
            return LettersOfWorkers(self.workers)
        return LettersHere(self.worker.lanes) if self.worker is not None else None

    async def left(self, key: str, session_id: str) -> None:
        """Have the work done that an ended session leaves, where work is done; it is durable on return.

        Raises:
            StoreError: it could not be made durable.
        """
        assert self.services is not None
        if self.workers is not None:
            try:
                await self.workers.ask_one("left", key=key, session_id=session_id)
            except NoAnswer:
                # A file of it suffices: whichever worker is up next finds it.
                log.info("job.left_as_file", key=key)
            else:
                return
        await self.services.jobs.left(key, session_id)

    def _letter_ended(
        self, outcomes: Outcomes, group: asyncio.TaskGroup, inbound: Inbound, *how: Any
    ) -> None:
        outcomes.ended(inbound, *how)
        # The embedded queue lists all of its boxes itself.
        if not self.settings.broker.embedded and (channel := self.replied.news(inbound)) is not None:
            group.create_task(self.replied.note(channel), name="note channel")

    def _open_channels(self, group: asyncio.TaskGroup, tasks: list[asyncio.Task[None]]) -> None:
        if plugins.enabled(self.settings.channels):
            self._open_adapters(group)
        self.clock = Clock(self.settings, self.intake)
        self._outside.append(group.create_task(self.clock.run(), name="clock"))
        tasks += self._outside

    def _open_adapters(self, group: asyncio.TaskGroup) -> None:
        # A process without platforms, such as `chat` alone, starts sooner without what only adapters import.
        from gateway.outbound.adapters import Adapter, AdapterContext

        settings = self.settings
        around = AdapterContext(
            mailbox=self.mailbox,
            intake=self.intake,
            workspace=settings.workspace,
            max_mb=settings.media.max_mb,
            media_timeout_s=settings.media.timeout_s,
            command=operator_command(settings.file),
            turn_timeout_s=settings.limits.turn_timeout_s,
            commands=DESCRIPTIONS | described(settings),
            restricted=commands_of(settings),
            held=self.held,
            folders=folders_by(settings),
            observer=self.observer,
        )
        for kind, table in plugins.enabled(settings.channels):
            adapter = Adapter(kind, table, around)
            self.adapters.append(adapter)
            self._outside.append(group.create_task(adapter.run(), name=f"adapter {kind.name}"))

    async def _drain(self) -> None:
        if self.worker is not None:
            ended = await self.worker.drain(self.settings.limits.drain_s)
            log.info("daemon.drained", all_turns_ended=ended)
        if self.workers is not None:
            ended = await self.workers.drain(self.settings.limits.drain_s)
            log.info("daemon.drained", all_turns_ended=ended)

    async def end_now(self) -> None:
        """Cancel the running turns; their letters come again."""
        if self.workers is not None:
            self.workers.end()
        if self.worker is not None:
            await self.worker.lanes.cancel()

    # -- what it shows -----------------------------------------------------------------------------

    def held(self, channel: str) -> str:
        """Say why letters of a channel wait for the workspace, "" of any; empty where none does."""
        if self.workers is None:
            return cause_of_lanes(self.worker.lanes, channel or None) if self.worker is not None else ""
        causes = (each.get("held", {}).get(channel, "") for each in self.workers.standings())
        return "; ".join(dict.fromkeys(cause for cause in causes if cause))

    def _status_lines(self, key: str, model: Model) -> list[str]:
        if self.worker is None:
            return []
        away = ["the model does not answer right now"] if self.worker.is_away(model) else []
        return [*away, *lane_lines(self.worker.lanes.get(key))]

    async def ask_workers(self, what: str, **arguments: Any) -> list[Any]:
        """Ask all of its workers that work; an empty list where it has none."""
        return await self.workers.ask(what, **arguments) if self.workers is not None else []


async def _end(tasks: Sequence[asyncio.Task[None]]) -> None:
    for task in tasks:
        task.cancel()
    if tasks:
        await asyncio.wait(tasks, timeout=ADAPTERS_END_S)


def lane_lines(lane: Lane | None) -> list[str]:
    """Say what runs and what waits in a chat, without the ``/status`` that asks."""
    asked = [entry for entry in (lane.entries if lane is not None else ()) if not _is_status(entry)]
    running = lane.running if lane is not None and lane.running in asked else None
    lines = []
    asking = asked[0].asking if asked and running is None else ""
    if asking:
        lines.append(f"waiting for an approval: {asking}")
    if running is not None:
        lines.append(f"answering: for {asyncio.get_running_loop().time() - running.begun_at:.0f} s")
    waiting = len(asked) - bool(asked and (running is not None or asked[0].tried))
    return [*lines, f"waiting: {waiting} message{'s' * (waiting != 1)}"]


def _is_status(entry: PendingMessage) -> bool:
    command = messages.command(entry.inbound)
    return command is not None and command.name == "status"


@asynccontextmanager
async def _listening(
    folder: Path, state: durable.StateWriter, changed: durable.Changed
) -> AsyncIterator[None]:
    """Let commands use the state database while the gateway holds it; without a socket they only read."""
    async with AsyncExitStack() as stack:
        try:
            await stack.enter_async_context(durable.listening(folder, state, changed))
        except OSError as error:
            log.warning("state.no_socket", error=str(error), hint="commands cannot change sessions meanwhile")
        yield


# A letter that is being parked waits for a broker, perhaps.
PARKED_WITHIN_S = 10.0


class LettersOfWorkers:
    """Asks all workers; one that does not answer in time has none, and the fence of the key keeps it out."""

    def __init__(self, workers: Workers) -> None:
        self._workers = workers

    async def keys(self) -> list[str]:
        """See ``OpenLetters``, as for all that follow."""
        return [key for each in await self._workers.ask("keys") for key in each]

    async def of(self, keys: Collection[str]) -> Sequence[OpenLetter]:
        """List the letters of some chats."""
        rows = [row for each in await self._workers.ask("letters", keys=sorted(keys)) for row in each]
        return [OpenLetter(row["key"], row["id"], tuple(row["refs"]), row["begun"]) for row in rows]

    async def stop(self, key: str, only: str = "") -> None:
        """Stop the turn that runs."""
        await self._workers.ask("stop", key=key, only=only)

    async def close(self, keys: Collection[str]) -> None:
        """Close lanes."""
        await self._workers.ask("close", keys=sorted(keys))

    async def reopen(self, keys: Collection[str]) -> None:
        """Open lanes."""
        await self._workers.ask("reopen", keys=sorted(keys))

    async def parked_whole(self, message_id: str, key: str | None) -> None:
        """Wait for the parking of a letter."""
        await self._workers.ask("parked_whole", within_s=PARKED_WITHIN_S, message_id=message_id, key=key)

    async def cleared(self, key: str) -> None:
        """End what is being summed up of a conversation."""
        await self._workers.ask("cleared", key=key)

    async def counted(self) -> None:
        """Have each write what it has spent."""
        await self._workers.ask("counted")


# What closes connections in good order takes less.
AGAIN_S = 10.0


async def see_off(tasks: Iterable[asyncio.Task[Any]]) -> None:
    """Wait until tasks that were cancelled have ended; one that goes on is named, and cancelled again."""
    left = {task for task in tasks if not task.done()}
    while left:
        _, left = await asyncio.wait(left, timeout=AGAIN_S)
        for task in left:
            log.warning("task.lingers", task=task.get_name(), at=_place(task))
            task.cancel()


def _place(task: asyncio.Task[Any]) -> str:
    frames = task.get_stack(limit=1)
    return f"{frames[0].f_code.co_filename}:{frames[0].f_lineno}" if frames else ""
