"""An answer as a provider gives it, whole or in pieces: text, thoughts, calls, opaque fields; pure."""

from __future__ import annotations

import json
import os
import re
from collections.abc import Collection, Mapping, Sequence
from typing import Any, Literal, NoReturn

from durable import is_blank, plain_value, whole_text
from session.errors import BadAnswer, EmptyAnswer, ModelFailed, ModelRefused
from session.models.model import Answer, Message, ToolCall, Usage

# A transcript line, and a message on its way to a model, keeps them under this name.
OPAQUE = "opaque"
# What has a place of its own, or belongs to the answer and not to a later request.
_MESSAGE_FIELDS = frozenset(
    {"role", "content", "tool_calls", "function_call", "refusal", "reasoning_content", "reasoning", "name"}
    | {"thinking_blocks", "provider_specific_fields", "audio", "images", "annotations", "index", "id"}
)
_CALL_FIELDS = frozenset(["id", "type", "index", "function"])


def of_message(said: Any) -> dict[str, Any]:
    """Return the unknown fields of a message or a piece of one."""
    found = _unknown(said, _MESSAGE_FIELDS)
    # LiteLLM moves unknown fields of a whole answer in here.
    moved = getattr(said, "provider_specific_fields", None)
    if isinstance(moved, Mapping):
        found |= {name: value for name, value in moved.items() if _is_kept(name, value, _MESSAGE_FIELDS)}
    return found


def of_call(call: Any) -> dict[str, Any]:
    """Return the unknown fields of a tool call or a piece of one."""
    return _unknown(call, _CALL_FIELDS)


def _unknown(said: Any, known: Collection[str]) -> dict[str, Any]:
    fields = {**getattr(said, "__dict__", {}), **(getattr(said, "model_extra", None) or {})}
    return {name: value for name, value in fields.items() if _is_kept(name, value, known)}


def _is_kept(name: str, value: Any, known: Collection[str]) -> bool:
    return name not in known and not name.startswith("_") and value not in (None, "", [], {})


def merge(kept: dict[str, Any], more: Mapping[str, Any]) -> None:
    """Add the fields of the next piece of a stream: texts and lists go on, objects are merged."""
    for name, value in more.items():
        kept[name] = _joined(kept[name], value) if name in kept else value


def _joined(before: Any, value: Any) -> Any:
    if isinstance(before, Mapping) and isinstance(value, Mapping):
        joined = dict(before)
        merge(joined, value)
        return joined
    if isinstance(before, list) and isinstance(value, list):
        joined_list = list(before)
        for item in value:
            if joined_list and _goes_on(joined_list[-1], item):
                joined_list[-1] = _with_piece(joined_list[-1], item)
            else:
                joined_list.append(item)
        return joined_list
    if isinstance(before, str) and isinstance(value, str) and before != value:
        return before + value
    return value


def _goes_on(last: Any, item: Any) -> bool:
    """Say whether an item of a list is the next piece of the last one, by the index that both bear."""
    if not isinstance(last, Mapping) or not isinstance(item, Mapping) or "index" not in item:
        return False
    return (last.get("type"), last.get("index")) == (item.get("type"), item["index"])


def _with_piece(last: Mapping[str, Any], item: Mapping[str, Any]) -> dict[str, Any]:
    joined = dict(last)
    for name, value in item.items():
        goes_on = name in ("text", "summary", "data") and isinstance(joined.get(name), str)
        if value is not None:
            joined[name] = joined[name] + str(value) if goes_on else value
    return joined


def to_line(model: str, fields: Mapping[str, Any], calls: Sequence[Mapping[str, Any]]) -> dict[str, Any]:
    """Write the fields down with the model that they go back to; empty where there are none.

    ``fields`` are those of the message, ``calls`` those of each tool call, in their order.
    """
    if not fields and not any(calls):
        return {}
    return {"model": model, "fields": plain_value(fields), "calls": plain_value(calls)}


def repaired(kept: object, ids: Sequence[str], sent: Sequence[str]) -> dict[str, Any]:
    """Return the fields as ``put_back`` takes them; empty where nothing of them is sound.

    ``kept`` is as a line has it, ``ids`` are of the calls of the line, ``sent`` those of them that are sent.
    """
    if not isinstance(kept, Mapping) or not isinstance(kept.get("model"), str):
        return {}
    fields, calls = kept.get("fields"), kept.get("calls")
    by_id: dict[str, Any] = {}
    for call_id, each in zip(ids, calls if isinstance(calls, list) else (), strict=False):
        by_id.setdefault(call_id, each if isinstance(each, Mapping) else {})
    return to_line(
        kept["model"],
        fields if isinstance(fields, Mapping) else {},
        [by_id.get(call_id, {}) for call_id in sent],
    )


def put_back(message: dict[str, Any], model: str) -> None:
    """Put the fields into a message that ``model`` wrote, and leave them out of one of another model."""
    kept = message.pop(OPAQUE, None)
    if kept is None or kept["model"] != model:
        return
    for call, fields in zip(message.get("tool_calls") or (), kept["calls"], strict=False):
        call.update({name: value for name, value in fields.items() if name not in _CALL_FIELDS})
    message.update({name: value for name, value in kept["fields"].items() if name not in _MESSAGE_FIELDS})


FIELDS = frozenset({"reasoning_content", "thinking_blocks"})
_NAME = r"(?:antml:|budget:)?(?:think(?:ing)?|thoughts?|reasoning)"
_OPENING = re.compile(rf"\s*<({_NAME})>", re.IGNORECASE)
# What may still become such a tag, or the fence of a code block, with the next piece.
_BEGUN = re.compile(r"\s*(?:<[a-z:]{0,20}|`{1,2}|~{1,2})?\Z", re.IGNORECASE)
_FENCE = re.compile(r" {0,3}(```|~~~)")
# Some chat templates open the thoughts themselves, and the answer holds the end alone.
_CLOSED_ALONE = re.compile(r"</(?:think|thinking)>[ \t]*(?:\n|\Z)", re.IGNORECASE)


class TaggedThoughts:
    """Takes thoughts in tags (``<think>`` and the like) out of a text that comes in pieces.

    Tags count at the start of the text and of a line, code blocks left out: elsewhere they are written about.
    """

    def __init__(self) -> None:
        self.thoughts: list[str] = []
        # What is undecided: the beginning of a tag, perhaps.
        self._held = ""
        self._tag = ""
        self._in_tag: list[str] = []
        self._fence = ""
        self._at_line = True
        self._after_thoughts = self._any_text = False

    def feed(self, text: str) -> str:
        """Take the next piece; return the text that is surely no thought."""
        text, self._held = self._held + text, ""
        shown: list[str] = []
        while text:
            if self._tag:
                text = self._thought(text)
                continue
            if self._after_thoughts:
                text = text.lstrip()
                self._after_thoughts = not text
                continue
            if self._at_line and not self._fence and (opening := _OPENING.match(text)):
                self._tag, text = opening[1], text[opening.end() :]
                continue
            if self._at_line and _BEGUN.match(text):
                self._held = text
                break
            line, end, text = text.partition("\n")
            self._note_fence(line)
            self._at_line = bool(end)
            shown.append(line + end)
        self._any_text = self._any_text or bool(shown)
        return "".join(shown)

    def end(self) -> str:
        """Return what was held back; behind text a tag that is never closed holds no thoughts."""
        held, self._held = self._held, ""
        if not self._tag:
            return held
        thought = "".join(self._in_tag) + held
        tag, self._tag = self._tag, ""
        if self._any_text:
            return f"<{tag}>{thought}"
        self.thoughts.append(thought)
        return ""

    def _thought(self, text: str) -> str:
        closing = f"</{self._tag}>".lower()
        at = text.lower().find(closing)
        if at < 0:
            kept = len(text) - len(closing) + 1
            self._in_tag.append(text[: max(kept, 0)])
            self._held = text[max(kept, 0) :]
            return ""
        self.thoughts.append("".join(self._in_tag) + text[:at])
        self._in_tag.clear()
        self._tag, self._at_line, self._after_thoughts = "", True, True
        return text[at + len(closing) :]

    def _note_fence(self, line: str) -> None:
        fence = _FENCE.match(line) if self._at_line else None
        if fence is not None and self._fence in ("", fence[1]):
            self._fence = "" if self._fence else fence[1]


def parted_thoughts(text: str) -> tuple[str, str]:
    """Part thoughts that only their end marks from the text behind them."""
    closing = _CLOSED_ALONE.search(text)
    if closing is None or text.count("```", 0, closing.start()) % 2:
        return "", text
    return text[: closing.start()], text[closing.end() :].lstrip()


def holds_thoughts(messages: Sequence[Message]) -> bool:
    """Say whether any message brings a model's thoughts back."""
    return any(not FIELDS.isdisjoint(message) for message in messages)


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

    def add(self, chunk: Any) -> str:
        """Take in one piece and return the text that is surely in it: no half of a character, no thoughts."""
        self.usage = getattr(chunk, "usage", None) or self.usage
        # Some servers keep a connection alive by what is no piece at all.
        choices = getattr(chunk, "choices", None)
        if not choices:
            return ""
        self._note_finish(choices[0])
        return self._take(choices[0].delta)

    def take(self, response: Any) -> str:
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
        if calls and (kept := to_line(model, self._opaque, of_calls)):
            extra[OPAQUE] = kept
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
        merge(self._opaque, of_message(said))
        for block in getattr(said, "thinking_blocks", None) or ():
            if isinstance(block, Mapping):
                self._add_thinking(dict(block))

    def _add_call(self, fragment: Any, number: int | None) -> None:
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
        merge(call["opaque"], of_call(fragment))

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
