"""Writes all that is kept of a chat or person into one tar, beside a daemon that works on it; blocks.

The lines and the journal are opened under the lock of their key, so that no write is taken in by half. All
other files are replaced whole by whoever changes them: each is read as it stands when its turn comes.
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
from dataclasses import asdict, dataclass
from datetime import datetime
from typing import IO, BinaryIO, Final

import structlog

from session.disk.layout import Layout
from session.kept.rows import usage_of
from session.kept.subject import Conversation, Subject
from session.store import places
from session.store.enclosed import within
from session.store.fence import Fence, Wait
from session.transcript.attachments import attachments_of
from session.transcript.line import decode

log = structlog.get_logger("export")
MANIFEST: Final = "manifest.json"
_IN_MEMORY: Final = 8 * 2**20
_BLOCK: Final = 2**20
_OWNED: Final = ("transcript", "journal")
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


def write(
    out: IO[bytes],
    subject: Subject,
    layout: Layout,
    *,
    owner: str,
    at: datetime,
    extras: Sequence[Extra] = (),
    left_out: Sequence[str] = (),
) -> list[Part]:
    """Write the tar, its manifest last.

    Args:
        out: written to its end, never read.
        subject: of whom.
        layout: the workspace.
        owner: names this process in locks.
        at: when it is written, aware.
        extras: further parts.
        left_out: what is not in it, in words, besides what the subject shares with others.

    Raises:
        StoreError: a file cannot be read or locked.
        OSError: ``out`` takes no more.
    """
    root = _safe(subject.name)
    with tarfile.open(fileobj=out, mode="w|", format=tarfile.PAX_FORMAT) as tar:
        parts = [
            *_files(tar, root, subject, layout, owner),
            *_media(tar, root, subject, layout),
            *(_add(tar, root, each, at) for each in [*_usage(layout, subject), *extras]),
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
                "indexes and vectors: they are made anew of the rest",
            ],
        }
        data = json.dumps(manifest, ensure_ascii=False, indent=2).encode("utf-8", "replace")
        _add(tar, root, Extra("manifest", MANIFEST, data, ""), at)
    return parts


def _files(tar: tarfile.TarFile, root: str, subject: Subject, layout: Layout, owner: str) -> Iterator[Part]:
    for each in subject.conversations:
        yield from _conversation(tar, root, each, layout, owner)
    for key in subject.subagents:
        for found in places.of_subagent(layout, key):
            yield from _file(tar, root, found, layout)
    for scope in subject.scopes:
        for found in places.of_scope(layout, scope):
            yield from _file(tar, root, found, layout)


def _conversation(
    tar: tarfile.TarFile, root: str, conversation: Conversation, layout: Layout, owner: str
) -> Iterator[Part]:
    with contextlib.ExitStack() as opened:
        ours: list[tuple[places.Found, BinaryIO, int]] = []
        # Only opened here: a lock that is held while a disk is slow would hold up the turns of the chat.
        with Fence(layout, conversation.stem, owner=owner).hold(Wait()):
            listed = list(places.of_key(layout, conversation.key, conversation.stem))
            for found in listed:
                if found.place.kind in _OWNED:
                    held = opened.enter_context(found.path.open("rb"))
                    ours.append((found, held, os.fstat(held.fileno()).st_size))
        for found, file, size in ours:
            yield _copied(tar, root, found, layout, file, size)
        for found in listed:
            if found.place.kind not in _OWNED:
                yield from _file(tar, root, found, layout)


def _file(tar: tarfile.TarFile, root: str, found: places.Found, layout: Layout) -> Iterator[Part]:
    if found.place.use != "kept" or found.path.is_symlink() or not found.path.is_file():
        return
    try:
        file: BinaryIO = found.path.open("rb")
    except FileNotFoundError:
        # Renamed or replaced since it was listed: by a session that ended, or by a tool.
        log.info("export.passed_over", file=found.path.name)
        return
    with file:
        yield _copied(tar, root, found, layout, file, None)


def _copied(
    tar: tarfile.TarFile, root: str, found: places.Found, layout: Layout, file: BinaryIO, size: int | None
) -> Part:
    source = found.path.relative_to(layout.workspace).as_posix()
    return _put(tar, f"{root}/{source}", file, size, kind=found.place.kind, source=source)


def _media(tar: tarfile.TarFile, root: str, subject: Subject, layout: Layout) -> Iterator[Part]:
    names = _names_of(subject, layout)
    for ref in sorted(subject.media):
        path = within(layout.workspace, ref)
        if path is not None:
            with path.open("rb") as file:
                shown = f"{path.stem[:12]}-{_safe(names.get(ref, path.name))}"
                yield _put(tar, f"{root}/media/{shown}", file, None, kind="media", source=ref)


def _names_of(subject: Subject, layout: Layout) -> dict[str, str]:
    """Return the names under which people sent the files of ``media/``."""
    found: dict[str, str] = {}
    for each in subject.files(layout):
        if each.place.kind not in ("transcript", "archive"):
            continue
        with contextlib.suppress(OSError), each.path.open("rb") as lines:
            for raw in lines:
                if b'"media/' in raw:
                    found |= {one.ref: one.name for one in attachments_of(decode(raw)) if one.name}
    return found


def _usage(layout: Layout, subject: Subject) -> Iterable[Extra]:
    lines = usage_of(layout.workspace / "state", subject)
    if lines:
        yield Extra("usage", "rows/usage.jsonl", b"".join(raw + b"\n" for raw in lines), "state/usage")


def _add(tar: tarfile.TarFile, root: str, extra: Extra, at: datetime) -> Part:
    file = io.BytesIO(extra.data)
    return _put(
        tar, f"{root}/{extra.name}", file, None, kind=extra.kind, source=extra.source, at=at.timestamp()
    )


def _put(
    tar: tarfile.TarFile,
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
        while block := file.read(_BLOCK if size is None else min(_BLOCK, size - length)):
            digest.update(block)
            copy.write(block)
            length += len(block)
        copy.seek(0)
        info = tarfile.TarInfo(name)
        info.size, info.mode, info.mtime = length, 0o600, int(changed_at)
        tar.addfile(info, copy)
    when = datetime.fromtimestamp(changed_at).astimezone().isoformat()
    return Part(kind, name, source, length, digest.hexdigest(), when)


def _safe(name: str) -> str:
    """Return a name that any file system takes, and that says what it is."""
    return _UNSAFE.sub("_", name).strip(". ")[:120] or "_"
