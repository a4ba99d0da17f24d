"""How long a text is for a model, estimated without a tokenizer."""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping, Sequence
from math import ceil
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from session.models.model import Message, ToolSpec

CHARS_PER_TOKEN = 4.0
# The large providers take about 1,200 tokens for a picture.
IMAGE_CHARS = 4_800
# Some count a large picture as so many.
MOST_OF_A_PICTURE = 50_000
# What templates and providers add to a request.
SENT_BESIDE = 1_000


def estimate(text: str, *, chars_per_token: float = CHARS_PER_TOKEN) -> int:
    """Return ``ceil(chars / chars_per_token)``, the number of tokens that ``text`` is taken for."""
    return ceil(len(text) / chars_per_token)


def estimate_messages(messages: Iterable[Message], *, chars_per_token: float = CHARS_PER_TOKEN) -> int:
    """Sum the estimates of ``messages``, each rounded up, so that the sum is additive."""
    total = 0
    for message in messages:
        content = message.get("content")
        # The usual message takes the shortest way.
        if isinstance(content, str) and "tool_calls" not in message:
            total += ceil(len(content) / chars_per_token)
        else:
            total += ceil(chars_of(message) / chars_per_token)
    return total


def estimate_tools(tools: Sequence[ToolSpec], *, chars_per_token: float = CHARS_PER_TOKEN) -> int:
    """Estimate what the descriptions of ``tools`` take in a request."""
    return sum(ceil(tool.chars / chars_per_token) for tool in tools)


def most_tokens(messages: Iterable[Message], tools: Sequence[ToolSpec]) -> int:
    """Return how many tokens a request can have at most: no token is less than a byte of its JSON."""
    total = SENT_BESIDE + sum(map(_most_of, messages))
    return total + sum(len(tool.description.encode()) + tool.chars for tool in tools)


def _most_of(message: Message) -> int:
    content = message.get("content")
    blocks = content if isinstance(content, list) else []
    media = [block for block in blocks if isinstance(block, Mapping) and "text" not in block]
    texts = [block for block in blocks if block not in media] if media else content
    size = len(
        json.dumps({**message, "content": texts}, ensure_ascii=False, default=str).encode(errors="replace")
    )
    # A document has pages, each of which may count like a picture, but costs bytes as well.
    documents = sum(len(str(block)) for block in media if block.get("type") == "file")
    return size + documents + MOST_OF_A_PICTURE * len(media)


def chars_of(message: Message) -> int:
    """Count the characters of a message that a model reads: content, and names and arguments of calls."""
    calls = message.get("tool_calls")
    counted = sum(map(_call_chars, calls)) if isinstance(calls, list) else 0
    return _content_chars(message.get("content")) + counted


def _content_chars(content: object) -> int:
    if isinstance(content, str):
        return len(content)
    if not isinstance(content, list):
        return 0
    return sum(
        len(text) if isinstance(text := block.get("text"), str) else IMAGE_CHARS
        for block in content
        if isinstance(block, Mapping)
    )


def _call_chars(call: Any) -> int:
    function = call.get("function") if isinstance(call, Mapping) else None
    if not isinstance(function, Mapping):
        return 0
    return len(str(function.get("name") or "")) + len(str(function.get("arguments") or ""))
