"""Files that go out with an answer: those that its turn sends by ``send_file``, those that it links to."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

from session.context.links import MAX_FILES, file_at, linked_files
from session.tools.send_file import NAME, to_send
from session.transcript.attachments import Attachment


def enclosed(
    text: str, lines: Iterable[Mapping[str, Any]], folder: Path, *, workspace: Path, max_bytes: int
) -> list[Attachment]:
    """List the files of an answer; blocks, for threads.

    Those that the turn sent, by its ``lines``, come first, in their order. Each file counts once, and
    ``MAX_FILES`` of them; one that is gone or has grown too large meanwhile is left out.
    """
    bounds: dict[str, Any] = {"workspace": workspace, "max_bytes": max_bytes}
    sent = [file_at(one.path, folder, caption=one.caption, **bounds) for one in to_send(lines, folder)]
    found = {file.ref: file for file in sent if file is not None}
    for file in linked_files(text, folder, **bounds):
        found.setdefault(file.ref, file)
    return list(found.values())[:MAX_FILES]


def sends_files(used: object) -> bool:
    """Say, by the names of the tools that a turn used, whether it sent a file."""
    return isinstance(used, list) and NAME in used
