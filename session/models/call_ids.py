"""Ids of tool calls as providers take them."""

from __future__ import annotations

import hashlib
from collections.abc import Sequence
from copy import deepcopy
from typing import Any

from session.models.model import Message

# Longer ids of tool calls come from conversations with other providers, and OpenAI refuses them.
MAX_ID_CHARS = 40


def legal_ids(messages: Sequence[Message]) -> list[dict[str, Any]]:
    """Shorten tool call ids that no provider of this kind could have given, on both sides alike.

    All that a library may change is copied: requests share the messages of a history.
    Ids in which LiteLLM carries a thought signature (Gemini) are long by nature and stay.
    """
    legal = []
    for message in messages:
        changed = dict(message)
        if message.get("tool_calls"):
            changed["tool_calls"] = [
                {**call, "id": _short(call["id"]), "function": dict(call.get("function", ()))}
                for call in message["tool_calls"]
            ]
        if isinstance(message.get("content"), list):
            changed["content"] = deepcopy(message["content"])
        if message.get("tool_call_id"):
            changed["tool_call_id"] = _short(message["tool_call_id"])
        legal.append(changed)
    return legal


def _short(call_id: str) -> str:
    if len(call_id) <= MAX_ID_CHARS or "__thought__" in call_id:
        return call_id
    return "call_" + hashlib.sha256(call_id.encode("utf-8", "replace")).hexdigest()[:24]
