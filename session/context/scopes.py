"""Which agent answers in a chat, what a chat is, and which memory, files and tools it may see; pure."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Final, Literal

from session.transcript.agent import home_of, parted, within
from session.transcript.key import SUBAGENTS, TOPIC, split
from session.transcript.transcript import Transcript, decode

By = Literal["topic", "chat", "person", "channel"]
Kind = Literal["chat", "workspace"]


@dataclass(frozen=True, slots=True)
class Binding:
    """Sends chats to an agent (empty: the default one); ``fixed`` ones cannot choose another.

    ``value`` is a key, or the name of a channel; ``rank`` is 0 for the most specific kind.
    """

    by: By
    value: str
    agent: str
    fixed: bool = False

    def meets(self, key: str) -> bool:
        """Say whether it is for this conversation."""
        match self.by:
            case "channel":
                return split(key)[0] == self.value
            case "chat":
                return key == self.value or key.startswith(self.value + TOPIC)
            case _:
                return key == self.value


_RANKS: Sequence[By] = ("topic", "chat", "person", "channel")


@dataclass(frozen=True, slots=True)
class Agents:
    """The agents of a configuration.

    Args:
        kinds: their names, the default one's left out, each with what ``memory.scope`` is for it.
        bindings: what sends chats to them; a person's stands here once for each key.
        closed: those that no chat may choose.
    """

    kinds: Mapping[str, Kind] = field(default_factory=dict)
    bindings: Sequence[Binding] = ()
    closed: frozenset[str] = frozenset()

    def bound(self, key: str) -> Binding | None:
        """Return the most specific binding of a conversation; None where nothing binds it."""
        met = [each for each in self.bindings if each.meets(key)]
        return min(met, key=lambda each: _RANKS.index(each.by), default=None)

    def decided_in(self, key: str, answered: str) -> str:
        """Return the conversation whose agent a letter has: a job has that of the chat that it answers."""
        is_job = split(key)[0] == "cron"
        return answered if is_job and answered and self.bound(key) is None else key

    def of(self, key: str, chosen: str | None) -> str:
        """Return who answers in a conversation in which ``chosen`` was chosen, None where nobody was."""
        bound = self.bound(key)
        if chosen is not None and (not chosen or chosen in self.kinds) and not (bound and bound.fixed):
            return chosen
        return bound.agent if bound is not None else ""


WORKSPACE = "workspace"
CHATS, PEOPLE = "chats/", "people/"
Chat = Literal["direct", "group"]
# The terminal, the page and the jobs are the owner's; a key without a channel is reached by no platform.
OWN_CHANNELS: Final = frozenset({"", "cli", "web", "cron"})
JOBS: Final = "cron"


@dataclass(frozen=True, slots=True)
class Scope:
    """Conversations that share notes and files.

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


# The name of the field in line 1's metadata.
CHAT: Final = "chat"
# The chats that a job has answered, by their keys.
ANSWERS: Final = "answers_to"
MAX_ANSWERS: Final = 20
_OWN_IDS: Final = tuple(f"{channel}:" for channel in sorted({*OWN_CHANNELS, SUBAGENTS}) if channel)


def told(key: str, message_id: str, *, group: bool) -> Chat | None:
    """Return what a message says of its chat; None where it does not come from the chat's platform.

    What the terminal, the page, a job or a subagent puts into a chat of a platform knows nothing of that
    chat. That it is a group is believed of whoever says so.
    """
    if group:
        return "group"
    is_own = split(key)[0] in OWN_CHANNELS
    return None if is_own or message_id.startswith(_OWN_IDS) else "direct"


def newer(known: object, said: Chat | None) -> Chat | None:
    """Return what is to be remembered besides what is known; None where that says as much.

    Who was in a group stays in its lines: it never becomes a direct chat.
    """
    return None if said is None or known in ("group", said) else said


def as_chat(value: object) -> Chat | None:
    """Read what line 1 says of a chat."""
    return "group" if value == "group" else "direct" if value == "direct" else None


def answers_in(inner: Mapping[str, Any]) -> tuple[str, ...]:
    """Read which chats line 1 says that a job has answered."""
    found = inner.get(ANSWERS)
    return tuple(key for key in found if isinstance(key, str)) if isinstance(found, list) else ()


def chat_in(transcript: Transcript) -> Chat | None:
    """Return what a session knows of its chat: by its line 1, else by its lines; None where nothing tells.

    A line of ours says that it was written in a group; one of a message of the platform that does not was
    written in a direct chat.
    """
    known = as_chat(transcript.inner.get(CHAT))
    if known is not None:
        return known
    found: Chat | None = None
    for raw in transcript.messages:
        if b'"group"' not in raw and (found is not None or b'"message_id"' not in raw):
            continue
        line = decode(raw)
        if line.get("group") is True:
            return "group"
        message_id = line.get("message_id")
        if line.get("role") == "user" and isinstance(message_id, str) and message_id:
            found = found or told(transcript.key, message_id, group=False)
    return found
