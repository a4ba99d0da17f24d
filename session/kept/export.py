"""Writes all that is kept of a chat or person into one tar, beside a daemon that works on it; blocks.

The lines and the journal are opened under the lock of their key, so that no write is taken in by half. All
other files are replaced whole by whoever changes them: each is read as it stands when its turn comes.
What cannot be read is a StoreError, so that an OSError is always of the file that is written.
"""

from __future__ import annotations

import contextlib
import hashlib
import io
import json
import os
import re
import tarfile
import tempfile
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import asdict, dataclass, field
from datetime import datetime
from pathlib import Path
from typing import IO, BinaryIO, Final

import structlog

from durable import opened_below
from session.disk.layout import Layout
from session.disk.state import locked
from session.errors import StoreError
from session.kept.subject import Conversation, Subject
from session.store import places, trees
from session.store.media import within
from session.transcript.agent import AGENTS
from session.transcript.attachments import attachments_of
from session.transcript.line import decode

log = structlog.get_logger("export")
MANIFEST: Final = "manifest.json"
_IN_MEMORY: Final = 8 * 2**20
_BLOCK: Final = 2**20
_NO_RIGHTS: Final = "no permission to read it"
_TOO_DEEP: Final = "nested too deeply, or its path is too long"
_OWNED: Final = ("transcript",)
_UNSAFE: Final = re.compile(r'[\x00-\x1f<>:"/\\|?*\x7f]+')


@dataclass(frozen=True, slots=True)
class Extra:
    """A part that is no file of the subject's own: rows of a file that is of all."""

    kind: str
    name: str
    data: bytes
    source: str


@dataclass(frozen=True, slots=True)
class Part:
    """One file of the tar as the manifest names it; ``source`` is its path in the workspace."""

    kind: str
    name: str
    source: str
    size: int
    sha256: str
    changed_at: str


@dataclass(frozen=True, slots=True)
class _Tar:
    """The tar that is written; ``shut`` are the folders of tools into which this process may not look."""

    file: tarfile.TarFile
    root: str
    layout: Layout
    shut: list[Path] = field(default_factory=list)
    left_out: list[str] = field(default_factory=list)

    def source(self, path: Path) -> str:
        """Return the path of a file of the workspace below it."""
        return path.relative_to(self.layout.workspace).as_posix()


def write(
    out: IO[bytes],
    subject: Subject,
    layout: Layout,
    *,
    at: datetime,
    extras: Sequence[Extra] = (),
    left_out: Sequence[str] = (),
) -> list[Part]:
    """Write the tar, its manifest last.

    Args:
        out: written to its end, never read.
        subject: of whom.
        layout: the workspace.
        at: when it is written, aware.
        extras: further parts.
        left_out: what is not in it, in words, besides what the subject shares with others.

    Raises:
        StoreError: a file cannot be read or locked.
        OSError: ``out`` takes no more.
    """
    root = _safe(subject.name)
    with tarfile.open(fileobj=out, mode="w|", format=tarfile.PAX_FORMAT) as file:
        tar = _Tar(file, root, layout)
        _open_up(tar, subject)
        parts = [
            *_files(tar, subject),
            *_media(tar, subject),
            *(_add(tar, each, at) for each in extras),
        ]
        manifest = {
            "v": 1,
            "of": {"person" if subject.is_person else "key": subject.name},
            "keys": subject.keys,
            "written_at": at.isoformat(),
            "files": [asdict(part) for part in parts],
            "left_out": [
                *subject.stays,
                *left_out,
                *tar.left_out,
                "indexes and vectors, which can be rebuilt from the rest",
            ],
        }
        data = json.dumps(manifest, ensure_ascii=False, indent=2).encode("utf-8", "replace")
        _add(tar, Extra("manifest", MANIFEST, data, ""), at)
    return parts


@contextlib.contextmanager
def _reading(layout: Layout, name: str = "") -> Iterator[None]:
    """Say in words which file cannot be read: ``name``, else the one that the error names."""
    try:
        yield
    except OSError as error:
        path = Path(os.fsdecode(name or error.filename or ""))
        known = path.relative_to(layout.workspace) if path.is_relative_to(layout.workspace) else path
        raise StoreError(
            f"{known.as_posix()} cannot be read: {error.strerror or error}",
            hint="check its owner, its permissions and the disk",
        ) from error


def _open_up(tar: _Tar, subject: Subject) -> None:
    for scope in subject.scopes:
        tree = places.files_of(tar.layout, scope)
        with _reading(tar.layout):
            is_shut = not tree.is_symlink() and bool(_shut(tree))
        if is_shut:
            trees.open_up(tree)
            tar.shut.extend(_shut(tree))
        deep: list[Path] = []
        for _ in trees.folders(tree, too_deep=deep.append):
            pass
        tar.left_out.extend(f"contents of {tar.source(path)}/: {_TOO_DEEP}" for path in deep)
    tar.left_out.extend(f"contents of {tar.source(path)}/: {_NO_RIGHTS}" for path in tar.shut)


def _shut(tree: Path) -> list[Path]:
    found = []

    def note(error: OSError) -> None:
        if isinstance(error, PermissionError):
            found.append(Path(error.filename))

    for _ in trees.folders(tree, failed=note):
        pass
    return found


def _files(tar: _Tar, subject: Subject) -> Iterator[Part]:
    for each in subject.conversations:
        yield from _conversation(tar, each)
    for key in subject.subagents:
        yield from _each(tar, places.of_subagent(tar.layout, key))
    for scope in subject.scopes:
        yield from _each(tar, places.of_scope(tar.layout, scope))


def _each(tar: _Tar, files: Iterable[places.Found]) -> Iterator[Part]:
    with _reading(tar.layout):
        listed = list(files)
    for found in listed:
        yield from _file(tar, found)


def _conversation(tar: _Tar, conversation: Conversation) -> Iterator[Part]:
    layout = tar.layout
    with contextlib.ExitStack() as opened:
        ours: list[tuple[places.Found, BinaryIO, int]] = []
        # Only opened here: a lock that is held while a disk is slow would hold up the turns of the chat.
        with _reading(layout), locked(layout.lock(conversation.stem)):
            listed = list(places.of_key(layout, conversation.key, conversation.stem))
            for found in listed:
                if found.place.kind in _OWNED:
                    held = opened.enter_context(found.path.open("rb"))
                    ours.append((found, held, os.fstat(held.fileno()).st_size))
        for found, file, size in ours:
            yield _copied(tar, found, file, size)
        yield from _each(tar, (found for found in listed if found.place.kind not in _OWNED))


def _file(tar: _Tar, found: places.Found) -> Iterator[Part]:
    if found.place.use != "kept" or found.path.parent in tar.shut:
        return
    file = _opened(tar, found.path, is_of_tools=found.place.kind == "file")
    if file is not None:
        with file:
            yield _copied(tar, found, file, None)


def _opened(tar: _Tar, path: Path, *, is_of_tools: bool) -> BinaryIO | None:
    """Open a file, if it is a plain one; None where it went, or a command took the rights to it away."""
    # Below the folder that is of the tools a folder that was listed may be a link by now.
    base, names = _split(tar, path) if is_of_tools else (path.parent, ())
    try:
        with _reading(tar.layout, os.fspath(path)), opened_below(base, names) as folder:
            return trees.open_plain(path.name, folder)
    except StoreError as error:
        if isinstance(error.__cause__, (FileNotFoundError, NotADirectoryError)):
            # Renamed or replaced since it was listed: by a session that ended, or by a tool.
            log.info("export.passed_over", file=path.name)
            return None
        if not (is_of_tools and isinstance(error.__cause__, PermissionError)):
            raise
    tar.left_out.append(f"{tar.source(path)}: {_NO_RIGHTS}")
    return None


def _split(tar: _Tar, path: Path) -> tuple[Path, tuple[str, ...]]:
    """Split the path of a tool's file: the folder that no tool can change, and the folders below it."""
    parts = path.relative_to(tar.layout.workspace).parts
    fixed = 4 if parts[0] == AGENTS else 2
    return tar.layout.workspace.joinpath(*parts[:fixed]), parts[fixed:-1]


def _copied(tar: _Tar, found: places.Found, file: BinaryIO, size: int | None) -> Part:
    source = tar.source(found.path)
    return _put(tar, f"{tar.root}/{source}", file, size, kind=found.place.kind, source=source)


def _media(tar: _Tar, subject: Subject) -> Iterator[Part]:
    with _reading(tar.layout):
        names = _names_of(subject, tar.layout)
    for ref in sorted(subject.media):
        with _reading(tar.layout):
            path = within(tar.layout.workspace, ref)
        file = None if path is None else _opened(tar, path, is_of_tools=False)
        if path is not None and file is not None:
            with file:
                shown = f"{path.stem[:12]}-{_safe(names.get(ref, path.name))}"
                yield _put(tar, f"{tar.root}/media/{shown}", file, None, kind="media", source=ref)


def _names_of(subject: Subject, layout: Layout) -> dict[str, str]:
    found: dict[str, str] = {}
    for each in subject.files(layout):
        if each.place.kind not in ("transcript", "archive"):
            continue
        with contextlib.suppress(OSError), each.path.open("rb") as lines:
            for raw in lines:
                if b'"media/' in raw:
                    found |= {one.ref: one.name for one in attachments_of(decode(raw)) if one.name}
    return found


def _add(tar: _Tar, extra: Extra, at: datetime) -> Part:
    file = io.BytesIO(extra.data)
    return _put(
        tar, f"{tar.root}/{extra.name}", file, None, kind=extra.kind, source=extra.source, at=at.timestamp()
    )


def _put(
    tar: _Tar,
    name: str,
    file: BinaryIO,
    size: int | None,
    *,
    kind: str,
    source: str,
    at: float | None = None,
) -> Part:
    """Add a file, or its first ``size`` bytes; one that changes while it is read is taken as it was read."""
    changed_at = os.fstat(file.fileno()).st_mtime if at is None else at
    with tempfile.SpooledTemporaryFile(_IN_MEMORY) as copy:
        digest, length = hashlib.sha256(), 0
        while block := _read(tar, file, _BLOCK if size is None else min(_BLOCK, size - length), source):
            digest.update(block)
            copy.write(block)
            length += len(block)
        copy.seek(0)
        info = tarfile.TarInfo(name)
        info.size, info.mode, info.mtime = length, 0o600, int(changed_at)
        tar.file.addfile(info, copy)
    when = datetime.fromtimestamp(changed_at).astimezone().isoformat()
    return Part(kind, name, source, length, digest.hexdigest(), when)


def _read(tar: _Tar, file: BinaryIO, size: int, source: str) -> bytes:
    with _reading(tar.layout, source):
        return file.read(size)


def _safe(name: str) -> str:
    """Return a name that any file system takes, and that says what it is."""
    return _UNSAFE.sub("_", name).strip(". ")[:120] or "_"
