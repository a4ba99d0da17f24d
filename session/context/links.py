"""Files that go out with an answer: those that its turn sends, and those of its folder that it links to."""

from __future__ import annotations

import mimetypes
import os
import re
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any
from urllib.parse import unquote

from session.tools.send_file import NAME, to_send
from session.transcript.agent import scopes_below
from session.transcript.attachments import Attachment, open_beneath

MAX_FILES = 10
_FENCE = re.compile(r" {0,3}(`{3,}|~{3,})")
_CODE = re.compile(r"`[^`\n]{1,1000}`")
_LINK = re.compile(
    r"!?\[[^\[\]\n]{0,300}\]\([ ]{0,3}"
    r"(?:<(?P<wide>[^<>\n]{1,1000})>|(?P<bare>(?:[^()\s]|\([^()\s]{0,200}\)){1,1000}))"
    r"""[ ]{0,3}(?:"[^"\n]{0,300}"|'[^'\n]{0,300}')?[ ]{0,3}\)"""
)
_SCHEME = re.compile(r"[A-Za-z][A-Za-z0-9+.-]*:")


def may_link(text: str) -> bool:
    """Say whether a text can hold a link at all."""
    return "](" in text


def linked_files(text: str, folder: Path, *, workspace: Path, max_bytes: int) -> list[Attachment]:
    """List the files that Markdown links and images of ``text`` name; blocks, for threads.

    A target counts that is the relative path of a regular file below ``folder``, in no folder of another
    scope, reached over no link, not empty and of at most ``max_bytes``; each counts once, and ``MAX_FILES``
    of them.
    """
    found: dict[str, Attachment] = {}
    for target in targets(text):
        file = file_at(target, folder, workspace=workspace, max_bytes=max_bytes)
        if file is not None:
            found.setdefault(file.ref, file)
        if len(found) == MAX_FILES:
            break
    return list(found.values())


def targets(text: str) -> list[str]:
    """List the relative targets of the links and images of a Markdown text outside of code, in order."""
    found = []
    for match in _LINK.finditer(_CODE.sub(" ", _unfenced(text))):
        target = unquote(match["wide"] or match["bare"])
        if not _SCHEME.match(target) and not target.startswith(("/", "#", "~")):
            found.append(target)
    return found


def _unfenced(text: str) -> str:
    kept, fence = [], ""
    for line in text.split("\n"):
        mark = _FENCE.match(line)
        if not fence and mark is None:
            kept.append(line)
        elif not fence and mark is not None:
            fence = mark[1]
        elif mark is not None and mark[1].startswith(fence) and not line[mark.end() :].strip():
            fence = ""
    return "\n".join(kept)


def file_at(
    target: str, folder: Path, *, workspace: Path, max_bytes: int, caption: str = ""
) -> Attachment | None:
    """Return the file that lies at a relative path, as ``linked_files`` says; None where none counts."""
    names = [name for name in target.split("/") if name not in ("", ".")]
    if names and names[0].casefold() in scopes_below(folder):
        return None
    path = "/".join(names)
    try:
        fd = open_beneath(folder, path)
    except (OSError, ValueError):
        return None
    try:
        size = os.fstat(fd).st_size
    finally:
        os.close(fd)
    if not 0 < size <= max_bytes:
        return None
    mime = mimetypes.guess_type(path)[0] or "application/octet-stream"
    ref = (folder / path).relative_to(workspace).as_posix()
    return Attachment(_kind(mime), path.rpartition("/")[2], mime, size, ref, caption)


def _kind(mime: str) -> str:
    if mime in ("image/jpeg", "image/png", "image/webp"):
        return "photo"
    major = mime.partition("/")[0]
    return major if major in ("audio", "video") else "document"


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
