"""What a job asks at its time: its message, and of a heartbeat the tasks that stand in ``HEARTBEAT.md``."""

from __future__ import annotations

import asyncio
import os
from pathlib import Path

import structlog

from channels.cron import heartbeat
from channels.cron.job import CronJob
from gateway.config.memory_scope import scopes_of
from gateway.config.settings import Settings
from session.errors import SessionError
from session.memory.scope_resolver import ScopeResolver
from session.store.store import Store
from session.transcript.agent import named
from session.transcript.attachments import open_beneath

log = structlog.get_logger("heartbeat")

# A character takes four bytes at most.
_MAX_BYTES = 4 * heartbeat.MAX_CHARS


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
        return heartbeat.beat(job.message, await asyncio.to_thread(_tasks, folders))

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
            fd = open_beneath(folder, heartbeat.FILE)
        except FileNotFoundError:
            continue
        with os.fdopen(fd, "rb") as file:
            return file.read(_MAX_BYTES).decode("utf-8", "replace")
    return ""
