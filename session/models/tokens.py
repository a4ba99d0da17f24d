"""How many tokens a text has, estimated without a tokenizer, and how many a model takes."""

from __future__ import annotations

import json
import re
from collections.abc import Awaitable, Callable, Iterable, Mapping, Sequence
from math import ceil
from types import MappingProxyType
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


# A model that nobody knows is taken to have this window.
UNKNOWN = 128_000

# Tokens that may be sent, the answer not counted, to models that have one window whoever serves them.
# Open weights are left to LiteLLM's map, which knows them by provider.
_BY_WINDOW = """
8_192 gpt-4
16_385 gpt-3.5-turbo
128_000 gpt-4o gpt-4o-mini chatgpt-4o gpt-4-turbo gpt-4-1106-preview gpt-4-0125-preview gpt-5-chat
128_000 gpt-5.1-chat gpt-5.2-chat gpt-5.3-chat gpt-audio gpt-audio-mini
200_000 claude-3-haiku claude-haiku-3 claude-3-sonnet claude-3-opus claude-3-5-haiku
200_000 claude-haiku-3-5 claude-3-5-sonnet claude-sonnet-3-5 claude-3-7-sonnet claude-sonnet-3-7
200_000 claude-sonnet-4 claude-sonnet-4-0 claude-opus-4 claude-opus-4-0 claude-opus-4-1
200_000 claude-haiku-4-5 claude-sonnet-4-5 claude-opus-4-5 o1 o1-pro o3 o3-mini o3-pro
200_000 o3-deep-research o4-mini o4-mini-deep-research
272_000 gpt-5 gpt-5-mini gpt-5-nano gpt-5-codex gpt-5-pro gpt-5.1 gpt-5.1-codex gpt-5.1-codex-mini
272_000 gpt-5.1-codex-max gpt-5.2 gpt-5.2-codex gpt-5.2-pro gpt-5.3-codex gpt-5.4-mini
272_000 gpt-5.4-nano
500_000 grok-4.5 grok-4.6 grok-4.7
922_000 gpt-5.4 gpt-5.4-pro gpt-5.5 gpt-5.5-pro gpt-5.6 gpt-5.6-sol gpt-5.6-terra gpt-5.6-luna
922_000 gpt-6-astra gpt-6-sol gpt-6-luna gpt-6.1-sol
1_000_000 gpt-4.1 gpt-4.1-mini gpt-4.1-nano claude-sonnet-4-6 claude-opus-4-6 claude-opus-4-7
1_000_000 claude-opus-4-8 claude-sonnet-5 claude-sonnet-5-5 claude-opus-5 claude-opus-5-5
1_000_000 claude-haiku-5-5 claude-fable-5 claude-fable-5-1 claude-mythos-5 claude-mythos-5-1
1_000_000 grok-4.3 grok-4.20
1_048_576 gemini-2.0-flash gemini-2.0-flash-lite gemini-2.5-pro gemini-2.5-flash
1_048_576 gemini-2.5-flash-lite gemini-3-pro gemini-3-flash gemini-3.1-pro gemini-3.1-flash-lite
1_048_576 gemini-3.5-flash gemini-3.5-flash-lite gemini-3.6-flash gemini-3.7-flash gemini-3.8-flash
"""
WINDOWS: Mapping[str, int] = MappingProxyType(
    {
        name: int(tokens)
        for tokens, *names in map(str.split, _BY_WINDOW.strip().splitlines())
        for name in names
    }
)

_VENDOR = re.compile(r"^(?:(?:us|eu|apac|global|jp|au)\.)?(?:anthropic|openai|google|xai)\.")
_SUFFIX = re.compile(
    r"(?:[-@]\d{8}|-\d{4}-\d{2}-\d{2}|-\d{4}|-\d{2}-\d{2,4}|-latest|-preview|-v\d+(?::\d+)?|:[a-z]+)$"
)
_VERSION = re.compile(r"(?<=\d)\.(?=\d)")


async def window_of(
    name: str, *, configured: int = 0, ask: Callable[[str], Awaitable[int]] | None = None
) -> int:
    """Return how many tokens the model of this name takes.

    ``configured`` is the answer where it is above 0; ``ask`` looks a name up elsewhere, 0 where it is not
    known.
    """
    if configured > 0:
        return configured
    known = in_table(name)
    if not known and ask is not None:
        known = await ask(name)
    return known or UNKNOWN


def in_table(name: str) -> int:
    """Look a name up, exactly, then without its dates and the like; 0 where it is not known."""
    bare = _VENDOR.sub("", name.rpartition("/")[2].lower())
    while True:
        spelled = _VERSION.sub("-", bare) if bare.startswith("claude") else bare
        if spelled in WINDOWS:
            return WINDOWS[spelled]
        shorter = _SUFFIX.sub("", bare)
        if shorter == bare:
            return 0
        bare = shorter
