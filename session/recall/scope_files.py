"""The files of which a scope's index is made: which they are, and whose sessions they hold."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import NamedTuple

from session.disk.layout import Layout
from session.library.file_cache import FileCache
from session.recall.reading import Kind
from session.store.archived import BEGINNING_BYTES
from session.transcript.agent import agent_in
from session.transcript.transcript import parse


def _agent_at(path: Path, data: bytes) -> str:
    return agent_in(parse(data[: data.rfind(b"\n") + 1], stem=path.stem).inner)


# Whose sessions the files are that are in no index of their chat's.
AGENTS: FileCache[str] = FileCache(_agent_at, max_bytes=BEGINNING_BYTES)


@dataclass(frozen=True, slots=True)
class ScopeFiles:
    """What a scope's index is made of: its notes, and each of its conversations as ``(key, stem)``.

    Of these only the sessions of ``agent`` are the scope's.
    """

    layout: Layout
    memory: Path
    conversations: Sequence[tuple[str, str]]
    agent: str = ""


class ScopeFile(NamedTuple):
    """A file as it was seen; each search makes one of every ended session."""

    kind: Kind
    key: str
    stem: str
    path: str
    seen: tuple[int, int, int]
    session: str = ""

    @property
    def name(self) -> tuple[str, str, str]:
        """What tells it from the others, wherever it lies."""
        return (self.kind, self.stem, self.session)
