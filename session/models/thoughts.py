"""What a model thought before it called tools: most providers want it back within a turn, some refuse it."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from session.models.model import Message, Prompt

_FIELDS = frozenset({"reasoning_content", "thinking_blocks"})


def holds_thoughts(messages: Sequence[Message]) -> bool:
    """Say whether any message brings a model's thoughts back."""
    return any(not _FIELDS.isdisjoint(message) for message in messages)


def without_thoughts(prompt: Prompt) -> Prompt:
    """Leave the thoughts out of a request; what else it says stays."""
    if not holds_thoughts(prompt.messages):
        return prompt
    kept = [
        {name: value for name, value in message.items() if name not in _FIELDS} for message in prompt.messages
    ]
    return replace(prompt, messages=kept)
