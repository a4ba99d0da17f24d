"""Keeps the bytes of a damaged transcript beside it, before any of them is left out."""

from __future__ import annotations

import os
from datetime import datetime
from pathlib import Path

import structlog
from ulid import ULID

from durable import sync_folder
from session.disk.layout import copy_rest
from session.store.fence import Held

log = structlog.get_logger(__name__)
_MAX_NAME_BYTES = 255
_MARK = ".corrupt-"


def keep_original(path: Path, held: Held, fd: int, *, now: datetime) -> Path:
    """Keep the open file of ``path`` as it was read; return the copy, which is the same file where possible.

    Raises:
        OSError: the disk refused.
    """
    suffix = f"{_MARK}{ULID.from_datetime(now)}"
    left = _MAX_NAME_BYTES - len(suffix)
    name = path.name.encode("utf-8", "surrogateescape")[:left].decode("utf-8", "ignore")
    copy = path.with_name(name + suffix)
    os.fchmod(fd, 0o600)
    try:
        # By the descriptor: it names this very inode, whatever stands under the path by now.
        os.link(f"/proc/self/fd/{fd}", copy, follow_symlinks=True)
    except OSError:
        with held.replacing(copy) as target:
            copy_rest(fd, target, 0)
    else:
        # A crash after its making may have left the name of the copy unsynced.
        sync_folder(copy.parent)
    log.warning("transcript.copied", file=path.name, copy=copy.name)
    return copy


def originals_of(path: Path) -> list[Path]:
    """List what was kept of a file; not where its name is so long that a copy's does not tell whose it is."""
    return [copy for copy in path.parent.iterdir() if copy.name.rpartition(_MARK)[0] == path.name]
