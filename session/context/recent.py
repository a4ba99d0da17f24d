"""The summaries of a conversation's ended sessions, read from line 1 of their files; for threads."""

from __future__ import annotations

import json
import threading
import time
from collections.abc import Sequence
from datetime import datetime, timedelta
from pathlib import Path

from durable import BoundedDict
from session.context.context import Recent
from session.disk.layout import Layout, Seen, seen
from session.library.file_cache import YOUNG_NS, FileCache
from session.transcript import archive
from session.transcript.archive import Archived

MAX_LINE_BYTES = 256 * 1024
FOLDERS_KEPT = 1_000


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
        self._within = timedelta(days=min(days, 36_500))
        self._heads: FileCache[tuple[str, str]] = FileCache(_head, max_bytes=MAX_LINE_BYTES)
        self._folders: BoundedDict[Path, tuple[Seen, list[Archived]]] = BoundedDict(FOLDERS_KEPT)
        self._lock = threading.Lock()

    def of(self, key: str, stem: str, *, active: str, now: datetime) -> list[Recent]:
        """Return the summaries of the sessions of ``key`` that ended last, the newest first.

        One that has no summary, like one that a compaction ended, is passed over; so is the copy of the
        ``active`` session, whose ending was interrupted.
        """
        found: list[Recent] = []
        for ended in reversed(self._ended(stem)):
            if len(found) >= self._most or now - ended.ended_at > self._within:
                break
            if ended.session_id == active:
                continue
            owner, summary = self._heads.get(ended.path) or ("", "")
            if owner == key and summary:
                found.append(Recent(ended.ended_at, summary))
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
        if time.time_ns() - now[2] > YOUNG_NS:
            with self._lock:
                self._folders[folder] = (now, ended)
        return ended


def _head(path: Path, data: bytes) -> tuple[str, str]:
    """Read the key and the summary that line 1 names, else the last words; empty where it says none."""
    line, newline, _ = data.removeprefix(b"\xef\xbb\xbf").partition(b"\n")
    try:
        head = json.loads(line) if newline or len(data) < MAX_LINE_BYTES else None
    except (ValueError, RecursionError):
        head = None
    inner = head.get("metadata") if isinstance(head, dict) else None
    inner = inner if isinstance(inner, dict) else {}
    summary = inner.get("summary") or inner.get("last_words")
    owner = head.get("key") if isinstance(head, dict) else None
    return owner if isinstance(owner, str) else "", summary.strip() if isinstance(summary, str) else ""
