"""Marks for providers that cache of a request only what is marked, which Claude's do."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

# Read within five minutes, which a turn's rounds and a running conversation are.
_MARK: Mapping[str, str] = {"type": "ephemeral"}
_PROVIDERS = frozenset(
    {"anthropic", "bedrock", "bedrock_converse", "vertex_ai", "openrouter", "azure_ai", "anthropic_text"}
)


def wants_marks(model: str, provider: str) -> bool:
    """Say whether the model's provider caches only what is marked."""
    name = model.lower()
    return provider in _PROVIDERS and (
        provider == "anthropic" or "claude" in name or "anthropic" in name.partition("/")[2]
    )


def mark(messages: list[dict[str, Any]], *, in_parts: bool) -> None:
    """Mark what stays the same: instructions (with the tools before them), history, question, newest result.

    Anthropic takes four marks. ``in_parts``: a tool's result is marked in its text, as OpenRouter wants it.
    """
    roles = [message["role"] for message in messages]
    question = max((at for at, role in enumerate(roles) if role == "user"), default=0)
    system = max((at for at, role in enumerate(roles) if role == "system"), default=-1)
    ends = {system, _markable(messages, question - 1), _markable(messages, question)}
    for at in ends | {_markable(messages, len(messages) - 1)}:
        if at >= 0:
            _set(messages[at], in_parts=in_parts)


def _markable(messages: list[dict[str, Any]], at: int) -> int:
    """Return the last message at or before ``at`` that has a text to mark; -1 where there is none."""
    while at >= 0 and not messages[at].get("content"):
        at -= 1
    return at


def _set(message: dict[str, Any], *, in_parts: bool) -> None:
    content = message["content"]
    if message["role"] == "tool" and not in_parts:
        message["cache_control"] = dict(_MARK)
    elif isinstance(content, str):
        message["content"] = [{"type": "text", "text": content, "cache_control": dict(_MARK)}]
    else:
        message["content"] = [*content[:-1], {**content[-1], "cache_control": dict(_MARK)}]
