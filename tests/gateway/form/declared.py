"""A form to come, declared for tests; as a program it changes a workspace, and dies at a named instant.

``python -m tests.gateway.form.declared upgrade|downgrade WORKSPACE [INSTANT NUMBER]``
"""

from __future__ import annotations

import contextlib
import os
import signal
import sqlite3
import sys
from collections.abc import Callable
from pathlib import Path

import structlog

import durable
from gateway.form.downgrade import downgrade
from gateway.form.migration import Migration
from gateway.form.migrations import MIGRATIONS
from gateway.form.upgrade import entered


def shout(workspace: Path) -> None:
    """Put all notes into capitals, write a list of them, join what was two files, add a column."""
    notes = sorted((workspace / "notes").glob("*.txt"))
    for note in notes:
        durable.replace(note, note.read_bytes().upper())
    durable.replace(workspace / "notes" / "list.json", str([note.name for note in notes]).encode())
    with contextlib.closing(sqlite3.connect(workspace / "notes" / "rows.db")) as file, file:
        columns = [row[1] for row in file.execute("PRAGMA table_info(rows)")]
        if "loud" not in columns:
            file.execute("ALTER TABLE rows ADD COLUMN loud INTEGER NOT NULL DEFAULT 1")
    (workspace / "notes" / "spare").unlink(missing_ok=True)


def nothing(_: Path) -> None:
    """Change nothing."""


LOUD = Migration(to=2, what="notes are loud", run=shout, rewrites=("notes/*",))
FORMS = (*MIGRATIONS, LOUD)
FURTHER = (*FORMS, Migration(to=3, what="nothing", run=nothing, rewrites=(), alone=False))


def dying(instant: str, number: int) -> Callable[[str], None]:
    """Return what kills this process when that instant comes for the so-manieth time."""
    left = number

    def at(name: str) -> None:
        nonlocal left
        left -= name == instant
        if not left:
            os.kill(os.getpid(), signal.SIGKILL)

    return at


def main(change: str, workspace: str, instant: str = "", number: str = "1") -> None:
    """Make the change, and print when it is made."""
    structlog.configure(logger_factory=structlog.PrintLoggerFactory(sys.stderr))
    folder, at = Path(workspace), dying(instant, int(number))
    if change == "downgrade":
        downgrade(folder, beside=list, migrations=FORMS, at=at)
        return
    with entered(folder, beside=list, migrations=FORMS, at=at):
        print("entered", flush=True)
        sys.stdin.read()


if __name__ == "__main__":
    main(*sys.argv[1:])
