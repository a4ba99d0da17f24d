"""Looks whether an erasure was begun that is not whole."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

from gateway.doctor.finding import Finding
from session.kept.erasing import Owed


def check(state: Path) -> Iterator[Finding]:
    """Name each with what ends it; a daemon may be at it at this moment."""
    left = Owed(state).left()
    if not left:
        yield "ok", "none is owed", ""
    for subject in left:
        whom = f"--person {subject.name}" if subject.is_person else subject.name
        text = f"{subject.name}: begun, and not everything is removed"
        yield "warn", text, f"chat-gateway memory erase {whom} --yes; the next start ends it as well"
