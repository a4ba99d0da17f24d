"""Reads a workspace that has come to rest: the lines of its transcripts, and what memory holds."""

from __future__ import annotations

import json
import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

from tests.support.place import archives, transcript

_ROLES = {"user", "assistant", "tool", "system"}
_MARK = re.compile(r"<!-- session (\w{26}) messages (\d+)-(\d+) \w{8} -->")


def read_chat(
    workspace: Path, stem: str, named: Callable[[str], str], illegal: list[str]
) -> list[list[dict[str, Any]]]:
    """Return the sessions of a chat, ended ones first; ``named`` says which message an id is.

    What is no line of a transcript goes to ``illegal``.
    """
    files = [*archives(workspace, stem), transcript(workspace, stem)]
    return [_lines(path, named, illegal) for path in files if path.exists()]


def _lines(path: Path, named: Callable[[str], str], illegal: list[str]) -> list[dict[str, Any]]:
    raw = path.read_bytes().split(b"\n")
    if raw.pop():
        illegal.append(f"{path.name} has a torn tail")
    lines = []
    for number, each in enumerate(raw):
        try:
            line: dict[str, Any] = json.loads(each)
            legal = line["_type"] == "metadata" if number == 0 else line["role"] in _ROLES
        except (ValueError, KeyError, TypeError):
            line, legal = {}, False
        if not legal:
            illegal.append(f"{path.name} line {number + 1}: {each[:80]!r}")
        elif number:
            lines.append({**line, "message_id": named(str(line.get("message_id", "")))})
    return lines


def read_memory(workspace: Path) -> list[str]:
    """Return what is wrong in every HISTORY.md: messages noted twice, or left out between two notes."""
    wrong = []
    for path in workspace.glob("memory/**/HISTORY.md"):
        reached: dict[str, int] = {}
        for session, start, stop in _MARK.findall(path.read_text()):
            if int(start) != reached.get(session, 0):
                place = path.relative_to(workspace)
                wrong.append(f"{place}: {session} goes on at {start}, not {reached.get(session, 0)}")
            reached[session] = int(stop) + 1
    return wrong
