"""Which memory and which files a conversation may see."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Literal

WORKSPACE = "workspace"


@dataclass(frozen=True, slots=True)
class Scope:
    """A circle of conversations that share notes and files.

    ``name`` is unique within the workspace and names the scope's files in ``state/``; ``memory`` is the
    folder of MEMORY.md and HISTORY.md, ``files`` that of what tools read and write.
    """

    name: str
    memory: Path
    files: Path


class Scopes:
    """Draws the circles by ``[memory] scope``; makes no folder and reads no file."""

    def __init__(self, workspace: Path, *, kind: Literal["chat", "workspace"]) -> None:
        self.workspace = workspace
        self._kind = kind

    def of(self, key: str, *, stem: str, group: bool) -> Scope:
        """Return the scope of a conversation; a group has its own chat's under every rule.

        Args:
            key: the conversation. Keys that people share will be looked up by it.
            stem: the name of its transcript, suffix included.
            group: whether more than one person may read along.
        """
        return self.named(WORKSPACE if self._kind == "workspace" and not group else f"chats/{stem}")

    def named(self, name: str) -> Scope:
        """Return the scope that has this name."""
        below = "" if name == WORKSPACE else name
        return Scope(name, self.workspace / "memory" / below, self.workspace / "files" / below)
