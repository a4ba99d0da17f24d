"""Keeps the bytes of a damaged file beside it, before any of them is left out; finds such copies again.

A copy is called ``<name>.corrupt-<ULID>``. Where that is too long for a file system the stem is cut, and a
mark of the whole one stands behind it: ``<cut>~<mark>.jsonl.corrupt-<ULID>``.
"""

from __future__ import annotations

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
    log.warning("transcript.copied", file=path.name, copy=copy.name)
    return copy


def originals_of(path: Path) -> list[Path]:
    """List what was kept of a transcript, which need not be there any more."""
    name = _name_in_copies(path.name)
    try:
        found = sorted(path.parent.iterdir())
    except (FileNotFoundError, NotADirectoryError):
        return []
    copies = [(each, _COPY.fullmatch(each.name)) for each in found if each.is_symlink() or not each.is_dir()]
    return [copy for copy, match in copies if match is not None and match[1] == name]


def _name_in_copies(name: str) -> str:
    if _cut(name, _MAX_NAME_BYTES) == name:
        return name
    stem, dot, ending = name.rpartition(".")
    end = f"~{mark_of(stem)}{dot}{ending}"
    return _cut(stem, _MAX_NAME_BYTES - len(end)) + end


def _cut(name: str, size: int) -> str:
    raw = name.encode("utf-8", "surrogateescape")
    return name if len(raw) <= size else raw[:size].decode("utf-8", "ignore")
