"""Gathers what a model is told about a message: files of the workspace, the clock, what has ended before."""

from __future__ import annotations

from collections.abc import Callable, Collection, Sequence
from datetime import datetime, tzinfo
from pathlib import Path

import structlog

from session.context import context
from session.context.audience import answers_in
from session.context.context import Part, Recent
from session.context.profile import PROFILE_FILE, demoted, zone_in
from session.context.quiet import silence_of
from session.context.recent import RecentSessions
from session.context.request import Request
from session.context.scopes import Scope
from session.context.working import LookAround, Surroundings, WorkingMemory
from session.disk.threads import DiskThreads
from session.errors import StoreError
from session.library.file_cache import FileCache, text
from session.library.library import Library
from session.store.store import Session

log = structlog.get_logger(__name__)

PERSONA_FILES = ("AGENTS.md", "instructions.md")
THREADS = 4


class ContextParts:
    """Builds the parts of a request once for each turn, so that they stay the same over its tool rounds."""

    def __init__(
        self,
        workspace: Path,
        *,
        library: Library,
        recent: RecentSessions,
        zone: tzinfo,
        zone_name: str,
        clock: Callable[[], datetime],
        look_around: LookAround | None = None,
        persona: str = "",
        personas: Sequence[Path] = (),
    ) -> None:
        """``persona`` stands for that of the workspace; else the first of ``personas`` that has one."""
        self._persona_given = persona
        self._persona_files = [folder / name for folder in (*personas, workspace) for name in PERSONA_FILES]
        self._library = library
        self._recent = recent
        self._zone = zone
        self._zone_name = zone_name
        self._clock = clock
        self._look_around = look_around
        self._texts: FileCache[str] = FileCache(text)
        self._threads = DiskThreads(threads=THREADS)

    async def parts(
        self,
        session: Session,
        request: Request,
        scope: Scope,
        *,
        notes: str,
        tools: Collection[str],
        others: Collection[str] = (),
        facts: Sequence[str] = (),
    ) -> list[Part]:
        """Gather the parts, without the summary that the transcript itself holds.

        Args:
            session: whose turn it is.
            request: the message.
            scope: what the conversation may see.
            notes: MEMORY.md of the scope.
            tools: the names of the tools on offer.
            others: the keys of the same person, whose ended sessions are told here, too.
            facts: those that are near to the message, the nearest first.
        """
        now = self._clock()
        surroundings = Surroundings(request.key, scope, tuple(others))
        metadata, stem, active = session.metadata, session.stem, session.session_id
        answers = answers_in(metadata)

        def recent() -> list[Recent]:
            return self._recent.of(
                request.key, stem, active=active, now=now, others=others, agent=scope.agent, answers=answers
            )

        def gather() -> list[Part]:
            profile = self._texts.get(scope.memory / PROFILE_FILE) or ""
            zone, zone_name = zone_in(profile) or (self._zone, self._zone_name)
            return [
                context.preamble(tools),
                *context.persona(self._persona(), metadata.get("instructions")),
                context.profile(demoted(profile, below=2)),
                context.memory(notes),
                context.date_and_time(now.astimezone(zone), zone_name),
                self._chat(request, scope),
                context.recent_sessions(self._ended(request.key, recent)),
                *context.working(self._working(surroundings), now.astimezone(zone)),
                context.playbooks(
                    [(found.name, found.body) for found in self._library.matched(request.text)]
                ),
                self._skills(tools),
                context.facts(facts),
            ]

        return await self._threads.start(gather)

    async def of_task(self, *, tools: Collection[str], facts: Sequence[str]) -> list[Part]:
        """Gather the parts of a subagent's request: who it is and what time it is, and facts, nothing else.

        Args:
            tools: the names of the tools on offer.
            facts: those of its parent's scope that are near to the task, the nearest first.
        """
        now = self._clock()

        def gather() -> list[Part]:
            return [
                context.preamble(tools),
                *context.persona(self._persona(), None),
                context.subagent(),
                context.date_and_time(now.astimezone(self._zone), self._zone_name),
                self._skills(tools),
                context.facts(facts),
            ]

        return await self._threads.start(gather)

    def _chat(self, request: Request, scope: Scope) -> Part:
        silence = silence_of(request)
        job = ""
        if request.job_name:
            slot = request.id.rpartition("@")[2]
            # A run by hand is due whenever somebody says so.
            due = f" that was due at {slot}" if slot[:1].isdecimal() else ""
            job = f"the clock, for the job “{request.job_name}”{due}; nobody has just written"
        return context.chat(request.key, group=scope.group, sender=request.sender, job=job, silence=silence)

    def _working(self, surroundings: Surroundings) -> WorkingMemory:
        return self._look_around(surroundings) if self._look_around is not None else WorkingMemory()

    def close(self) -> None:
        """End the threads."""
        self._threads.close()

    def _persona(self) -> str:
        texts = (self._texts.get(path) or "" for path in self._persona_files)
        return self._persona_given or next((found for found in texts if found.strip()), "")

    def _ended(self, key: str, recent: Callable[[], list[Recent]]) -> list[Recent]:
        try:
            return recent()
        except (StoreError, OSError) as error:
            # A turn goes on without the files that cannot be read.
            log.warning("recent.unread", key=key, error=str(error))
            return []

    def _skills(self, tools: Collection[str]) -> Part:
        known = self._library.skills() if "skill_read" in tools else ()
        return context.skills([(skill.name, skill.description) for skill in known])
