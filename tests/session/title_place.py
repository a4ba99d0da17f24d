"""Sessions that end with something said, and the answers of a model that are of no use as their summary."""

from __future__ import annotations

import json
from datetime import UTC, timedelta
from pathlib import Path
from typing import Any

from session.errors import ModelRefused
from session.memory import title_prompt
from session.models.model import Answer, ToolCall
from session.transcript.key import SessionKey
from session.transcript.line import make_line, stamp
from tests.session.memory_place import ADA, START, Workspace

TALKED = "They talked."
NAMING = title_prompt.NAME_INSTRUCTIONS
BAD = [
    Answer(""),
    Answer("  \n"),
    Answer("<!DOCTYPE html><html><body>502</body></html>"),
    Answer('{"error": {"message": "overloaded"}}'),
    Answer("x" * 5000),
    Answer("They", finish="length"),
    Answer("", [ToolCall("c", "ls", "{}")]),
    ModelRefused("policy"),
]


def exchange(question: str, answer: str, id_: str, *, minute: int = 0) -> list[dict[str, Any]]:
    at = stamp(START + timedelta(minutes=minute), UTC)
    return [
        make_line("user", question, at, message_id=id_),
        make_line("assistant", answer, at, message_id=id_, final=True),
    ]


def ended(folder: Path, key: str = "telegram_1") -> list[dict[str, Any]]:
    """Line 1's metadata of the ended sessions, oldest first."""
    paths = sorted((folder / "sessions/archive" / key).glob("*.jsonl"))
    return [json.loads(path.read_text().split("\n")[0])["metadata"] for path in paths]


def kept(folder: Path) -> list[str]:
    return sorted(path.name for path in (folder / "state/jobs").glob("*.summary.json"))


async def name_of(workspace: Workspace, key: SessionKey = ADA) -> object:
    return (await workspace.store.look(key)).metadata.get("name")
