"""Which agent may be chosen in a chat, and why not another; pure."""

from __future__ import annotations

import difflib
from collections.abc import Sequence
from dataclasses import dataclass

from session.context.scopes import Agents
from session.transcript.agent import DEFAULT, named, shown

NO_SUCH = "There is no agent {}. {}Agents: {}."
FIXED = "The operator has assigned {} to this chat, so it cannot be changed."
CLOSED = "{} cannot be chosen in a chat; the operator can assign it."


@dataclass(frozen=True, slots=True)
class AgentChoice:
    """The agents that are configured, the default one left out, and what binds chats to them."""

    agents: Sequence[str]
    rules: Agents

    @property
    def names(self) -> list[str]:
        """All of them, as people write them."""
        return [DEFAULT, *self.agents]

    def refusal(self, key: str, name: str, *, by_command: bool = False) -> str:
        """Say why an agent may not be chosen in a conversation; empty where it may.

        ``by_command``: by one that is bound to it, which leads to agents that are closed otherwise.
        """
        if name not in self.names:
            near = difflib.get_close_matches(name, self.names, 1, 0.5)
            return NO_SUCH.format(name, f"Did you mean {near[0]}? " if near else "", ", ".join(self.names))
        bound = self.rules.bound(key)
        if bound is not None and bound.fixed and bound.agent != named(name):
            return FIXED.format(shown(bound.agent))
        is_bound = bound is not None and bound.agent == named(name)
        return CLOSED.format(name) if name in self.rules.closed and not (by_command or is_bound) else ""

    def offered(self, channel: str) -> list[str]:
        """List the names that the chats of a channel may choose, or some of them have already."""
        bound = {each.agent for each in self.rules.bindings if each.value.partition(":")[0] == channel}
        return [name for name in self.names if name not in self.rules.closed or named(name) in bound]
