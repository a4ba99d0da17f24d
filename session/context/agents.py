"""Which agent answers in which chat: the one that was chosen there, else the one that is bound; pure."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Literal

from session.transcript.key import TOPIC, split

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
