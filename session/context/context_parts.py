"""Gathers what a model is told about a message: files of the workspace, the clock, what has ended before."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Collection, Sequence
from dataclasses import dataclass
from datetime import datetime, timedelta, tzinfo
from pathlib import Path

import structlog

from session.context import context
from session.context.context import LookAround, Part, Recent, Surroundings, WorkingMemory
from session.context.profile import PROFILE_FILE, demoted, zone_in
from session.context.request import Request, silence_of
from session.context.scopes import CHAT, Reader, Scope, answers_in, as_chat, counts_as_group, is_job
from session.disk.layout import FileCache, Layout, text
from session.errors import StoreError
from session.library.library import Library
from session.store.store import Session
from session.transcript import archive
from session.transcript.agent import agent_in
from session.transcript.key import marked_stem, plain_stem
from session.transcript.line import FOR_EVER_DAYS
from session.transcript.transcript import parse

MAX_LINE_BYTES = 256 * 1024


@dataclass(frozen=True, slots=True)
class Head:
    """What line 1 of an ended session says: key, agent, whether others read along, what it was about.

    ``answers`` are the chats that a job has answered in it.
    """

    key: str = ""
    group: bool = True
    summary: str = ""
    agent: str = ""
    answers: frozenset[str] = frozenset()


class RecentSessions:
    """Finds the newest summaries of a key; first lines are read when they have changed.

    Args:
        layout: the workspace.
        most: how many summaries.
        days: how long ago a session may have ended.
    """

    def __init__(self, layout: Layout, *, most: int, days: float) -> None:
        self._layout = layout
        self._most = most
        self._within = timedelta(days=min(days, FOR_EVER_DAYS))
        self._heads: FileCache[Head] = FileCache(read_head, max_bytes=MAX_LINE_BYTES)

    def of(
        self,
        key: str,
        stem: str,
        *,
        active: str,
        now: datetime,
        others: Collection[str] = (),
        agent: str = "",
        answers: Collection[str] = (),
    ) -> list[Recent]:
        """Return the summaries of the sessions of ``key`` that ended last, the newest first.

        One that has no summary, like one that a compaction ended, is passed over; so is the copy of the
        ``active`` session, whose ending was interrupted.

        ``others`` are keys of the same person, whose sessions count as well, but those of groups. Sessions of
        other agents than ``agent`` never do, nor those in which a job answered other chats than ``answers``.
        """
        answered = frozenset(answers)
        found = self._of_one(key, stem, agent, answered, active=active, now=now)
        for other in others:
            for name in (plain_stem(other), marked_stem(other)):
                found += self._of_one(other, name, agent, answered, active="", now=now, direct=True)
        return sorted(found, key=lambda recent: recent.ended_at, reverse=True)[: self._most]

    def _of_one(
        self,
        key: str,
        stem: str,
        agent: str,
        answers: frozenset[str],
        *,
        active: str,
        now: datetime,
        direct: bool = False,
    ) -> list[Recent]:
        found: list[Recent] = []
        for ended in reversed(archive.of_stem(self._layout, stem)):
            if len(found) >= self._most or now - ended.ended_at > self._within:
                break
            if ended.session_id == active:
                continue
            head = self._heads.get(ended.path) or Head()
            ours = head.key == key and head.agent == agent and (head.answers == answers or not is_job(key))
            if ours and head.summary and not (direct and head.group):
                found.append(Recent(ended.ended_at, head.summary))
        return found


def read_head(path: Path, data: bytes) -> Head:
    """Read line 1: the summary is the last words where there is none yet, and empty without them."""
    head = parse(data.partition(b"\n")[0], stem="")
    inner, owner = head.inner, head.metadata.get("key")
    summary = inner.get("summary") or inner.get("last_words")
    key = owner if isinstance(owner, str) else ""
    group = counts_as_group(Reader(key, as_chat(inner.get(CHAT))))
    summary = summary.strip() if isinstance(summary, str) else ""
    return Head(key, group, summary, agent_in(inner), frozenset(answers_in(inner)))


log = structlog.get_logger(__name__)
PERSONA_FILES = ("AGENTS.md", "instructions.md")


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

        def recent() -> list[Recent]:
            try:
                return self._recent.of(
                    request.key,
                    stem,
                    active=active,
                    now=now,
                    others=others,
                    agent=scope.agent,
                    answers=answers_in(metadata),
                )
            except (StoreError, OSError) as error:
                # A turn goes on without the files that cannot be read.
                log.warning("recent.unread", key=request.key, error=str(error))
                return []

        def gather() -> list[Part]:
            around = self._look_around(surroundings) if self._look_around is not None else WorkingMemory()
            profile = self._texts.get(scope.memory / PROFILE_FILE) or ""
            zone, zone_name = zone_in(profile) or (self._zone, self._zone_name)
            return [
                context.preamble(tools),
                *context.persona(self._persona(), metadata.get("instructions")),
                context.profile(demoted(profile, below=2)),
                context.memory(notes),
                context.date_and_time(now.astimezone(zone), zone_name),
                self._chat(request, scope),
                context.recent_sessions(recent()),
                *context.working(around, now.astimezone(zone)),
                context.playbooks(
                    [(found.name, found.body) for found in self._library.matched(request.text)]
                ),
                self._skills(tools),
                context.facts(facts),
            ]

        return await asyncio.to_thread(gather)

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

        return await asyncio.to_thread(gather)

    def _chat(self, request: Request, scope: Scope) -> Part:
        silence = silence_of(request)
        job = ""
        if request.job_name:
            slot = request.id.rpartition("@")[2]
            # A run by hand is due whenever somebody says so.
            due = f" that was due at {slot}" if slot[:1].isdecimal() else ""
            job = f"the clock, for the job “{request.job_name}”{due}; nobody has just written"
        return context.chat(request.key, group=scope.group, sender=request.sender, job=job, silence=silence)

    def _persona(self) -> str:
        texts = (self._texts.get(path) or "" for path in self._persona_files)
        return self._persona_given or next((found for found in texts if found.strip()), "")

    def _skills(self, tools: Collection[str]) -> Part:
        known = self._library.skills() if "skill_read" in tools else ()
        return context.skills([(skill.name, skill.description) for skill in known])
