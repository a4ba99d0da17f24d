"""An answer as a provider gives it, whole or put together from the pieces of a stream; pure."""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from typing import Any, Literal, Protocol

from durable import plain_value, whole_text
from session.errors import BadAnswer, ModelAway, ModelRefused
from session.models.model import Answer, ToolCall, Usage


class Chunk(Protocol):
    """One piece, in the shape of OpenAI's."""

    choices: Sequence[Any]


class Whole(Protocol):
    """A whole answer, in the shape of OpenAI's."""

    choices: Sequence[Any]


class Assembly:
    """An answer as it comes in, whole or piece by piece."""

    def __init__(self) -> None:
        self.finish = ""
        self.usage: Any = None
        self._text: list[str] = []
        self._reasoning: list[str] = []
        self._thinking: list[dict[str, Any]] = []
        self._calls: list[dict[str, str]] = []
        # By the index that the provider gives to a call.
        self._at: dict[int, dict[str, str]] = {}
        self._refusal = ""
        # The first half of a character that a piece ended with.
        self._half = ""

    def add(self, chunk: Chunk) -> str:
        """Take in one piece and return the text in it, without half a character at its end."""
        self.usage = getattr(chunk, "usage", None) or self.usage
        if not chunk.choices:
            return ""
        choice = chunk.choices[0]
        self.finish = choice.finish_reason or self.finish
        delta = choice.delta
        if delta is None:
            return ""
        self._add_thoughts(delta)
        for fragment in getattr(delta, "tool_calls", None) or ():
            self._add_call(fragment)
        text = getattr(delta, "content", None)
        if not isinstance(text, str) or not text:
            return ""
        text, self._half = self._half + text, ""
        if "\ud800" <= text[-1] < "\udc00":
            text, self._half = text[:-1], text[-1]
        text = whole_text(text)
        self._text.append(text)
        return text

    def take(self, response: Whole) -> None:
        """Take in a whole answer."""
        usage = getattr(response, "usage", None)
        # LiteLLM makes up a count of nothing where the provider gave none.
        if usage is not None and (usage.prompt_tokens or usage.completion_tokens):
            self.usage = usage
        if not response.choices:
            return
        choice = response.choices[0]
        self.finish = choice.finish_reason or self.finish
        message = choice.message
        if message is None:
            return
        self._add_thoughts(message)
        for call in getattr(message, "tool_calls", None) or ():
            function = call.function
            known = {"id": call.id or "", "name": function.name or "", "arguments": function.arguments or ""}
            self._calls.append(known)
        text = getattr(message, "content", None)
        if isinstance(text, str) and text:
            self._text.append(text)

    def check_ended(self, *, ended: bool) -> None:
        """Check that it is whole, where ``ended`` says whether the provider itself came to an end.

        Raises:
            ModelAway: something came, but the provider never said that this was all.
        """
        if (self._text or self._calls) and not ended:
            raise ModelAway("the answer broke off", cause="unreachable")

    def answer(self, cost_usd: float) -> Answer:
        """Return the whole.

        Raises:
            ModelRefused: the provider's content policy ended it.
            BadAnswer: neither text nor a usable tool call came.
        """
        text = whole_text("".join(self._text) + self._half)
        calls = usable_calls(self._calls)
        if self.finish == "content_filter" or (self._refusal and not text and not calls):
            raise ModelRefused("the provider's content policy ended the answer")
        if not text.strip() and not calls:
            raise BadAnswer(f"neither text nor a tool call came (finish: {self.finish or 'none'})")
        extra: dict[str, Any] = {}
        if self._reasoning:
            extra["reasoning_content"] = whole_text("".join(self._reasoning))
        if self._thinking:
            extra["thinking_blocks"] = plain_value(self._thinking)
        usage = None
        if self.usage is not None:
            prompt, completion = self.usage.prompt_tokens or 0, self.usage.completion_tokens or 0
            usage = Usage(prompt=prompt, completion=completion, cost_usd=cost_usd)
        return Answer(text=text, tool_calls=calls, usage=usage, finish=self._finish(calls), extra=extra)

    def _finish(self, calls: Sequence[ToolCall]) -> Literal["stop", "tool_calls", "length"]:
        if self.finish == "length":
            return "length"
        return "tool_calls" if calls else "stop"

    def _add_thoughts(self, said: Any) -> None:
        """Take in what a piece, or a whole message, has beside text and calls."""
        if reasoning := getattr(said, "reasoning_content", None) or getattr(said, "reasoning", None):
            self._reasoning.append(reasoning)
        self._refusal += getattr(said, "refusal", None) or ""
        for block in getattr(said, "thinking_blocks", None) or ():
            self._add_thinking(dict(block))

    def _add_call(self, fragment: Any) -> None:
        function = fragment.function
        call_id, index = fragment.id or "", fragment.index or 0
        call = self._at.get(index)
        # Some providers give the same index to every call: another id begins another call.
        if call is None or (call_id and call["id"] and call_id != call["id"]):
            call = self._at[index] = {"id": "", "name": "", "arguments": ""}
            self._calls.append(call)
        call["id"] = call["id"] or call_id
        if function is not None:
            call["name"] = call["name"] or function.name or ""
            call["arguments"] += function.arguments or ""

    def _add_thinking(self, block: dict[str, Any]) -> None:
        """Join the pieces of a thinking block; its signature comes last and closes it."""
        last = self._thinking[-1] if self._thinking else {}
        if block.get("type") != "thinking" or last.get("type") != "thinking" or last.get("signature"):
            self._thinking.append(block)
            return
        last["thinking"] = (last.get("thinking") or "") + (block.get("thinking") or "")
        last["signature"] = block.get("signature") or last.get("signature") or ""


def usable_calls(calls: Sequence[Mapping[str, str]]) -> tuple[ToolCall, ...]:
    """Leave out calls without a name; give an id of its own to each that has none, or another's."""
    usable: dict[str, ToolCall] = {}
    for call in calls:
        if call["name"]:
            call_id = call["id"]
            while not call_id or call_id in usable:
                call_id = f"call_{os.urandom(8).hex()}"
            usable[call_id] = ToolCall(call_id, whole_text(call["name"]), whole_text(call["arguments"]))
    return tuple(usable.values())
