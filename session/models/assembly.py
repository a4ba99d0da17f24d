"""An answer as a provider gives it, whole or put together from the pieces of a stream; pure."""

from __future__ import annotations

import json
import os
from collections.abc import Mapping, Sequence
from typing import Any, Literal, NoReturn, Protocol

from durable import is_blank, plain_value, whole_text
from session.errors import BadAnswer, EmptyAnswer, ModelFailed, ModelRefused
from session.models import opaque
from session.models.model import Answer, ToolCall, Usage
from session.models.thoughts import TaggedThoughts, parted_thoughts

# No request has as many tokens: what says so is no count, and would be added up for days.
MOST_TOKENS = 10**9
# How servers name the end of an answer; LiteLLM takes an error, or what it does not know, for "stop".
_ENDS = {
    "stop": ("stop", "stop_sequence", "end_turn", "eos", "eos_token", "complete", "completed"),
    "tool_calls": ("tool_calls", "tool_use", "function_call"),
    "length": ("length", "max_tokens", "max_output_tokens", "model_length", "model_context_window_exceeded"),
    "content_filter": ("content_filter", "content_filtered", "refusal", "safety", "sensitive", "recitation"),
}
_END_OF = {name: end for end, names in _ENDS.items() for name in names}
_OUT_OF_TOKENS = "raise model.max_output_tokens; reasoning counts towards it"


class Chunk(Protocol):
    """One piece, in the shape of OpenAI's."""

    choices: Sequence[Any]


class Whole(Protocol):
    """A whole answer, in the shape of OpenAI's."""

    choices: Sequence[Any]


class Assembly:
    """An answer as it comes in, whole or piece by piece."""

    def __init__(self) -> None:
        # The provider's own word for how it ended.
        self.finish = ""
        self.usage: Any = None
        self._text: list[str] = []
        self._tagged = TaggedThoughts()
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
        """Take in one piece and return the text that is surely in it: no half of a character, no thoughts."""
        self.usage = getattr(chunk, "usage", None) or self.usage
        # Some servers keep a connection alive by what is no piece at all.
        choices = getattr(chunk, "choices", None)
        if not choices:
            return ""
        self._note_finish(choices[0])
        return self._take(choices[0].delta)

    def take(self, response: Whole) -> str:
        """Take in a whole answer, and return its text."""
        usage = getattr(response, "usage", None)
        # LiteLLM makes up a count of nothing where the provider gave none.
        if usage is not None and any(counts_of(usage)):
            self.usage = usage
        choices = getattr(response, "choices", None)
        if not choices:
            return ""
        self._note_finish(choices[0])
        return self._take(choices[0].message, whole=True) + self.end()

    def end(self) -> str:
        """Return the text that was held back until it was known to be no thought."""
        half, self._half = whole_text(self._half), ""
        text = self._tagged.feed(half) + self._tagged.end()
        if text:
            self._text.append(text)
        return text

    def _note_finish(self, choice: Any) -> None:
        """Note how the answer ended, as the provider says, and not as LiteLLM renders it."""
        beside = getattr(choice, "provider_specific_fields", None)
        native = beside.get("native_finish_reason") if isinstance(beside, Mapping) else None
        for reason in (native, choice.finish_reason):
            if isinstance(reason, str) and reason:
                self.finish = reason
                return

    def _take(self, said: Any, *, whole: bool = False) -> str:
        """Take in a message, or a piece of one."""
        if said is None:
            return ""
        self._add_thoughts(said)
        for number, call in enumerate(getattr(said, "tool_calls", None) or ()):
            self._add_call(call, number if whole else None)
        text = self._half + _text(getattr(said, "content", None))
        if not text:
            return ""
        self._half = ""
        if "\ud800" <= text[-1] < "\udc00":
            text, self._half = text[:-1], text[-1]
        text = self._tagged.feed(whole_text(text))
        if text:
            self._text.append(text)
        return text

    @property
    def begun(self) -> bool:
        """Whether anything came; a model may think for minutes before its first word."""
        return bool(self._text or self._calls or self._reasoning or self._thinking)

    def check_ended(self, *, ended: bool) -> None:
        """Check that it is whole, where ``ended`` says whether the provider itself came to an end.

        Raises:
            ModelFailed: something came, but the provider never said that this was all.
        """
        if self.begun and not ended:
            raise ModelFailed("the answer broke off")

    def answer(self, cost_usd: float | None, *, model: str = "") -> Answer:
        """Return the whole; fields that nobody here knows go back to ``model`` alone.

        ``cost_usd`` is None where the price is not known.

        Raises:
            ModelRefused: the provider's content policy ended it.
            ModelFailed: the provider says that it broke off.
            BadAnswer: neither text nor a usable tool call came.
        """
        self.end()
        text, thoughts = "".join(self._text), "".join((*self._reasoning, *self._tagged.thoughts)).strip()
        if not thoughts:
            thoughts, text = parted_thoughts(text)
        calls = usable_calls(self._calls)
        usage = None
        if self.usage is not None:
            prompt, completion = counts_of(self.usage)
            unpriced = prompt + completion if cost_usd is None else 0
            usage = Usage(prompt, completion, cost_usd or 0.0, *cache_counts_of(self.usage), unpriced)
        empty = is_blank(text) and not calls
        finish = self._finish(calls, empty=empty)
        if empty:
            self._refuse_empty(usage, thoughts=bool(thoughts or self._thinking))
        extra: dict[str, Any] = {}
        if thoughts:
            extra["reasoning_content"] = whole_text(thoughts)
        if self._thinking:
            extra["thinking_blocks"] = plain_value(self._thinking)
        of_calls = [call.opaque for call in calls]
        if calls and (kept := opaque.to_line(model, self._opaque, of_calls)):
            extra[opaque.OPAQUE] = kept
        return Answer(text=text, tool_calls=calls, usage=usage, finish=finish, extra=extra)

    def _finish(self, calls: Sequence[ToolCall], *, empty: bool) -> Literal["stop", "tool_calls", "length"]:
        """Say how it ended. Raises as ``answer``."""
        end = _END_OF.get(self.finish.lower(), "") if self.finish else "stop"
        if end == "content_filter" or (self._refusal and empty):
            raise ModelRefused("the provider's content policy ended the answer")
        if not end:
            raise ModelFailed(f"the answer broke off (finish_reason: {self.finish[:40]})")
        if end == "length":
            return "length"
        return "tool_calls" if calls else "stop"

    def _refuse_empty(self, usage: Usage | None, *, thoughts: bool) -> NoReturn:
        said = f"the answer has neither text nor a tool call (finish: {self.finish or 'none'})"
        cut = _END_OF.get(self.finish.lower()) == "length"
        hint = _OUT_OF_TOKENS if cut or thoughts else ""
        if cut:
            # The same request would come to the same end.
            error = BadAnswer(said, hint=hint)
            error.again, error.cut = False, True
            raise error
        raise EmptyAnswer(said, usage=usage, hint=hint)

    def _add_thoughts(self, said: Any) -> None:
        """Take in what a piece, or a whole message, has beside text and calls."""
        reasoning = getattr(said, "reasoning_content", None) or getattr(said, "reasoning", None)
        content = getattr(said, "content", None)
        # Mistral writes thoughts as blocks of the content.
        in_blocks = _text(content, "thinking") if isinstance(content, list) else ""
        if reasoning := _text(reasoning) + in_blocks:
            self._reasoning.append(reasoning)
        self._refusal += _text(getattr(said, "refusal", None))
        opaque.merge(self._opaque, opaque.of_message(said))
        for block in getattr(said, "thinking_blocks", None) or ():
            if isinstance(block, Mapping):
                self._add_thinking(dict(block))

    def _add_call(self, fragment: Any, number: int | None) -> None:
        """Take in a call, or a piece of one; ``number`` is its place in a whole answer."""
        function = getattr(fragment, "function", None)
        call_id = fragment.id or ""
        index = number if number is not None else fragment.index or 0
        name = (function.name or "") if function is not None else ""
        arguments = _arguments(function.arguments) if function is not None else ""
        call = self._at.get(index)
        if call is None or number is not None or _is_another(call, call_id, name, arguments):
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


def cache_counts_of(usage: Any) -> tuple[int, int]:
    """Return how many of a request's tokens a cache was read for, and how many were written to one."""
    details, (prompt, _) = getattr(usage, "prompt_tokens_details", None), counts_of(usage)
    cached = min(_count(getattr(details, "cached_tokens", None)), prompt)
    return cached, min(_count(getattr(details, "cache_write_tokens", None)), prompt - cached)


def _count(value: object) -> int:
    return value if type(value) is int and 0 <= value <= MOST_TOKENS else 0


def _text(said: object, name: str = "text") -> str:
    """Return the text of a field that holds one, whole or in blocks; what else stands there says nothing."""
    if not isinstance(said, list):
        return said if isinstance(said, str) else ""
    texts = (block.get(name) for block in said if isinstance(block, Mapping))
    return "".join(map(_text, texts))


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
