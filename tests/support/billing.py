"""Bills requests as Anthropic does, for a model's stand-in."""

from __future__ import annotations

import json
from itertools import accumulate
from typing import Any

from tests.support.model_replies import Reply, Seen

# A marked prefix costs so many times a fresh token to write, and to read once more.
WRITE, READ = 1.25, 0.1
# A shorter prefix is not cached (Claude Sonnet); what was written is looked for so many blocks before a mark.
LEAST_TOKENS, LOOK_BACK = 1024, 20
CHARS_PER_TOKEN = 4


class Bill:
    """Counts the input of requests; ``cost`` is in fresh tokens, ``marks`` has the number in each request."""

    def __init__(self) -> None:
        self.cost = 0.0
        self.marks: list[int] = []
        self._cached: set[str] = set()

    def add(self, seen: Seen) -> dict[str, Any]:
        """Bill a request; return its counts as OpenRouter writes them."""
        blocks = [(json.dumps(seen.body.get("tools")), False)]
        for message in seen.messages:
            content = message.get("content")
            parts = content if isinstance(content, list) else [{"text": content}]
            blocks += [(message["role"] + str(part.get("text")), "cache_control" in part) for part in parts]
            blocks += [(json.dumps(call), False) for call in message.get("tool_calls") or ()]
        prefixes = list(accumulate(text for text, _ in blocks))
        tokens = [len(prefix) // CHARS_PER_TOKEN for prefix in prefixes]
        marked = [at for at, (_, is_marked) in enumerate(blocks) if is_marked]
        self.marks.append(len(marked))
        marked = [at for at in marked if tokens[at] >= LEAST_TOKENS]
        near = {before for at in marked for before in range(max(at - LOOK_BACK, 0), at + 1)}
        read = max((tokens[at] for at in near if prefixes[at] in self._cached), default=0)
        written = max((tokens[at] for at in marked), default=read) - read
        self._cached |= {prefixes[at] for at in marked}
        self.cost += READ * read + WRITE * written + (tokens[-1] - read - written)
        return {
            "prompt_tokens": tokens[-1],
            "completion_tokens": 1,
            "total_tokens": tokens[-1] + 1,
            "prompt_tokens_details": {"cached_tokens": read, "cache_write_tokens": written},
        }


class ToolTurn:
    """Has a model read ``a.txt`` in each of its requests but the last of a number, and bills them."""

    def __init__(self, rounds: int) -> None:
        self.bill = Bill()
        self._rounds = rounds

    def __call__(self, seen: Seen) -> Reply:
        usage = self.bill.add(seen)
        if len(self.bill.marks) < self._rounds:
            return Reply(tool_calls=[("read", '{"path": "a.txt"}')], usage=usage)
        return Reply(text="done", usage=usage)
