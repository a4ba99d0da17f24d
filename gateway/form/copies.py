"""Files that are put aside before others take their place: a folder that counts once its list is there."""

from __future__ import annotations

import hashlib
import re
import sqlite3
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path
from typing import Any, Final

import orjson

import durable
from gateway.errors import GatewayError, NewerState
from session.disk.local_files import local_path

LIST: Final = "list.json"
VERSION: Final = 1
_NAME: Final = re.compile(r"before-(upgrade|downgrade)-(\d+)-\d{8}T\d{6}Z(?:-\d+)?")
_FILES: Final = "files"
# What SQLite lays beside a file, and would mix with another one of the same name.
_LOGS: Final = ("-wal", "-shm", "-journal")


@dataclass(frozen=True, slots=True)
class Copy:
    """One folder ``state/before-<change>-<form>-<time>/``.

    Args:
        folder: where it lies.
        form: the form of the workspace when it was made.
        made_at: when, aware.
        files: what it holds, names below the workspace with their SHA-256.
    """

    folder: Path
    form: int
    made_at: datetime
    files: dict[str, str]

    def path(self, name: str) -> Path:
        """Return where the copy of a file lies."""
        return self.folder / _FILES / name

    @property
    def name(self) -> str:
        """Its folder, as people are told of it."""
        return f"state/{self.folder.name}"


def put_aside(workspace: Path, names: Iterable[str], *, change: str, form: int, now: datetime) -> Copy:
    """Copy files, durable when it returns; a kill before leaves a folder that counts for nothing.

    Raises:
        OSError: the disk refused; nothing but that folder was made.
    """
    folder = _free(workspace / "state", f"before-{change}-{form}-{now.astimezone(UTC):%Y%m%dT%H%M%SZ}")
    copy = Copy(folder, form, now, {})
    durable.make_folder(folder)
    for name in names:
        _copy(local_path(workspace, name), copy.path(name))
        copy.files[name] = digest(copy.path(name))
    content = {"v": VERSION, "form": form, "made_at": now.isoformat(), "files": copy.files}
    durable.replace(folder / LIST, orjson.dumps(content, option=orjson.OPT_INDENT_2))
    return copy


def found(workspace: Path, change: str, form: int) -> Copy | None:
    """Return the newest copy that was made of a form before such a change; None: there is none.

    Raises:
        NewerState: a newer version wrote its list.
        GatewayError: a file of it has changed since it was saved.
    """
    copies = list(_whole(workspace, change, form))
    return max(copies, key=lambda copy: copy.made_at, default=None)


def discard(workspace: Path, change: str, form: int) -> None:
    """Remove the copies that were made of a form before such a change, whole ones and others."""
    state = workspace / "state"
    for folder in _folders(state, change, form):
        # Its list goes first: a kill in between leaves no copy that looks whole.
        durable.discard(folder / LIST)
        durable.sync_folder(folder)
        durable.discard(folder)
    if state.is_dir():
        durable.sync_folder(state)


def put_back(copy: Copy, workspace: Path, name: str) -> None:
    """Give a file its content of before, durable; called again it does no harm."""
    path = local_path(workspace, name)
    for log in _logs_of(path):
        durable.discard(log)
    durable.replace(path, copy.path(name).read_bytes())


def take_away(workspace: Path, name: str) -> None:
    """Remove a file that was not there before, durable; called again it does no harm."""
    path = local_path(workspace, name)
    for each in (path, *_logs_of(path)):
        durable.discard(each)
    durable.sync_folder(path.parent)


def digest(path: Path) -> str:
    """Return the SHA-256 of a file; empty where there is none. A database is what its log makes of it."""
    try:
        return hashlib.sha256(path.read_bytes()).hexdigest()
    except FileNotFoundError:
        return ""


def is_same(copy: Copy, workspace: Path, name: str) -> bool:
    """Say whether a file is still what was put aside."""
    path = local_path(workspace, name)
    return not any(log.exists() for log in _logs_of(path)) and digest(path) == copy.files.get(name, "")


def _copy(path: Path, target: Path) -> None:
    durable.make_folder(target.parent)
    if path.suffix == ".db":
        try:
            # Its log is part of it.
            durable.snapshot(path, target)
        except (durable.Damaged, sqlite3.Error):
            durable.replace(target, path.read_bytes())
        # A name in its own place: what was copied gets synced.
        durable.settle(target, target)
        return
    durable.replace(target, path.read_bytes())


def _whole(workspace: Path, change: str, form: int) -> Iterator[Copy]:
    for folder in _folders(workspace / "state", change, form):
        try:
            content = durable.decode_state(
                (folder / LIST).read_bytes(), VERSION, folder.name, error=NewerState
            )
        except (FileNotFoundError, durable.Damaged):
            continue
        copy = Copy(folder, form, _time(content), dict(content["files"]))
        for name, expected in copy.files.items():
            if digest(copy.path(name)) != expected:
                raise GatewayError(
                    f"{copy.name} is damaged: {name} has changed since it was saved",
                    hint="restore the backup from before, see docs/upgrades.md; nothing was changed",
                )
        yield copy


def _time(content: dict[str, Any]) -> datetime:
    return datetime.fromisoformat(str(content["made_at"]))


def _folders(state: Path, change: str, form: int) -> list[Path]:
    named = ((path, _NAME.fullmatch(path.name)) for path in state.glob(f"before-{change}-*"))
    return sorted(path for path, match in named if match and int(match[2]) == form and path.is_dir())


def _free(state: Path, name: str) -> Path:
    folder, number = state / name, 1
    while folder.exists():
        folder, number = state / f"{name}-{number}", number + 1
    return folder


def _logs_of(path: Path) -> list[Path]:
    return [path.with_name(path.name + end) for end in _LOGS] if path.suffix == ".db" else []
