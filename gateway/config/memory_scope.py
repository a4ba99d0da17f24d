"""Who shares memory by the configuration, and whether notes lie where nobody looks."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Literal

from gateway.config.agents import agents_of
from gateway.config.settings import Settings
from session.context.scopes import Reader, Scopes, counts_as_group
from session.transcript.agent import AGENTS
from session.transcript.beginning import first_line
from session.transcript.key import plain_stem

FILES = ("MEMORY.md", "USER.md")
Finding = tuple[Literal["ok", "warn"], str, str]


def scopes_of(settings: Settings) -> Scopes:
    """Resolve scopes as the configuration says."""
    return Scopes(
        settings.workspace, kind=settings.memory.scope, people=settings.people, agents=agents_of(settings)
    )


def check(settings: Settings) -> Finding:
    """Return level, text and cure: notes of the workspace lie unused where each chat has its own scope."""
    if settings.memory.scope == "chat":
        for name in FILES:
            if (settings.workspace / "memory" / name).exists():
                return (
                    "warn",
                    f"memory/{name} is not used, because memory.scope is chat",
                    'set memory.scope = "workspace" to use it',
                )
    if (agent := _left_agent(settings)) is not None:
        return agent
    left = _left_behind(settings)
    if left is not None:
        return left
    count = len(settings.people)
    people = f", {count} {'person' if count == 1 else 'people'}" if count else ""
    return "ok", f"scope {settings.memory.scope}{people}", ""


def _left_agent(settings: Settings) -> Finding | None:
    """Find what is kept of an agent that is listed no more."""
    there = {path.parent.name for path in (settings.workspace / AGENTS).glob("*/memory")}
    gone = min(there - set(settings.agents), default=None)
    if gone is None:
        return None
    text = f"the memory in agents/{gone} is not used, because [agents] has no {gone}"
    return "warn", text, f"add [agents.{gone}] again, or delete that folder"


def _left_behind(settings: Settings) -> Finding | None:
    """Find notes of a chat that is a person's now, and of a person who is listed no more."""
    memory = settings.workspace / "memory"
    if settings.memory.scope != "chat":
        if not settings.people:
            return None
        return "ok", "scope workspace: [people] has no effect on memory; all direct chats share one", ""
    for name, keys in settings.people.items():
        for key in keys:
            own = memory / "chats" / plain_stem(key)
            if any((own / each).exists() for each in FILES) and not _is_group(settings.workspace, key):
                text = (
                    f"{key} belongs to {name}, so its own notes in memory/chats/{own.name} are no longer used"
                )
                return "warn", text, f"merge them into memory/people/{name} by hand, then delete that folder"
    known = {path.name for path in (memory / "people").glob("*") if path.is_dir()} - set(settings.people)
    if known:
        text = f"memory/people/{min(known)} is not used, because [people] has no such name"
        return "warn", text, "add the person again, or rename the folder (in files/, too)"
    return None


def _is_group(workspace: Path, key: str) -> bool:
    """Say whether a chat counts as a group, as its active session knows: then its own notes are in use."""
    try:
        with (workspace / "sessions" / f"{plain_stem(key)}.jsonl").open("rb") as file:
            inner = json.loads(first_line(file) or b"").get("metadata")
        said = inner.get("chat")
    except (OSError, ValueError, AttributeError, RecursionError):
        said = None
    return counts_as_group(Reader(key, said if said in ("direct", "group") else None))
