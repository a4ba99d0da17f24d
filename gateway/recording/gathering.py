"""Makes a recording of what a workspace keeps; reads alone, for threads."""

from __future__ import annotations

import hashlib
import platform
from collections import Counter
from collections.abc import Collection
from datetime import datetime
from pathlib import Path
from typing import Final

from gateway.recording.letter import Letter, Recording
from gateway.recording.outcome import outcome_of
from session.disk.layout import Layout
from session.errors import SessionError
from session.store.asked import Asked, Conversation, stems
from session.turn.commands import DECIDING, parse

DECISIONS: Final = "decisions over tool calls, which are asked anew"
UNREAD: Final = "conversations that cannot be read"


def workspace_name(workspace: Path) -> str:
    """Return what tells this workspace from another, and names neither machine nor path."""
    place = f"{platform.node()}\n{workspace.resolve()}"
    return hashlib.sha256(place.encode("utf-8", "surrogateescape")).hexdigest()[:16]


def gather(
    workspace: Path, *, since: datetime, until: datetime, keys: Collection[str] = ()
) -> tuple[Recording, list[str]]:
    """Gather the letters from ``since`` on and before ``until``, of ``keys`` alone where there are any.

    Returns:
        The recording, and of each conversation that cannot be read why.
    """
    layout = Layout(workspace)
    found: list[Letter] = []
    left_out: Counter[str] = Counter()
    unread: list[str] = []
    for stem in stems(layout):
        chat = Conversation(layout, stem, since, until)
        try:
            asked = list(chat.messages()) if chat.read() and (not keys or chat.key in keys) else []
        except SessionError as error:
            unread.append(str(error))
            left_out[UNREAD] += 1
            continue
        left_out += chat.left_out
        for each in asked:
            command = parse(each.text)
            if command is not None and command.name in DECIDING:
                left_out[DECISIONS] += 1
            else:
                found.append(_letter(each))
    found.sort(key=lambda letter: letter.at)
    return Recording(since, until, found, dict(left_out), workspace_name(workspace)), unread


def _letter(asked: Asked) -> Letter:
    outcome = outcome_of([step.as_dict() for step in asked.steps])
    return Letter(
        asked.key,
        asked.id,
        asked.at,
        asked.text,
        outcome,
        reply=asked.reply,
        sender=asked.sender,
        files=asked.files,
    )
