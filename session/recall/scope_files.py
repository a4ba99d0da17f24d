"""The files of which a scope's index is made: which they are, and whose sessions they hold."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import NamedTuple

from session.context.scopes import answers_in
from session.disk.layout import FileCache, Layout
from session.recall.reading import Kind
from session.transcript.agent import agent_in
from session.transcript.line import beginning
from session.transcript.transcript import Transcript, parse

# Which chats a job has answered in a session, in the order of their keys.
Answers = tuple[str, ...]


class Whose(NamedTuple):
    """What line 1 says of who a session belongs to."""

    agent: str
    answers: Answers


def _whose(path: Path, data: bytes) -> Whose | None:
    transcript = parse(data, stem=path.stem)
    if transcript.damage.heads == 0 and not _begins_soundly(parse(data.partition(b"\n")[0], stem=path.stem)):
        return None
    inner = transcript.inner
    return Whose(agent_in(inner), tuple(sorted(answers_in(inner))))


def _begins_soundly(first: Transcript) -> bool:
    """Say whether a file without metadata never had any, as other programs write it, and did not lose it."""
    damage = first.damage
    return not first.damaged and bool(first.messages or damage.strays or damage.uncounted)


# Whose sessions the files are, as far as the index of the scope does not say it; None: nobody knows.
WHOSE: FileCache[Whose | None] = FileCache(_whose, take=lambda file: beginning(file) or b"")


@dataclass(frozen=True, slots=True)
class ScopeFiles:
    """What a scope's index is made of: its notes, and each of its conversations as ``(key, stem)``.

    Of these only the sessions of ``agent`` are the scope's, and of a job those alone whose answers stand in
    ``answers`` under its key.
    """

    layout: Layout
    memory: Path
    conversations: Sequence[tuple[str, str]]
    agent: str = ""
    answers: Mapping[str, Collection[Answers]] = field(default_factory=dict)


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
