"""What doctor and the daemon say of the scope of memory: whether notes lie where nobody looks."""

from __future__ import annotations

from typing import Literal

from gateway.config.settings import Settings

Finding = tuple[Literal["ok", "warn"], str, str]


def check(settings: Settings) -> Finding:
    """Return level, text and cure: notes of the workspace lie unused where each chat has its own scope."""
    if settings.memory.scope == "chat":
        for name in ("MEMORY.md", "USER.md"):
            if (settings.workspace / "memory" / name).exists():
                return (
                    "warn",
                    f"memory/{name} is there, but the scope is chat: nobody sees it",
                    'set memory.scope = "workspace" to keep using it',
                )
    return "ok", f"scope {settings.memory.scope}", ""
