"""Which memory, which files and which tools a conversation may see: one function decides."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Final, Literal

from session.transcript.key import split

WORKSPACE = "workspace"
CHATS, PEOPLE = "chats/", "people/"
Chat = Literal["direct", "group"]
# The terminal, the page and the jobs are the owner's; a key without a channel is reached by no platform.
OWN_CHANNELS: Final = frozenset({"", "cli", "web", "cron"})
JOBS: Final = "cron"


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

    @property
    def person(self) -> str | None:
        """The person of ``[people]`` whose scope it is."""
        return self.name.removeprefix(PEOPLE) if self.name.startswith(PEOPLE) else None


@dataclass(frozen=True, slots=True)
class Reader:
    """A chat that reads an answer: its key, and what it is known to be; None where nobody ever said.

    ``stem`` is the name of its transcript; of the chats that a job answers it has to be known.
    """

    key: str
    chat: Chat | None
    stem: str = ""


class Scopes:
    """Draws the circles by ``[memory] scope`` and ``[people]``; makes no folder and reads no file."""

    def __init__(
        self,
        workspace: Path,
        *,
        kind: Literal["chat", "workspace"],
        people: Mapping[str, Sequence[str]] | None = None,
    ) -> None:
        self.workspace = workspace
        self._kind = kind
        self._people = {name: tuple(keys) for name, keys in (people or {}).items()}
        self._person = {key: name for name, keys in self._people.items() for key in keys}

    def of(self, *readers: Reader, stem: str) -> Scope:
        """Return the scope of a conversation: one that everybody shares who reads it, else the chat's own.

        A job has that of the chats which it answers, where these have one in common.

        Args:
            readers: the conversation first, then the chats that its answers go to besides.
            stem: the name of its transcript, suffix included.
        """
        conversation, *others = readers
        group = any(counts_as_group(reader) for reader in readers)
        if others and is_job(conversation.key):
            names = {self._shared(other) or CHATS + other.stem for other in others}
            # What a group reads in one place never draws on what is shared elsewhere.
            fits = len(names) == 1 and group == counts_as_group(others[0])
            name = names.pop() if fits else None
        else:
            shared = {self._shared(reader) for reader in readers}
            name = shared.pop() if len(shared) == 1 else None
        return self.named(name or CHATS + stem, group=group)

    def named(self, name: str, *, group: bool = False) -> Scope:
        """Return the scope that has this name."""
        below = "" if name == WORKSPACE else name
        return Scope(name, self.workspace / "memory" / below, self.workspace / "files" / below, group)

    def person(self, key: str) -> str | None:
        """Return the name under which ``[people]`` lists a key, whatever may be read there; None: nobody."""
        return self._person.get(key)

    def keys_of_person(self, name: str) -> Sequence[str]:
        """List the keys that ``[people]`` has of a person; those of groups share nothing all the same."""
        return self._people.get(name, ())

    def others(self, scope: Scope, key: str) -> Sequence[str]:
        """List the other keys of the person whose scope it is; those of groups share nothing all the same."""
        return [other for other in self.keys_of_person(scope.person or "") if other != key]

    def _shared(self, reader: Reader) -> str | None:
        """Name the scope that a chat shares with others; None: it has its own."""
        if counts_as_group(reader):
            return None
        if self._kind == WORKSPACE:
            return WORKSPACE
        person = self.person(reader.key)
        return None if person is None else PEOPLE + person


def is_job(key: str) -> bool:
    """Say whether a conversation is that of a job."""
    return split(key)[0] == JOBS


def counts_as_group(reader: Reader) -> bool:
    """Say whether others may read along: what no platform ever told of a chat does not count as direct."""
    if reader.chat is not None:
        return reader.chat == "group"
    return split(reader.key)[0] not in OWN_CHANNELS
