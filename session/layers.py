"""Gathers what a model is told about a message: files of the workspace, the clock, what has ended before."""

from __future__ import annotations

from collections.abc import Callable, Collection
from datetime import datetime, tzinfo
from pathlib import Path

import structlog

from session import context
from session.context import Part, Recent
from session.errors import StoreError
from session.hop import Hop
from session.library import Library
from session.recent import RecentSessions
from session.scopes import Scope
from session.shelf import Shelf, text
from session.store import Session
from session.turn import Request

log = structlog.get_logger(__name__)

PERSONA_FILES = ("AGENTS.md", "instructions.md")
PROFILE_FILE = "USER.md"
THREADS = 4


class Layers:
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
    ) -> None:
        self._workspace = workspace
        self._library = library
        self._recent = recent
        self._zone = zone
        self._zone_name = zone_name
        self._clock = clock
        self._texts: Shelf[str] = Shelf(text)
        self._hop = Hop(threads=THREADS)

    async def parts(
        self, session: Session, request: Request, scope: Scope, *, notes: str, tools: Collection[str]
    ) -> list[Part]:
        """Gather the parts, without the summary that the transcript itself holds.

        Args:
            session: whose turn it is.
            request: the message.
            scope: what the conversation may see.
            notes: MEMORY.md of the scope.
            tools: the names of the tools on offer.
        """
        now = self._clock()
        metadata, stem, active = session.metadata, session.stem, session.session_id

        def gather() -> list[Part]:
            return [
                context.preamble(tools),
                *context.persona(self._persona(), metadata.get("instructions")),
                context.profile(self._texts.get(scope.memory / PROFILE_FILE) or ""),
                context.memory(notes),
                context.date_and_time(now.astimezone(self._zone), self._zone_name),
                context.chat(request.key, group=request.group, sender=request.sender),
                context.recent_sessions(self._ended(request.key, stem, active, now)),
                context.playbooks([(book.name, book.body) for book in self._library.matched(request.text)]),
                self._skills(tools),
            ]

        return await self._hop.start(gather)

    def close(self) -> None:
        """End the threads, and the process that searches."""
        self._hop.close()
        self._library.close()

    def _persona(self) -> str:
        texts = (self._texts.get(self._workspace / name) or "" for name in PERSONA_FILES)
        return next((found for found in texts if found.strip()), "")

    def _ended(self, key: str, stem: str, active: str, now: datetime) -> list[Recent]:
        try:
            return self._recent.of(key, stem, active=active, now=now)
        except (StoreError, OSError) as error:  # a turn goes on without them
            log.warning("recent.unread", key=key, error=str(error))
            return []

    def _skills(self, tools: Collection[str]) -> Part:
        known = self._library.skills() if "skill_read" in tools else ()
        return context.skills([(skill.name, skill.description) for skill in known])
