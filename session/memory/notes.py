"""The files of a scope's memory, and their former versions.

MEMORY.md and USER.md are replaced as a whole, HISTORY.md only grows. What is replaced stays as a version,
one file each in ``versions/``: ``20260131T091500Z-<ULID>-consolidation-MEMORY.md`` holds the bytes that
MEMORY.md had until then, and names what replaced them. Each step is durable before the next::

    versions/…-<cause>-<file> ──▶ <file> ──▶ versions/written/<file>

The last is a copy of what this program wrote: a file that differs from it was edited by hand. A version of
facts holds only their former lines, because the file may be large and its lines are independent.
"""

from __future__ import annotations

import os
import re
from collections.abc import Callable
from dataclasses import dataclass, field
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Final
from urllib.parse import quote, unquote

from ulid import ULID

import durable
from session.context.profile import PROFILE_FILE
from session.disk.layout import read_file, seen
from session.disk.state import replace_file
from session.errors import StoreError
from session.transcript.line import FOR_EVER_DAYS

FOLDER: Final = "versions"
WRITTEN: Final = "written"
FILES: Final = ("MEMORY.md", PROFILE_FILE, "facts.jsonl")
BY_HAND: Final = "edited by hand"
_PLACES: Final = (FOLDER, f"chats/*/{FOLDER}", f"people/*/{FOLDER}")
# Where the memory of other agents lies, from that of the default one on.
_OTHERS: Final = "agents/*/memory"
_NAME = re.compile(
    r"(\d{8}T\d{6}Z)-([0-7][0-9A-HJKMNP-TV-Z]{25})-([a-z][a-z-]*)-(MEMORY\.md|USER\.md|facts\.jsonl)"
)
_TIME: Final = "%Y%m%dT%H%M%SZ"


@dataclass(frozen=True, slots=True)
class VersionRules:
    """The figures of ``[memory]``: so many former ones of each file are kept, for so long; 0: none."""

    most: int = 50
    days: float = 90.0


@dataclass(frozen=True, slots=True)
class Version:
    """One former text of ``file``: it stood there until ``at``, when ``cause`` put another one there."""

    id: str
    file: str
    at: datetime
    cause: str
    path: Path

    def read(self) -> bytes:
        """Return its bytes; empty where it is gone."""
        found = read_file(self.path)
        return found[0] if found is not None else b""


class Versions:
    """The former texts of one folder, for whoever holds the lock of its files; for threads.

    Every method raises StoreError if the disk refuses.
    """

    def __init__(
        self,
        folder: Path,
        rules: VersionRules | None = None,
        *,
        clock: Callable[[], datetime] = durable.now,
    ) -> None:
        self._memory = folder
        self.folder = folder / FOLDER
        self._rules = rules or VersionRules()
        self._clock = clock

    @property
    def kept(self) -> bool:
        """Whether any are kept at all."""
        return self._rules.most > 0 and self._rules.days > 0

    def all(self, file: str = "") -> list[Version]:
        """List the versions of a file, or of all, the oldest first."""
        try:
            names = [path.name for path in self.folder.iterdir()]
        except (FileNotFoundError, NotADirectoryError):
            return []
        except OSError as error:
            raise StoreError(
                f"{FOLDER} cannot be read: {error.strerror}", hint=f"check {self.folder}"
            ) from error
        found = [version for name in names if (version := self._named(name)) is not None]
        return sorted((one for one in found if file in ("", one.file)), key=lambda one: one.id)

    def keep(self, file: str, old: bytes, cause: str) -> Version | None:
        """Keep what stands in a file before another text takes its place; on return it is durable.

        Where a person edited the file since it was last written here, what stood before the edit is kept,
        too. Doing it twice, as after a crash, keeps it once.

        Returns the version that holds ``old``; None where there is nothing to keep.
        """
        if not self.kept:
            self.prune()
            return None
        self.notice(file, old)
        known = self.all(file)
        newest = known[-1] if known else None
        content = newest.read() if newest is not None else None
        if old and old != content:
            newest, content = self._add(file, old, cause, newest), old
        return newest if old and content == old else None

    def notice(self, file: str, now: bytes) -> None:
        """Keep what was written into a file here last, where a person has edited it since."""
        written = self.written(file) if self.kept else None
        if not written or written == now:
            return
        known = self.all(file)
        # It may be there from a try that a crash ended, and behind it what took its place.
        if written not in [one.read() for one in known[-2:]]:
            self._add(file, written, BY_HAND, known[-1] if known else None, at=self._edited_at(file))
        self.wrote(file, now)

    def add(self, file: str, lines: bytes, cause: str) -> None:
        """Keep some former lines of a file; those of the newest version are there already."""
        if not self.kept:
            self.prune()
            return
        known = self.all(file)
        by_hand = cause == BY_HAND
        if lines and lines not in [one.read() for one in known[-2 if by_hand else -1 :]]:
            at = self._edited_at(file) if by_hand else None
            self._add(file, lines, cause, known[-1] if known else None, at=at)

    def written(self, file: str) -> bytes | None:
        """Return what was last written into a file here; None where nobody knows."""
        found = read_file(self.folder / WRITTEN / file)
        return found[0] if found is not None else None

    def wrote(self, file: str, data: bytes) -> None:
        """Remember what has just taken its place."""
        if self.kept:
            replace_file(self.folder / WRITTEN / file, data)
            self.prune()

    def prune(self) -> int:
        """Remove what is too old or too much; return how many versions that were."""
        oldest = self._clock() - timedelta(days=min(self._rules.days, FOR_EVER_DAYS))
        gone: list[Path] = []
        for file in FILES:
            known = self.all(file)
            stays = known[-self._rules.most :] if self.kept else []
            gone += [one.path for one in known if one not in stays or one.at < oldest]
            if not self.kept:
                gone.append(self.folder / WRITTEN / file)
        removed = [_unlinked(path) for path in gone]
        return sum(removed)

    def rewrite(self, version: Version, data: bytes) -> None:
        """Leave of a version what shall stay of it; empty: the version goes."""
        if data:
            replace_file(version.path, data)
        else:
            _unlinked(version.path)

    def _add(
        self, file: str, data: bytes, cause: str, newest: Version | None, *, at: datetime | None = None
    ) -> Version:
        now = self._clock()
        at = now if at is None else min(at, now)
        if newest is not None:
            at = max(at, newest.at)
        id_ = _id_after(newest.id if newest is not None else "", at)
        name = f"{at.astimezone(UTC):{_TIME}}-{id_}-{cause.replace(' ', '-')}-{file}"
        version = Version(id_, file, at.astimezone(UTC).replace(microsecond=0), cause, self.folder / name)
        replace_file(version.path, data)
        return version

    def _edited_at(self, file: str) -> datetime | None:
        found = seen(self._memory / file)
        return datetime.fromtimestamp(found[2] / 1e9, UTC) if found is not None else None

    def _named(self, name: str) -> Version | None:
        found = _NAME.fullmatch(name)
        if found is None:
            return None
        try:
            at = datetime.strptime(found[1], _TIME).replace(tzinfo=UTC)
        except ValueError:
            return None
        return Version(found[2], found[4], at, found[3].replace("-", " "), self.folder / name)


def prune_all(memory: Path, rules: VersionRules, *, clock: Callable[[], datetime]) -> int:
    """Remove from all scopes of a workspace's ``memory/`` what is too old or too much; return how many."""
    tops = (memory, *sorted(memory.parent.glob(_OTHERS)))
    found = (path for top in tops for each in _PLACES for path in sorted(top.glob(each)) if path.is_dir())
    return sum(Versions(path.parent, rules, clock=clock).prune() for path in found)


def _id_after(newest: str, at: datetime) -> str:
    """Return an id of this moment that sorts behind the newest one, also within its millisecond."""
    mine = ULID.from_str(durable.new_id(at))
    if newest and str(mine) <= newest:
        return str(ULID.from_int(int(ULID.from_str(newest)) + 1))
    return str(mine)


def _unlinked(path: Path) -> bool:
    try:
        path.unlink()
    except FileNotFoundError:
        return False
    except OSError as error:
        raise StoreError(
            f"{path.name} could not be removed: {error.strerror}", hint=f"check {path}"
        ) from error
    return True


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

    Every method raises StoreError if the disk refuses, or a file is not a regular one.

    ``rules`` say how many former texts are kept, and for how long.
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
        """Read MEMORY.md; empty where there is none."""
        return _read(self.memory_path)

    def history(self) -> bytes:
        """Read HISTORY.md; empty where there is none."""
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
        """Read USER.md; empty where there is none."""
        return _read(self.profile_path)

    def replace_profile(self, text: str, *, was: bytes, cause: str = "profile") -> bool:
        """Replace USER.md; False, and nothing is written, where a person edited it since it was read."""
        if self.profile() != was:
            return False
        self._put(self.profile_path, was, text.encode("utf-8", "replace"), cause)
        return True

    def notice(self) -> None:
        """Keep what a person's edits of MEMORY.md and USER.md have replaced."""
        for path in (self.memory_path, self.profile_path):
            self.versions.notice(path.name, _read(path))

    def restore(self, file: str, data: bytes, cause: str = "restore") -> str | None:
        """Put a former text of MEMORY.md or USER.md in its place again, or that of a person who edits it.

        Returns the version that holds what stood there; None where nothing did, or it said the same.
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
