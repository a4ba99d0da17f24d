"""Files of ``media/`` that nothing names: what was refused, dropped or never answered."""

from __future__ import annotations

import re
from collections.abc import Collection
from datetime import datetime

import structlog

from session.disk.layout import Layout
from session.store.enclosed import AwaitedFiles, delete_older, still_named, within

log = structlog.get_logger("media")

# As the files of messages are named. Letters are searched for such names: no other file is ever swept.
NAME = re.compile(r"media/([0-9a-f]{2})/(\1[0-9a-f]{62}(?:\.[a-z0-9]{1,10})?)")


def sweep(layout: Layout, awaited: AwaitedFiles, *, before: datetime) -> int:
    """Delete files that neither a line nor a letter names and that were last brought before ``before``.

    ``awaited`` was read before this is called: a letter leaves its queue only when its line is on disk, so
    that what is in neither place was named by no letter then. Later letters date their files anew. Where
    not every letter could be looked at, nothing is deleted.

    Returns:
        How many were deleted.
    """
    if not awaited.complete:
        return 0
    old = _older(layout, awaited.names, before)
    if not old:
        return 0
    unnamed = old - still_named(layout, old)
    count = sum(delete_older(layout.workspace / name, name, before) for name in unnamed)
    if count:
        log.info("media.swept", count=count)
    return count


def media_bytes(layout: Layout) -> int:
    """Return how much the files of ``media/`` take; one that goes meanwhile counts as nothing."""
    size = 0
    for path in (layout.workspace / "media").rglob("*"):
        try:
            size += path.stat().st_size if path.is_file() else 0
        except OSError:
            # Somebody else removed it meanwhile.
            continue
    return size


def _older(layout: Layout, names: Collection[str], before: datetime) -> set[str]:
    """Return the files that are old enough and that no letter names."""
    found: set[str] = set()
    # The two levels at which messages' files lie; a file that is being fetched lies above them.
    for path in (layout.workspace / "media").glob("[0-9a-f][0-9a-f]/*"):
        name = path.relative_to(layout.workspace).as_posix()
        try:
            old = path.stat().st_mtime < before.timestamp()
        except OSError:
            continue
        if old and NAME.fullmatch(name) and name not in names and within(layout.workspace, name) is not None:
            found.add(name)
    return found
