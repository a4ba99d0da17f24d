"""A model that hands tasks to subagents, as the texts of its chats say, and plays the subagents, too.

A message ``spawn a | b`` calls ``spawn`` for the tasks ``a`` and ``b`` in one round, and then answers
``begun``. A subagent answers ``did <task>``, what else ``work`` says for its task, or nothing while ``work``
holds it; where that calls tools it answers what they said. A result is answered by ``heard <label>``, or by
what ``hears`` says.
"""

from __future__ import annotations

import json
import re
from collections.abc import Callable
from dataclasses import dataclass, field

from tests.support.model_server import ModelServer, Reply, Seen

RESULT = re.compile(
    r'\A<subagent-result of="(.*?)" key="(.*?)">\n.*?\n\n(.*)\n</subagent-result>\Z', re.DOTALL
)
TOLD = "You are a subagent"


@dataclass
class Team:
    """What the model answers; ``results`` are those it saw, in order, each with its label, key and text."""

    model: ModelServer
    work: dict[str, Reply] = field(default_factory=dict)
    hears: Callable[[str], Reply | None] = lambda label: None
    results: list[tuple[str, str, str]] = field(default_factory=list)

    def __post_init__(self) -> None:
        self.model.chooses = self.reply

    def reply(self, seen: Seen) -> Reply | None:
        if is_of_subagent(seen):
            chosen = self.work.get(seen.text) or Reply(f"did {seen.text}")
            return Reply(" | ".join(results_of(seen))) if chosen.tool_calls and results_of(seen) else chosen
        again = any(message.get("role") == "tool" for message in _since_user(seen))
        if (found := RESULT.match(seen.text)) is not None:
            if (found[1], found[2], found[3]) not in self.results:
                self.results.append((found[1], found[2], found[3]))
            chosen = self.hears(found[1]) if not again else None
            return chosen or Reply(f"heard {found[1]}")
        if seen.text.startswith("spawn "):
            return Reply("begun") if again else spawning(*seen.text.removeprefix("spawn ").split(" | "))
        return None

    @property
    def asked(self) -> list[str]:
        """The tasks for which subagents asked the model, in order, one for each request."""
        return [seen.text for seen in self.model.seen if is_of_subagent(seen)]

    @property
    def requests(self) -> list[Seen]:
        return [seen for seen in self.model.seen if is_of_subagent(seen)]


def spawning(*tasks: str) -> Reply:
    """Call ``spawn`` for each of the tasks, which are their own labels."""
    return Reply(tool_calls=[("spawn", json.dumps({"task": task, "label": task})) for task in tasks])


def is_of_subagent(seen: Seen) -> bool:
    return any(message["role"] == "system" and TOLD in str(message["content"]) for message in seen.messages)


def results_of(seen: Seen) -> list[str]:
    """Return the results of the tools since the newest message."""
    return [str(message["content"]) for message in _since_user(seen) if message.get("role") == "tool"]


def _since_user(seen: Seen) -> list[dict[str, object]]:
    newest = max(at for at, message in enumerate(seen.messages) if message["role"] == "user")
    return seen.messages[newest:]
