"""Looks in which form the workspace is, and whether a change of it was cut short."""

from __future__ import annotations

from pathlib import Path

from gateway.doctor.finding import Finding
from gateway.form import copies, number
from gateway.form.migrations import MIGRATIONS


def check(workspace: Path) -> Finding:
    """Say how it stands: level, words, cure.

    Raises:
        NewerState: a newer version worked on it.
        OSError: it cannot be read.
    """
    state = workspace / "state"
    form, ours = number.read(state), number.known(MIGRATIONS)
    if form.change is not None:
        found = number.unfinished(form.change)
        return "fail", str(found), found.hint
    if form.number < ours and not number.is_new(state):
        return "ok", f"{form.number}: the next start upgrades it to {ours} and keeps a copy", ""
    copy = copies.found(workspace, "upgrade", form.number - 1)
    back = f"; chat-gateway downgrade goes back to {copy.name}" if copy is not None else ""
    return "ok", f"{ours}, current{back}", ""
