"""Cron jobs in this process: the clock that fires them, what each asks, and the jobs that chats make."""

from __future__ import annotations

import asyncio
import os
from collections.abc import Awaitable, Callable
from datetime import datetime, tzinfo
from pathlib import Path
from typing import Any, NoReturn, TypeVar

import structlog

import durable
from channels import pairing
from channels.base import Pulse
from channels.cron import chat_jobs, jobs
from channels.cron.jobs import Asker, CronJob, Owner, letter_slot, new_row
from channels.cron.jobs_file import CronFile
from channels.cron.schedule import asked, in_words, instant_of
from channels.cron.scheduler import CronScheduler
from channels.errors import ChannelError
from channels.message import Inbound
from channels.tables import Platform
from gateway.config.agents import scopes_of
from gateway.config.settings import Settings
from gateway.dispatch.jobs import NO_AGENT, gone
from gateway.inbound.pipeline import Intake
from gateway.queue.retry import back_off_s, until_durable
from session.context.profile import zone_in
from session.context.scopes import Scopes, is_job
from session.errors import SessionError, ToolError
from session.memory.notes import Notes
from session.memory.scope_resolver import ScopeResolver
from session.store.store import Store
from session.tools import ToolPlace
from session.tools.schedule import Wish
from session.transcript.agent import named, parted, shown
from session.transcript.attachments import open_beneath
from session.transcript.key import split

log = structlog.get_logger("heartbeat")

# A character takes four bytes at most.
_MAX_BYTES = 4 * jobs.MAX_HEARTBEAT_CHARS


class Texts:
    """Says what the jobs of a workspace ask now."""

    def __init__(self, settings: Settings) -> None:
        self._settings = settings

    async def __call__(self, job: CronJob) -> str | None:
        """Return what a job asks; None: nothing, since its ``HEARTBEAT.md`` holds no task.

        That file lies in the files folder of the chat that is answered, where its assistant may keep it up;
        where there is none, the workspace's own counts.

        Raises:
            OSError: it is there and cannot be read.
        """
        if not job.heartbeat:
            return job.message
        folders = [await self._files(job), self._settings.workspace]
        return jobs.beat(job.message, await asyncio.to_thread(_tasks, folders))

    async def _files(self, job: CronJob) -> Path:
        store = Store(self._settings.workspace, zone=self._settings.zone)
        try:
            other = job.answer_to if job.answer_to and job.answer_to != job.key else ""
            scope_resolver = ScopeResolver(scopes_of(self._settings), store=store)
            if job.agent:
                others = [other] if other else []
                return (await scope_resolver.of_key(job.key, *others, agent=named(job.agent))).files
            return (await scope_resolver.of_next(job.key, other)).files
        except SessionError as error:
            # The file of the workspace is nobody's secret, that of a scope which cannot be drawn might be.
            log.warning("scope.unknown", job=job.id, error=str(error))
            return self._settings.workspace
        finally:
            await store.aclose()


def _tasks(folders: list[Path]) -> str:
    """Read the first of the files that is there; no link is followed."""
    for folder in folders:
        try:
            fd = open_beneath(folder, jobs.HEARTBEAT_FILE)
        except FileNotFoundError:
            continue
        with os.fdopen(fd, "rb") as file:
            return file.read(_MAX_BYTES).decode("utf-8", "replace")
    return ""


class Outcomes:
    """Notes in ``cron/jobs.json`` the runs whose turns came to nothing, in whichever process they ran."""

    def __init__(self, settings: Settings, group: asyncio.TaskGroup) -> None:
        self._workspace, self._zone = settings.workspace, settings.zone
        self._group = group

    def ended(self, inbound: Inbound, status: str, error: str, duration_ms: int) -> None:
        """Take note of how a letter ended; returns at once."""
        is_run = inbound.source == "cron" and inbound.kind != "result"
        if status == "error" and inbound.cron_job_id and is_run:
            if error == NO_AGENT:
                # The class alone would not say which one, nor that nothing is lost.
                error = gone(inbound).shown
            note = self._note(inbound.cron_job_id, inbound.id, error)
            self._group.create_task(note, name="note failed run")

    async def _note(self, job_id: str, inbound_id: str, error: str) -> None:
        file = CronFile(self._workspace, zone=self._zone)
        try:
            await asyncio.to_thread(file.failed, job_id, letter_slot(inbound_id), error)
        # ``doctor`` names this fault; the letter itself is parked and shown. The group is that of the daemon.
        except (ChannelError, OSError) as fault:
            hint = fault.hint if isinstance(fault, ChannelError) else "chat-gateway doctor"
            log.warning("run.unnoted", job=job_id, error=str(fault), hint=hint)


class Clock:
    """The cron channel of this process."""

    def __init__(self, settings: Settings, intake: Intake) -> None:
        self.pulse = Pulse()
        self._settings = settings
        self._intake = intake

    async def run(self) -> NoReturn:
        """Fire jobs until cancelled; what nobody foresaw is logged and begun anew."""
        tries = 0
        while True:
            try:
                await CronScheduler(
                    CronFile(self._settings.workspace, zone=self._settings.zone),
                    self._settings.state,
                    pulse=self.pulse,
                    clock=durable.now,
                    put=self._put,
                    text_of=Texts(self._settings),
                ).run()
            # The clock ends here, and is begun anew.
            except Exception as error:
                tries += 1
                self.pulse.fail(f"it failed: {type(error).__name__}")
                log.exception("clock.crashed")
                await asyncio.sleep(back_off_s(tries))

    async def _put(self, inbound: Inbound) -> None:
        """Return when the letter is durable, however long the queue is away."""
        await until_durable(lambda: self._intake.accept(inbound))

    def part(self) -> dict[str, Any]:
        """Say whether it runs, since when, and its last error."""
        return {"up": self.pulse.up, "since": self.pulse.since.isoformat(), "error": self.pulse.error}


T = TypeVar("T")
# Nobody but the operator writes there.
_OWN_CLIENTS = frozenset({"cli", "web"})
MAX_NAME_CHARS = 60


class ChatSchedules:
    """Keeps the jobs that are made in chats, with who made them."""

    def __init__(
        self,
        settings: Settings,
        scopes: Scopes,
        *,
        clock: Callable[[], datetime] = durable.now,
    ) -> None:
        self._settings = settings
        self._scopes = scopes
        self._clock = clock

    async def add(self, wish: Wish, place: ToolPlace) -> str:
        """Make a job; it survives a power cut on return, and belongs to who asks."""
        if place.source != "interactive" or is_job(place.key):
            raise ToolError("a scheduled job cannot create jobs; ask the person to request it in the chat")
        now, zone = self._clock(), await self._zone(place)
        owner = Owner(place.key, place.sender.get("id", ""), place.sender.get("name", ""), place.message_id)

        def write() -> CronJob:
            schedule = asked(
                every=wish.every or None,
                expr=wish.cron or None,
                at=wish.at or None,
                tz=wish.tz or None,
                zone=zone,
                now=now,
            )
            chat_jobs.check_wish(schedule, wish.message)
            said = (wish.message, wish.every, wish.cron, wish.at, wish.tz, str(wish.own_session))
            row = new_row(
                schedule,
                wish.message,
                at=now,
                to=place.key,
                name=" ".join(wish.name.split())[:MAX_NAME_CHARS],
                in_chat=not wish.own_session,
                owner=owner,
                agent=_agent(place),
                job_id=chat_jobs.job_id_of(place.key, place.message_id, *said),
            )
            return self._file().add_in_chat(row)

        job = await _done(asyncio.to_thread(write))
        log.info("job.added", job=job.id, key=place.key)
        return f"job {job.id} created: {in_words(job.schedule, zone)}, next {_next(job, zone)}"

    async def listed(self, place: ToolPlace) -> str:
        """Tell of the chat's jobs: id, name, schedule, next run, who made it, how the last run ended.

        Of those of another agent the name is left out, which is mostly the beginning of what is asked.
        """
        zone, asker = await self._zone(place), self._asker(place)
        contents = await _done(asyncio.to_thread(self._file().read))
        found = chat_jobs.of_chat(contents.jobs.values(), asker)
        return "\n".join(_told(job, zone, _agent(place)) for job in found) or "this chat has no jobs"

    async def remove(self, job_id: str, place: ToolPlace) -> str:
        """Remove a job of the chat for good; what it said stays in its conversation."""
        asker = self._asker(place)
        await _done(asyncio.to_thread(self._file().remove_in_chat, job_id, asker))
        log.info("job.removed", job=job_id, key=place.key)
        return f"job {job_id} removed"

    def _file(self) -> CronFile:
        return CronFile(self._settings.workspace, zone=self._settings.zone, clock=self._clock)

    async def _zone(self, place: ToolPlace) -> tzinfo:
        """Return the zone of the conversation: that of its profile, else the configured one."""
        if not place.scope:
            return self._settings.zone
        notes = Notes(self._scopes.named(place.scope).memory)
        found = zone_in((await asyncio.to_thread(notes.profile)).decode("utf-8", "replace"))
        return self._settings.zone if found is None else found[0]

    def _asker(self, place: ToolPlace) -> Asker:
        """Say who asks; of a job's turn, which job it is."""
        person = place.sender.get("id", "")
        if place.source != "interactive" or is_job(place.key):
            # A turn of the clock that names no job changes none.
            return Asker(place.key, group=place.group, job=chat_jobs.own_job(place.message_id) or "-")
        return Asker(place.key, person, group=place.group, trusted=self._trusts(place.key, person))

    def _trusts(self, key: str, person: str) -> bool:
        """Say whether the operator let this very person in; that everyone may talk makes nobody trusted."""
        channel = split(key)[0]
        if channel in _OWN_CLIENTS:
            return True
        table = getattr(self._settings.channels, channel, None)
        if not isinstance(table, Platform) or not person:
            return False
        try:
            approved = pairing.approved(self._settings.state, channel)
        except ChannelError as error:
            # Who was let in cannot be read now: whoever made a job may change it all the same.
            log.warning("people.unread", error=str(error), hint=error.hint)
            return person in table.allow_from
        return person in table.allow_from or person in approved.people


async def _done(work: Awaitable[T]) -> T:
    try:
        return await work
    except ChannelError as error:
        raise ToolError(f"{error}; {error.hint}" if error.hint else str(error)) from error


def _agent(place: ToolPlace) -> str:
    return shown(parted(place.scope)[0])


def _told(job: CronJob, zone: tzinfo, agent: str) -> str:
    state = job.row.get("state")
    status = state.get("lastStatus") if isinstance(state, dict) else None
    name = f"“{job.name}”" if job.agent in ("", agent) else f"of the agent {job.agent}"
    words = [f"{job.id} {name}: {in_words(job.schedule, zone)}"]
    words.append(f"next {_next(job, zone)}" if job.enabled else "disabled")
    if job.owner is not None and (job.owner.name or job.owner.id):
        words.append(f"made by {job.owner.name or job.owner.id}")
    if status:
        words.append("last run: failed" if status == "error" else f"last run: {status}")
    return ", ".join(words)


def _next(job: CronJob, zone: tzinfo) -> str:
    ms = job.state_ms("nextRunAtMs")
    return f"{instant_of(ms).astimezone(zone):%Y-%m-%d %H:%M %Z}" if ms is not None else "soon"
