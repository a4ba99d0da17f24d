"""Looks whether an erasure was begun that is not whole."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

from gateway.doctor.finding import Finding
from session.kept.erasing import Owed
from session.kept.subject import NoText, check_text


def check(state: Path) -> Iterator[Finding]:
    """Name each with what ends it; a daemon may be at it at this moment."""
    owed = Owed(state)
    left = owed.left()
    if not left:
        yield "ok", "nothing is left to delete", ""
    for subject in left:
        whom = f"--person {subject.name}" if subject.is_person else subject.name
        try:
            check_text(subject.name)
        except NoText as error:
            cure = f"delete state/erasing/{owed.path(subject).name}: no chat can have this key"
            yield "warn", f"an erasure cannot be completed: {error}", cure
            continue
        text = f"{subject.name}: not everything has been deleted yet"
        yield "warn", text, f"chat-gateway memory erase {whom} --yes; or restart the gateway"
