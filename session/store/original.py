"""Keeps the bytes of a damaged file beside it, before any of them is left out; finds such copies again.

A copy is called ``<name>.corrupt-<ULID>``. Where that is too long for a file system the stem is cut, and a
mark of the whole one stands behind it: ``<cut>~<mark>.jsonl.corrupt-<ULID>``. Earlier versions cut the name
and added no mark: the first line of such a copy says whose it is.
"""

from __future__ import annotations

import json
import os
import re
from datetime import datetime
from pathlib import Path

import structlog

from durable import new_file, new_id, sync_folder
from session.disk.layout import copy_rest
from session.transcript.key import mark_of

log = structlog.get_logger(__name__)
_MARK = ".corrupt-"
_COPY = re.compile(r"(.+)\.corrupt-[0-9A-Z]{26}", re.DOTALL)
# A file name has 255 bytes, a ULID 26.
_MAX_NAME_BYTES = 255 - len(_MARK) - 26


def keep_original(path: Path, fd: int, *, now: datetime) -> Path:
    """Keep the open file of ``path`` as it was read; return the copy, which is the same file where possible.

    Raises:
        OSError: the disk refused.
    """
    copy = path.with_name(f"{_name_in_copies(path.name)}{_MARK}{new_id(now)}")
    os.fchmod(fd, 0o600)
    try:
        # By the descriptor: it names this very inode, whatever stands under the path by now.
        os.link(f"/proc/self/fd/{fd}", copy, follow_symlinks=True)
    except OSError:
        with new_file(copy) as target:
            copy_rest(fd, target, 0)
            os.fsync(target)
        sync_folder(copy.parent)
    else:
        # A crash after its making may have left the name of the copy unsynced.
        sync_folder(copy.parent)
    log.warning("transcript.copied", file=path.name, copy=copy.name)
    return copy


def originals_of(path: Path, key: str | None = None) -> list[Path]:
    """List what was kept of a transcript or journal.

    Args:
        path: the file; it need not be there.
        key: whose it is; None: that of the key in its first line.
    """
    marked, cut = _name_in_copies(path.name), _cut(path.name, _MAX_NAME_BYTES)
    found = []
    for copy in _files(path.parent):
        match = _COPY.fullmatch(copy.name)
        if match is None:
            continue
        if match[1] == path.name:
            found.append(copy)
        elif match[1] in (marked, cut):
            ours, its = key or _key_in(path), _key_in(copy)
            # Two names may share the digits of a mark, and one that was only cut tells nothing at all.
            known = ours is not None and its is not None
            if (known and its == ours) or (not known and match[1] == marked):
                found.append(copy)
    return found


def _name_in_copies(name: str) -> str:
    """Return what stands before ``.corrupt-`` in the name of a copy."""
    if _cut(name, _MAX_NAME_BYTES) == name:
        return name
    stem, dot, ending = name.rpartition(".")
    end = f"~{mark_of(stem)}{dot}{ending}"
    return _cut(stem, _MAX_NAME_BYTES - len(end)) + end


def _cut(name: str, size: int) -> str:
    """Cut a name to so many bytes, at the boundary of a character."""
    raw = name.encode("utf-8", "surrogateescape")
    return name if len(raw) <= size else raw[:size].decode("utf-8", "ignore")


def _files(folder: Path) -> list[Path]:
    try:
        return sorted(path for path in folder.iterdir() if path.is_symlink() or not path.is_dir())
    except (FileNotFoundError, NotADirectoryError):
        return []


def _key_in(path: Path) -> str | None:
    """Return the key that the first line of a transcript or journal names; None where it names none."""
    try:
        with path.open("rb") as file:
            head = json.loads(file.readline())
    except (OSError, ValueError, RecursionError):
        return None
    key = head.get("key") if isinstance(head, dict) and "role" not in head else None
    return key if isinstance(key, str) else None
