"""An answer as a provider gives it, whole or put together from the pieces of a stream; pure."""

from __future__ import annotations

import json
import os
from collections.abc import Mapping, Sequence
from typing import Any, Literal, Protocol

from durable import plain_value, whole_text
from session.errors import BadAnswer, ModelAway, ModelRefused
from session.models import opaque
from session.models.model import Answer, ToolCall, Usage

# No request has as many tokens: what says so is no count, and would be added up for days.
MOST_TOKENS = 10**9


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
        self._calls: list[dict[str, Any]] = []
        # Fields of the message that nobody here knows.
        self._opaque: dict[str, Any] = {}
        # By the index that the provider gives to a call.
        self._at: dict[int, dict[str, Any]] = {}
        self._refusal = ""
        # The first half of a character that a piece ended with.
        self._half = ""

    def add(self, chunk: Chunk) -> str:
        """Take in one piece and return the text in it, without half a character at its end."""
        self.usage = getattr(chunk, "usage", None) or self.usage
        # Some servers keep a connection alive by what is no piece at all.
        choices = getattr(chunk, "choices", None)
        if not choices:
            return ""
        choice = choices[0]
        self.finish = choice.finish_reason or self.finish
        delta = choice.delta
        if delta is None:
            return ""
        self._add_thoughts(delta)
        for fragment in getattr(delta, "tool_calls", None) or ():
            self._add_call(fragment)
        text = _text(getattr(delta, "content", None))
        if not text:
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
        if usage is not None and any(counts_of(usage)):
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
            self._calls.append({**known, "opaque": opaque.of_call(call)})
        text = getattr(message, "content", None)
        if isinstance(text, str) and text:
            self._text.append(text)

    def check_ended(self, *, ended: bool) -> None:
        """Check that it is whole, where ``ended`` says whether the provider itself came to an end.

        Raises:
            ModelAway: something came, but the provider never said that this was all.
        """
        # A model may think for minutes before its first word: that was cut, too, and is worth another try.
        if (self._text or self._calls or self._reasoning or self._thinking) and not ended:
            raise ModelAway("the answer broke off", cause="unreachable")

    def answer(self, cost_usd: float, *, model: str = "") -> Answer:
        """Return the whole; fields that nobody here knows go back to ``model`` alone.

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
        of_calls = [call.opaque for call in calls]
        if calls and (kept := opaque.to_line(model, self._opaque, of_calls)):
            extra[opaque.OPAQUE] = kept
        usage = None
        if self.usage is not None:
            prompt, completion = counts_of(self.usage)
            usage = Usage(prompt=prompt, completion=completion, cost_usd=cost_usd)
        return Answer(text=text, tool_calls=calls, usage=usage, finish=self._finish(calls), extra=extra)

    def _finish(self, calls: Sequence[ToolCall]) -> Literal["stop", "tool_calls", "length"]:
        if self.finish == "length":
            return "length"
        return "tool_calls" if calls else "stop"

    def _add_thoughts(self, said: Any) -> None:
        """Take in what a piece, or a whole message, has beside text and calls."""
        reasoning = getattr(said, "reasoning_content", None) or getattr(said, "reasoning", None)
        if reasoning := _text(reasoning):
            self._reasoning.append(reasoning)
        self._refusal += _text(getattr(said, "refusal", None))
        opaque.merge(self._opaque, opaque.of_message(said))
        for block in getattr(said, "thinking_blocks", None) or ():
            if isinstance(block, Mapping):
                self._add_thinking(dict(block))

    def _add_call(self, fragment: Any) -> None:
        function = fragment.function
        call_id, index = fragment.id or "", fragment.index or 0
        name = (function.name or "") if function is not None else ""
        arguments = _arguments(function.arguments) if function is not None else ""
        call = self._at.get(index)
        if call is None or _is_another(call, call_id, name, arguments):
            call = self._at[index] = {"id": "", "name": "", "arguments": "", "opaque": {}}
            self._calls.append(call)
        call["id"] = call["id"] or call_id
        call["name"] = call["name"] or name
        call["arguments"] += arguments
        opaque.merge(call["opaque"], opaque.of_call(fragment))

    def _add_thinking(self, block: dict[str, Any]) -> None:
        """Join the pieces of a thinking block; its signature comes last and closes it."""
        last = self._thinking[-1] if self._thinking else {}
        if block.get("type") != "thinking" or last.get("type") != "thinking" or last.get("signature"):
            self._thinking.append(block)
            return
        last["thinking"] = (last.get("thinking") or "") + (block.get("thinking") or "")
        last["signature"] = block.get("signature") or last.get("signature") or ""


def counts_of(usage: Any) -> tuple[int, int]:
    """Return the tokens of a request and of its answer; 0 for what is no count."""
    prompt, completion = (getattr(usage, f"{what}_tokens", None) for what in ("prompt", "completion"))
    return _count(prompt), _count(completion)


def _count(value: object) -> int:
    return value if type(value) is int and 0 <= value <= MOST_TOKENS else 0


def _text(said: object) -> str:
    """Return the text of a field that holds one, whole or in blocks; what else stands there says nothing."""
    if not isinstance(said, list):
        return said if isinstance(said, str) else ""
    texts = (block.get("text") for block in said if isinstance(block, Mapping))
    return "".join(text for text in texts if isinstance(text, str))


def _arguments(written: object) -> str:
    """Return the JSON text of arguments; some providers write an object itself."""
    if isinstance(written, Mapping):
        return json.dumps(plain_value(written), ensure_ascii=False)
    return written if isinstance(written, str) else ""


def _is_another(call: Mapping[str, str], call_id: str, name: str, arguments: str) -> bool:
    """Say whether a fragment begins another call at the index of one that has begun.

    Some providers give the same index to every call, or none, and some give no id besides: then another name
    tells, or arguments that begin again behind such as are whole.
    """
    if call_id:
        return bool(call["id"]) and call_id != call["id"]
    if not name or not call["name"]:
        return False
    if name != call["name"]:
        return True
    begun = call["arguments"].rstrip().endswith("}") and arguments.lstrip().startswith("{")
    return begun and _is_json(call["arguments"])


def _is_json(text: str) -> bool:
    try:
        json.loads(text)
    except (ValueError, RecursionError):
        return False
    return True


def usable_calls(calls: Sequence[Mapping[str, Any]]) -> tuple[ToolCall, ...]:
    """Leave out calls without a name; give an id of its own to each that has none, or another's."""
    usable: dict[str, ToolCall] = {}
    for call in calls:
        if call["name"]:
            # Some servers number their calls; half a character can be stored and sent nowhere.
            call_id = whole_text(str(call["id"]))
            while not call_id or call_id in usable:
                call_id = f"call_{os.urandom(8).hex()}"
            name, arguments = whole_text(call["name"]), whole_text(call["arguments"])
            usable[call_id] = ToolCall(call_id, name, arguments, call.get("opaque", {}))
    return tuple(usable.values())
