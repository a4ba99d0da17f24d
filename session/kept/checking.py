"""Checks a whole workspace, and repairs what can be: transcripts, then what lies beside them, by file."""

from __future__ import annotations

import contextlib
from datetime import UTC
from typing import Any

from session.disk.layout import Layout
from session.disk.local_files import local_name
from session.disk.threads import start_thread
from session.errors import SessionError
from session.kept.damage import findings
from session.store.store import Store
from session.subagents.records import SubagentFiles

BY_HAND = "check the file by hand; then repair it, move it away, or restore a backup of it"
Row = dict[str, Any]


async def verify(store: Store, *, repair: bool = False) -> list[Row]:
    """Check transcripts, active and ended, then what lies beside them, as ``check``; subagents' as well."""
    rows = await _verified(store, repair=repair)
    home = SubagentFiles(store.layout.workspace / "state").home
    if not home.is_dir():
        return rows
    # They have a store of their own.
    async with contextlib.aclosing(
        Store(home, zone=UTC, state_folder=store.layout.workspace / "state")
    ) as subagents:
        inner = await _verified(subagents, repair=repair)
    above = home.relative_to(store.layout.workspace)
    return [*rows, *({**row, "file": str(above / row["file"])} for row in inner)]


async def _verified(store: Store, *, repair: bool) -> list[Row]:
    rows = await store.verify(repair=repair)
    beside = await start_thread(lambda: check(store.layout, repair=repair), name="disk-verify")
    return [*rows, *beside]


def check(layout: Layout, *, repair: bool) -> list[Row]:
    """Return a row for each file with a problem, as ``verify`` has them of transcripts; nothing else is read.

    Args:
        layout: the workspace; a daemon may run in it.
        repair: mend what can be mended.
    """
    rows = []
    for path, problem, mend in findings(layout):
        row: Row = {"file": local_name(layout.workspace, path), "problem": problem, "repaired": False}
        if mend is None:
            row["cure"] = BY_HAND
        if repair and mend is not None:
            try:
                mend()
                row["repaired"] = True
            except (OSError, SessionError) as error:
                row["problem"] = f"{problem}; not repaired: {error}"
        rows.append(row)
    return rows
