"""Runs the cron jobs of a workspace: one process at a time looks at the clock, each slot goes in once."""

from __future__ import annotations

import asyncio
from typing import Any, NoReturn

import structlog

import durable
from channels.base import Pulse
from channels.cron.job import letter_slot
from channels.cron.jobs_file import CronFile
from channels.cron.scheduler import build
from channels.errors import ChannelError
from channels.message import Inbound
from gateway.app.heartbeat import Texts
from gateway.config.settings import Settings
from gateway.inbound.pipeline import Intake
from gateway.queue.retry import back_off_s, until_durable
from gateway.turns.jobs import NO_AGENT, gone

log = structlog.get_logger("clock")


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
                await build(
                    self._settings.state,
                    self._settings.workspace,
                    pulse=self.pulse,
                    zone=self._settings.zone,
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
