"""Which memory, which files and which tools a conversation may see: one function decides."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Final, Literal

from session.transcript.key import split

WORKSPACE = "workspace"
Chat = Literal["direct", "group"]
# The terminal, the page and the jobs are the owner's; a key without a channel is reached by no platform.
OWN_CHANNELS: Final = frozenset({"", "cli", "web", "cron"})


@dataclass(frozen=True, slots=True)
class Scope:
    """A circle of conversations that share notes and files.

    ``name`` is unique within the workspace and names the scope's files in ``state/``; ``memory`` is the
    folder of MEMORY.md, HISTORY.md and USER.md, ``files`` that of what tools read and write. ``group`` says
    that more than one person may read along: its tools are those of groups.
    """

    name: str
    memory: Path
    files: Path
    group: bool = False


@dataclass(frozen=True, slots=True)
class Reader:
    """A chat that reads an answer: its key, and what it is known to be; None where nobody ever said."""

    key: str
    chat: Chat | None


class Scopes:
    """Draws the circles by ``[memory] scope``; makes no folder and reads no file."""

    def __init__(self, workspace: Path, *, kind: Literal["chat", "workspace"]) -> None:
        self.workspace = workspace
        self._kind = kind

    def of(self, *readers: Reader, stem: str) -> Scope:
        """Return the scope of a conversation; with a group among its readers it is the chat's own.

        Args:
            readers: the conversation first, then the chats that its answers go to besides.
            stem: the name of its transcript, suffix included.
        """
        group = any(counts_as_group(reader) for reader in readers)
        name = WORKSPACE if self._kind == "workspace" and not group else f"chats/{stem}"
        return self.named(name, group=group)

    def named(self, name: str, *, group: bool = False) -> Scope:
        """Return the scope that has this name."""
        below = "" if name == WORKSPACE else name
        return Scope(name, self.workspace / "memory" / below, self.workspace / "files" / below, group)


def counts_as_group(reader: Reader) -> bool:
    """Say whether others may read along: what no platform ever told of a chat does not count as direct."""
    if reader.chat is not None:
        return reader.chat == "group"
    return split(reader.key)[0] not in OWN_CHANNELS
