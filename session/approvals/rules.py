"""Decides by ``[tools.policy]`` whether a tool may run, must be asked for, or is not there; pure."""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping
from dataclasses import dataclass, field
from typing import Final, Literal

from session.tools import Tool, ToolPlace
from session.transcript.key import chat_of, split

Decision = Literal["allow", "ask", "deny"]
Table = Mapping[str, Decision]

EVERY: Final = "*"
_STRICTEST: Final[tuple[Decision, ...]] = ("deny", "ask", "allow")


@dataclass(frozen=True, slots=True)
class PolicyRules:
    """The tables of ``[tools.policy]``, each a tool's name, ``mcp.<server>.*`` or ``*`` → decision.

    Args:
        tools: what holds where no other table says anything.
        people: by a name of ``[people]``, or ``channel:id of the person``.
        chats: by key; that of a group holds in its topics, behind the topic's own.
        channels: by name.
        person_of: the name in ``[people]`` by each key that is listed there.
        timeout_s: how long an approval is waited for.
    """

    tools: Table = field(default_factory=dict)
    people: Mapping[str, Table] = field(default_factory=dict)
    chats: Mapping[str, Table] = field(default_factory=dict)
    channels: Mapping[str, Table] = field(default_factory=dict)
    person_of: Mapping[str, str] = field(default_factory=dict)
    timeout_s: float = 600.0

    def decide(self, name: str, place: ToolPlace, senders: Collection[str] | None = None) -> Decision:
        """Say whether the tool of this policy name may run at ``place``.

        The first table that names it holds: of the person, the chat, the channel, then the general one.
        Where a turn answers several people, by ``senders`` their ids, the strictest of their decisions does.
        What works for another conversation, as a job does, is held to that one's tables, and to those that
        name its own key or channel as well; the general one holds where none of these names the tool.
        A subagent has what its parent has, unless the tables of its own key or channel are stricter.
        """
        ids = senders if senders else (place.sender.get("id", ""),)
        chat, works = place.chat or place.key, place.parent or place.key
        own = self._own_words(name, works) if works != chat else set[Decision]()
        of_people = {self._of_one(name, chat, sender, group=place.group) for sender in ids}
        found = own | {each for each in of_people if each is not None}
        if None in of_people and not own:
            found.add(_said(self.tools, name) or "allow")
        if works != place.key:
            found |= self._own_words(name, place.key)
        return next(each for each in _STRICTEST if each in found)

    def _own_words(self, name: str, key: str) -> set[Decision]:
        """Return what the tables of a conversation say, whoever writes in it."""
        return {said for said in (_said(table, name) for table in self._own(key)) if said is not None}

    def _of_one(self, name: str, key: str, sender: str, *, group: bool) -> Decision | None:
        """Return what the first table that names the tool says; None where the general one is left."""
        said = (_said(table, name) for table in self._tables(key, sender, group=group))
        return next((each for each in said if each is not None), None)

    def _tables(self, key: str, sender: str, *, group: bool) -> Iterator[Table]:
        channel, _ = split(key)
        person = f"{channel}:{sender}" if sender else ""
        # What stands in [people] for a group is the chat, not who writes there.
        # The id of a person is that of the direct chat on some platforms, and the key is listed.
        chats = (key, chat_of(key)) if group else ()
        listed = [self.person_of.get(each) for each in (key, person) if each not in chats]
        for who in (*listed, person):
            if who and who in self.people:
                yield self.people[who]
        yield from self._own(key)

    def _own(self, key: str) -> Iterator[Table]:
        for chat in dict.fromkeys((key, chat_of(key))):
            if chat in self.chats:
                yield self.chats[chat]
        if (channel := split(key)[0]) in self.channels:
            yield self.channels[channel]

    def denies(self) -> bool:
        """Say whether any table denies anything to anybody."""
        return any("deny" in table.values() for table in self._all())

    def names(self) -> set[str]:
        """Return all names that stand in any table."""
        return {name for table in self._all() for name in table}

    def _all(self) -> tuple[Table, ...]:
        return (self.tools, *self.people.values(), *self.chats.values(), *self.channels.values())


def policy_name(tool: Tool) -> str:
    """Return the name under which policies know a tool; its own, unless it bears another one."""
    name = getattr(tool, "policy_name", "")
    return name if isinstance(name, str) and name else tool.spec.name


def _said(table: Table, name: str) -> Decision | None:
    """Return what a table says of a tool; None where it does not name it."""
    return next((table[pattern] for pattern in (name, _of_server(name), EVERY) if pattern in table), None)


def _of_server(name: str) -> str:
    """Return ``mcp.<server>.*`` for a tool of a server."""
    head, dot, _ = name.rpartition(".")
    return f"{head}.*" if dot and name.startswith("mcp.") else name
