"""The files of a scope's memory: MEMORY.md and USER.md are replaced whole, HISTORY.md only grows.

What is replaced stays as a version, which is on disk before another text takes its place.
"""

from __future__ import annotations

import os
import re
from collections.abc import Callable
from dataclasses import dataclass, field
from datetime import datetime
from pathlib import Path
from urllib.parse import quote, unquote

import durable
from session.context.profile import PROFILE_FILE
from session.disk.layout import read_file, seen
from session.disk.state import replace_file
from session.errors import StoreError
from session.memory.versions import VersionRules, Versions

MEMORY, HISTORY = "MEMORY.md", "HISTORY.md"
_MARK = re.compile(
    rb"^<!-- session ([0-9A-Z]{26}) messages (\d+)-(\d+) ([0-9a-f]{8})(?: of (\S+))? -->\r?$", re.MULTILINE
)


@dataclass(frozen=True, slots=True)
class Mark:
    """Which messages of which session a paragraph of HISTORY.md stands for; ``stop`` is one past the last.

    ``chat`` is their key, named where several chats share the file.
    """

    session_id: str
    start: int
    stop: int
    digest: str
    chat: str = field(default="", compare=False)

    def __str__(self) -> str:
        # A key may hold what would end the comment, or its line.
        of = f" of {quote(self.chat, safe=':@+,', errors='replace')}" if self.chat else ""
        return f"<!-- session {self.session_id} messages {self.start}-{self.stop - 1} {self.digest}{of} -->"


class Notes:
    """MEMORY.md, HISTORY.md and USER.md of one folder, for one writer at a time. Used from threads.

    Args:
        folder: the scope's folder of memory.
        rules: how many former texts are kept, and for how long; None: as by default.
        clock: says when a text was replaced.
    """

    def __init__(
        self,
        folder: Path,
        rules: VersionRules | None = None,
        *,
        clock: Callable[[], datetime] = durable.now,
    ) -> None:
        self.versions = Versions(folder, rules, clock=clock)
        self.memory_path = folder / MEMORY
        self.history_path = folder / HISTORY
        self.profile_path = folder / PROFILE_FILE

    def memory(self) -> bytes:
        """Read MEMORY.md; empty where there is none.

        Raises:
            StoreError: it cannot be read, or is not a regular file.
        """
        return _read(self.memory_path)

    def history(self) -> bytes:
        """Read HISTORY.md; empty where there is none.

        Raises:
            StoreError: as ``memory``.
        """
        return _read(self.history_path)

    def write_memory(self, text: str, cause: str = "consolidation") -> None:
        """Replace MEMORY.md; bytes that are no UTF-8, which no model could keep, stay beside it in a copy."""
        old = self.memory()
        new = text.encode("utf-8", "replace")
        if old == new:
            return
        if old and not _is_utf8(old):
            _replace(self.memory_path.with_name(f"{MEMORY}.corrupt-{durable.new_id()}"), old)
        self._put(self.memory_path, old, new, cause)

    def profile(self) -> bytes:
        """Read USER.md; empty where there is none.

        Raises:
            StoreError: as ``memory``.
        """
        return _read(self.profile_path)

    def replace_profile(self, text: str, *, was: bytes, cause: str = "profile") -> bool:
        """Replace USER.md; False, and nothing is written, where a person edited it since it was read."""
        if self.profile() != was:
            return False
        self._put(self.profile_path, was, text.encode("utf-8", "replace"), cause)
        return True

    def notice(self) -> None:
        """Keep what a person's edits of MEMORY.md and USER.md have replaced.

        Raises:
            StoreError: as ``memory``, or the disk refused.
        """
        for path in (self.memory_path, self.profile_path):
            self.versions.notice(path.name, _read(path))

    def restore(self, file: str, data: bytes, cause: str = "restore") -> str | None:
        """Put a former text of MEMORY.md or USER.md in its place again, or that of a person who edits it.

        Returns:
            The version that holds what stood there; None where nothing did, or it said the same.

        Raises:
            StoreError: as ``memory``, or the disk refused.
        """
        path = self.memory_path if file == MEMORY else self.profile_path
        old = _read(path)
        return self._put(path, old, data, cause) if old != data else None

    def _put(self, path: Path, old: bytes, new: bytes, cause: str) -> str | None:
        former = self.versions.keep(path.name, old, cause)
        _replace(path, new)
        self.versions.wrote(path.name, new)
        return former.id if former is not None else None

    def marks(self) -> list[Mark]:
        """List what HISTORY.md holds, as its paragraphs say."""
        return [
            Mark(
                found[1].decode(),
                int(found[2]),
                int(found[3]) + 1,
                found[4].decode(),
                unquote(found[5].decode("utf-8", "replace")) if found[5] else "",
            )
            for found in _MARK.finditer(self.history())
        ]

    def add_history(self, entry: str, mark: Mark) -> bool:
        """Append a paragraph with its mark; return False where it is there already, or says nothing."""
        if not entry:
            return False
        old = self.history()
        line = str(mark).encode()
        # After a crash between the two files the same paragraph comes again.
        if mark in self.marks():
            return False
        gap = b"" if not old or old.endswith(b"\n\n") else b"\n" if old.endswith(b"\n") else b"\n\n"
        _replace(
            self.history_path, b"".join((old, gap, entry.encode("utf-8", "replace"), b"\n", line, b"\n\n"))
        )
        return True


def _replace(path: Path, data: bytes) -> None:
    # A link that the operator made stays one: the file that it points to is replaced.
    replace_file(Path(os.path.realpath(path)), data)


def _read(path: Path) -> bytes:
    if seen(path) is None:
        return b""
    if not path.is_file():
        raise StoreError(f"{path.name} is not a regular file", hint=f"check {path}")
    found = read_file(path)
    return found[0] if found is not None else b""


def _is_utf8(data: bytes) -> bool:
    try:
        data.decode()
    except UnicodeDecodeError:
        return False
    return True
