"""The summaries of a conversation's ended sessions, read from line 1 of their files; for threads."""

from __future__ import annotations

import json
import threading
from collections.abc import Collection, Sequence
from dataclasses import dataclass
from datetime import datetime, timedelta
from pathlib import Path

import durable
from durable import BoundedDict
from session.context.audience import CHAT, answers_in, as_chat
from session.context.context import Recent
from session.context.scopes import Reader, counts_as_group, is_job
from session.disk.layout import Layout, Seen, seen
from session.library.file_cache import YOUNG_NS, FileCache
from session.transcript import archive
from session.transcript.agent import agent_in
from session.transcript.archive import Archived
from session.transcript.key import marked_stem, plain_stem
from session.transcript.line import FOR_EVER_DAYS

MAX_LINE_BYTES = 256 * 1024
FOLDERS_KEPT = 1_000


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
    """Finds the newest summaries of a key; names and first lines are read when they have changed.

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
        self._folders: BoundedDict[Path, tuple[Seen, list[Archived]]] = BoundedDict(FOLDERS_KEPT)
        self._lock = threading.Lock()

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
        for ended in reversed(self._ended(stem)):
            if len(found) >= self._most or now - ended.ended_at > self._within:
                break
            if ended.session_id == active:
                continue
            head = self._heads.get(ended.path) or Head()
            ours = head.key == key and head.agent == agent and (head.answers == answers or not is_job(key))
            if ours and head.summary and not (direct and head.group):
                found.append(Recent(ended.ended_at, head.summary))
        return found

    def _ended(self, stem: str) -> Sequence[Archived]:
        folder = self._layout.archive(stem)
        now = seen(folder)
        if now is None:
            return ()
        with self._lock:
            known = self._folders.use(folder)
            if known is not None and known[0] == now:
                return known[1]
        ended = archive.of_stem(self._layout, stem)
        # A folder may change twice within one tick of the file system's clock, and then looks the same.
        if durable.wall_ns() - now[2] > YOUNG_NS:
            with self._lock:
                self._folders[folder] = (now, ended)
        return ended


def read_head(path: Path, data: bytes) -> Head:
    """Read line 1: the summary is the last words where there is none yet, and empty without them."""
    line, newline, _ = data.removeprefix(b"\xef\xbb\xbf").partition(b"\n")
    try:
        head = json.loads(line) if newline or len(data) < MAX_LINE_BYTES else None
    except (ValueError, RecursionError):
        head = None
    inner = head.get("metadata") if isinstance(head, dict) else None
    inner = inner if isinstance(inner, dict) else {}
    summary = inner.get("summary") or inner.get("last_words")
    owner = head.get("key") if isinstance(head, dict) else None
    key = owner if isinstance(owner, str) else ""
    group = counts_as_group(Reader(key, as_chat(inner.get(CHAT))))
    summary = summary.strip() if isinstance(summary, str) else ""
    return Head(key, group, summary, agent_in(inner), frozenset(answers_in(inner)))
