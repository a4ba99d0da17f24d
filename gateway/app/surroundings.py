"""What goes on around a conversation, as the files of the workspace tell it: for the context of a turn."""

from __future__ import annotations

import os
import threading
from collections.abc import Iterator, Sequence
from datetime import UTC, datetime
from heapq import nlargest
from pathlib import Path
from typing import Any

import structlog

import durable
from channels.cron.jobs import CronJob
from channels.cron.jobs_file import CronFile, Seen
from channels.errors import ChannelError
from channels.plugins import enabled
from gateway.config.settings import Settings
from gateway.outbound.standing import standing
from session.context.context import ChannelStanding, Event, OpenWork, Surroundings, WorkingMemory
from session.context.profile import PROFILE_FILE
from session.errors import StoreError
from session.memory.notes import MEMORY
from session.subagents.records import SubagentFiles
from session.transcript.agent import shown
from session.transcript.key import mark_of

log = structlog.get_logger("surroundings")

# How channels stand is looked up no more often than this.
CHANNELS_EVERY_S = 2.0
# Of a folder with more files than this the rest is not looked at.
MOST_FILES = 500
# As many as a request tells of at most.
NEWEST_FILES = 10
_CHANGED = {MEMORY: "the notes were changed", PROFILE_FILE: "the profile was changed"}
_WORK = {"json": "taken into memory", "summary.json": "summed up"}


class SurroundingsReader:
    """Looks at jobs, notes, files and channels; kept as long as their files do not change. For threads."""

    def __init__(self, settings: Settings) -> None:
        self._settings = settings
        self._jobs_folder = settings.state / "jobs"
        self._subagent_files = SubagentFiles(settings.state)
        self._cron = CronFile(settings.workspace, zone=settings.zone)
        self._jobs: tuple[Seen | None, Sequence[CronJob]] = (None, ())
        self._channels: tuple[float, Sequence[ChannelStanding]] = (-CHANNELS_EVERY_S, ())
        self._lock = threading.Lock()

    def __call__(self, around: Surroundings) -> WorkingMemory:
        """Gather what a conversation may know of; a group is not told of channels."""
        jobs = self._read_jobs()
        here = {around.key, *around.others}
        # The name of a job is mostly the beginning of its message: another agent's is not told.
        its_own = {"", shown(around.scope.agent)}
        answering = [job for job in jobs if here & {job.answer_to, job.key} and job.agent in its_own]
        return WorkingMemory(
            events=[*_runs(answering), *_notes(around.scope.memory), *_files(around.scope.files)],
            open_work=[
                *self._subagents(around.key),
                *self._background(around.key),
                *_schedules(answering, around.key),
            ],
            channels=() if around.scope.group else self._standing(),
        )

    def _read_jobs(self) -> Sequence[CronJob]:
        seen = self._cron.seen()
        with self._lock:
            if seen is None or seen == self._jobs[0]:
                return self._jobs[1] if seen is not None else ()
            try:
                contents = self._cron.read()
            except ChannelError as error:
                log.warning("jobs.unreadable", error=str(error))
                return ()
            self._jobs = (contents.seen, tuple(contents.jobs.values()))
            return self._jobs[1]

    def _standing(self) -> Sequence[ChannelStanding]:
        with self._lock:
            at, known = self._channels
            # One that comes up is told at once: the message may be the first that came by it.
            if durable.monotonic() - at >= CHANNELS_EVERY_S or not all(each.up for each in known):
                known = [
                    ChannelStanding(kind.name, bool(found["up"]), _instant(found.get("last_round_trip")))
                    for kind, _ in enabled(self._settings.channels)
                    for found in (standing(self._settings.state, kind.name),)
                ]
                self._channels = (durable.monotonic(), known)
            return known

    def _subagents(self, key: str) -> Iterator[OpenWork]:
        try:
            found = self._subagent_files.of(key)
        except StoreError as error:
            log.warning("subagents.unreadable", error=str(error))
            return
        for each in found:
            if each.live:
                yield OpenWork(f"the subagent “{each.label}” ({each.key}) works")

    def _background(self, key: str) -> Iterator[OpenWork]:
        """Name what the background still has to do for a chat, by the names of its files alone."""
        mark = f"-{mark_of(key)}."
        names = [entry.name for entry in _entries(self._jobs_folder) if mark in entry.name]
        for suffix, done in _WORK.items():
            count = sum(name.partition(".")[2] == suffix for name in names)
            if count:
                yield OpenWork(f"{count} ended conversation{'s' * (count > 1)} to be {done}")


def _runs(jobs: Sequence[CronJob]) -> Iterator[Event]:
    for job in jobs:
        state = job.row.get("state")
        history = state.get("runHistory") if isinstance(state, dict) else None
        for run in history if isinstance(history, list) else ():
            at = _of_ms(run.get("runAtMs")) if isinstance(run, dict) else None
            if at is not None:
                # Why it failed is for the operator: the words may be a provider's.
                yield Event(at, f"the job “{job.name}” {'ran' if run.get('status') == 'ok' else 'failed'}")


def _schedules(jobs: Sequence[CronJob], key: str) -> list[OpenWork]:
    """List the jobs that answer in a chat, those that run next first."""
    found = [
        OpenWork(f"the job “{job.name}” ({job.id})", _of_ms(job.state_ms("nextRunAtMs")))
        for job in jobs
        if job.enabled and job.asks and key in (job.answer_to, job.key)
    ]
    last = datetime.max.replace(tzinfo=UTC)
    return sorted((work for work in found if work.next_at), key=lambda work: work.next_at or last)


def _notes(folder: Path) -> Iterator[Event]:
    for name, text in _CHANGED.items():
        try:
            yield Event(datetime.fromtimestamp((folder / name).stat().st_mtime, UTC), text)
        except OSError:
            continue


def _files(folder: Path) -> Iterator[Event]:
    """Tell of the newest files that lie right in the folder; those of other scopes lie deeper."""
    found: list[tuple[float, str]] = []
    for entry in _entries(folder):
        try:
            if entry.is_file(follow_symlinks=False) and not entry.name.startswith("."):
                found.append((entry.stat(follow_symlinks=False).st_mtime, entry.name))
        except OSError:
            continue
    for written, name in nlargest(NEWEST_FILES, found):
        yield Event(datetime.fromtimestamp(written, UTC), f"the file {name} was written")


def _entries(folder: Path) -> list[os.DirEntry[str]]:
    try:
        with os.scandir(folder) as entries:
            return [entry for entry, _ in zip(entries, range(MOST_FILES), strict=False)]
    except OSError:
        return []


def _of_ms(value: object) -> datetime | None:
    try:
        return datetime.fromtimestamp(value / 1000, UTC) if type(value) is int and value > 0 else None
    except (ValueError, OverflowError, OSError):
        return None


def _instant(value: Any) -> datetime | None:
    try:
        found = datetime.fromisoformat(value) if isinstance(value, str) else None
    except ValueError:
        return None
    return found if found is not None and found.tzinfo is not None else None
