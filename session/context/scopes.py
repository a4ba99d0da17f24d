"""Which memory, which files and which tools a conversation may see: one function decides."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Final, Literal

from session.context.agents import Agents
from session.transcript.agent import home_of, parted, within
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

    The scopes of the default agent are ``workspace``, ``chats/<stem>`` and ``people/<name>``; those of
    another one are the same behind ``agents/<agent>/``, and its folders lie below a folder of that name.
    """

    name: str
    memory: Path
    files: Path
    group: bool = False

    @property
    def agent(self) -> str:
        """The agent whose scope it is; empty: the default one."""
        return parted(self.name)[0]

    @property
    def own(self) -> str:
        """Its name among the scopes of its agent."""
        return parted(self.name)[1]

    @property
    def person(self) -> str | None:
        """The person of ``[people]`` whose scope it is."""
        return self.own.removeprefix(PEOPLE) if self.own.startswith(PEOPLE) else None


@dataclass(frozen=True, slots=True)
class Reader:
    """A chat that reads an answer: its key, and what it is known to be; None where nobody ever said.

    ``stem`` is the name of its transcript; of the chats that a job answers it has to be known.
    """

    key: str
    chat: Chat | None
    stem: str = ""


class Scopes:
    """Resolves scopes by ``[memory] scope`` and ``[people]``; makes no folder and reads no file."""

    def __init__(
        self,
        workspace: Path,
        *,
        kind: Literal["chat", "workspace"],
        people: Mapping[str, Sequence[str]] | None = None,
        agents: Agents | None = None,
    ) -> None:
        """Draw them for the default agent by ``kind``, for the other ones by what ``agents`` says."""
        self.workspace = workspace
        self.agents = agents or Agents()
        self._kinds = {"": kind, **self.agents.kinds}
        self._people = {name: tuple(keys) for name, keys in (people or {}).items()}
        self._person = {key: name for name, keys in self._people.items() for key in keys}

    def of(self, *readers: Reader, stem: str, agent: str = "") -> Scope:
        """Return the scope of a conversation: one that everybody shares who reads it, else the chat's own.

        A job has that of the chats which it answers, where these have one in common.

        Args:
            readers: the conversation first, then the chats that its answers go to besides.
            stem: the name of its transcript, suffix included.
            agent: whose session it is: no two agents ever share a scope.
        """
        conversation, *others = readers
        group = any(counts_as_group(reader) for reader in readers)
        if others and is_job(conversation.key):
            names = {self._shared(other, agent) or CHATS + other.stem for other in others}
            # What a group reads in one place never draws on what is shared elsewhere.
            fits = len(names) == 1 and group == counts_as_group(others[0])
            name = names.pop() if fits else None
        else:
            shared = {self._shared(reader, agent) for reader in readers}
            name = shared.pop() if len(shared) == 1 else None
        return self.named(within(agent, name or CHATS + stem), group=group)

    def named(self, name: str, *, group: bool = False) -> Scope:
        """Return the scope that has this name."""
        agent, own = parted(name)
        home, below = home_of(self.workspace, agent), "" if own == WORKSPACE else own
        return Scope(name, home / "memory" / below, home / "files" / below, group)

    def person(self, key: str) -> str | None:
        """Return the name under which ``[people]`` lists a key, whatever may be read there; None: nobody."""
        return self._person.get(key)

    def keys_of_person(self, name: str) -> Sequence[str]:
        """List the keys that ``[people]`` has of a person; those of groups share nothing all the same."""
        return self._people.get(name, ())

    def others(self, scope: Scope, key: str) -> Sequence[str]:
        """List the other keys of the person whose scope it is; those of groups share nothing all the same."""
        return [other for other in self.keys_of_person(scope.person or "") if other != key]

    def _shared(self, reader: Reader, agent: str) -> str | None:
        """Name the scope of an agent that a chat shares with others; None: it has its own."""
        if counts_as_group(reader):
            return None
        # One that the configuration no longer has shares nothing.
        if self._kinds.get(agent) == WORKSPACE:
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
