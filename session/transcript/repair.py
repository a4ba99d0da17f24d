"""Any sequence of messages in, a sequence that every provider accepts out; the input is left as it was."""

from __future__ import annotations

import json
import re
from collections.abc import Collection, Iterable, Mapping, Sequence
from itertools import count
from typing import Any, NoReturn

import orjson

from session.models.assembly import OPAQUE, repaired

ROLES = frozenset({"user", "assistant", "tool", "system"})
LOST_RESULT = json.dumps({"error": "Tool result unavailable (recovered from broken history)"})

# An assistant message keeps these where the caller left them in.
_REASONING, _THINKING = "reasoning_content", "thinking_blocks"
_SURROGATE = re.compile("[\ud800-\udfff]")
_PLACEHOLDER = re.compile(r"\[.{1,64}: truncated, was \d+ chars\]")
_NOT_IN_NAME = re.compile(r"[^A-Za-z0-9_-]")
# Neither nested so deep nor with a number so long that readers differ.
_SHORT = 900
_BLOCK_NAMES = {"image_url": "image", "input_image": "image", "input_audio": "audio", "file": "file"}


def repair(
    messages: Iterable[Mapping[str, Any]], *, taken: Collection[str] = (), more_follow: bool = False
) -> list[dict[str, Any]]:
    """Return the messages as a provider accepts them: order kept, nothing made up but lost tool results.

    Left out: unknown and missing roles, users and assistants that say nothing (a user who is last
    stays), results that no call of the assistant message right before them asked for, and the second
    result of a call. A call without a result gets ``LOST_RESULT``. Results belong to a call by their
    place; an id that was used before is sent with a number behind it, since some providers refuse a
    second call of the same id. Content becomes text, except in user messages, whose
    well-formed blocks stay. Arguments become the JSON text of an object: objects are written out, and
    what is no JSON object is wrapped as ``{"raw": "<the text>"}``, since several providers parse it.
    Repairing twice changes nothing more.

    Args:
        messages: oldest first.
        taken: ids of calls that stand before these messages.
        more_follow: whether other messages come behind these, so that the last user here is not the last.
    """
    known = [message for message in messages if isinstance(message, Mapping) and _role(message) in ROLES]
    last_user = max((i for i, message in enumerate(known) if message["role"] == "user"), default=-1)
    repairing = Repairing({_as_sent(call_id) for call_id in taken})
    for i, message in enumerate(known):
        repairing.take(message, newest=i == last_user and not more_follow)
    return [*repairing.legal, *repairing.open_end()]


class Repairing:
    """Repairs messages as they come; see ``repair``.

    ``legal`` are those that nothing which comes later changes, ``used`` the ids of their calls.
    """

    __slots__ = ("_calls", "_results", "legal", "used")

    def __init__(self, used: set[str]) -> None:
        """Begin behind messages whose calls have the ids ``used``, as ``_as_sent`` writes them."""
        self.legal: list[dict[str, Any]] = []
        self.used = used
        # Of the newest assistant message: the ids as they are sent, by those that are written.
        self._calls: dict[str, str] = {}
        self._results: list[dict[str, Any]] = []

    def take(self, message: Mapping[str, Any], *, newest: bool = False) -> None:
        """Take in the next message, whose role is known; ``newest``: it is the last of a person."""
        if message["role"] == "tool":
            sent = self._calls.get(_id(message.get("tool_call_id")))
            if sent is not None and not self._answers(sent):
                self._results.append(_result(message, sent))
            return
        fixed = _fixed(message, newest=newest)
        if fixed is not None:
            self.add(fixed)

    def add(self, fixed: dict[str, Any]) -> None:
        """Take in a message of a person or the model as it is sent."""
        self.close()
        self.legal.append(fixed)
        if "tool_calls" not in fixed:
            return
        for call in fixed["tool_calls"]:
            self._calls[call["id"]] = call["id"] = _unused(call["id"], self.used)
            self.used.add(_as_sent(call["id"]))

    def close(self) -> None:
        """Take in the results of the newest message's calls: no more of them can come."""
        if self._calls:
            self.legal += self.open_end()
            self._calls, self._results = {}, []

    def _answers(self, call_id: str) -> bool:
        return bool(self._results) and any(result["tool_call_id"] == call_id for result in self._results)

    @property
    def waits(self) -> bool:
        """Whether the newest message has calls, whose results may come."""
        return bool(self._calls)

    def open_end(self) -> list[dict[str, Any]]:
        """Return the results of the newest message's calls, as they are sent if no more come."""
        return _completed(self._calls.values(), self._results)


def truncate_tool_results(
    messages: Sequence[Mapping[str, Any]], keep: int = 2, running_from: int | None = None
) -> list[dict[str, Any]]:
    """Return the messages with all but the last ``keep`` tool results cut.

    A cut one reads ``[name: truncated, was N chars]``. Results at ``running_from`` and after it belong
    to the running turn: they stay and do not count. One that is not longer than its placeholder stays too.
    """
    end = len(messages) if running_from is None else running_from
    places = [i for i, message in enumerate(messages[:end]) if message.get("role") == "tool"]
    cut = set(places[: max(len(places) - keep, 0)])
    names: dict[str, str] = {}
    shortened: list[dict[str, Any]] = []
    for i, message in enumerate(messages):
        for call in message.get("tool_calls") or ():
            names[call["id"]] = call["function"]["name"]
        copied = dict(message)
        if i in cut:
            copied = shortened_result(message, names)
        shortened.append(copied)
    return shortened


def shortened_result(message: Mapping[str, Any], names: Mapping[str, str]) -> dict[str, Any]:
    """Return a tool result cut, see ``truncate_tool_results``; ``names`` are those of the calls, by id."""
    name = message.get("name") or names.get(message.get("tool_call_id", ""), "tool")
    return {**message, "content": _placeholder(str(name), plain_text(message.get("content")))}


def plain_text(content: object) -> str:
    """Return the text of a content field: a string, the texts of a list of blocks, ``[image]`` for others."""
    if isinstance(content, str):
        return _clean(content)
    if content is None:
        return ""
    if isinstance(content, Mapping):
        return _dumps(content)
    if not isinstance(content, list):
        return str(content)
    return "\n".join(text for text in map(_block_text, content) if text)


def _role(message: Mapping[str, Any]) -> str:
    role = message.get("role")
    return role if isinstance(role, str) else ""


def _fixed(message: Mapping[str, Any], *, newest: bool) -> dict[str, Any] | None:
    role, content = message["role"], message.get("content")
    if role == "assistant":
        return _assistant(message, {"role": role, "content": plain_text(content)})
    said = _user_content(content) if role == "user" else plain_text(content)
    fixed: dict[str, Any] = {"role": role, "content": said}
    if not newest and isinstance(fixed["content"], str) and not fixed["content"].strip():
        return None
    return _named(message, fixed)


def _assistant(message: Mapping[str, Any], fixed: dict[str, Any]) -> dict[str, Any] | None:
    calls = _calls(message.get("tool_calls"))
    spoken = bool(fixed["content"].strip())
    if not calls and not spoken:
        return None
    if not spoken:
        fixed["content"] = None
    if calls:
        fixed["tool_calls"] = calls
    reasoning, blocks = message.get(_REASONING), message.get(_THINKING)
    if isinstance(reasoning, str) and reasoning:
        fixed["reasoning_content"] = _clean(reasoning)
    if isinstance(blocks, list) and blocks and all(isinstance(block, dict) for block in blocks):
        fixed["thinking_blocks"] = blocks
    if calls and OPAQUE in message:
        ids = [_id(call.get("id")) if _is_mapping(call) else "" for call in message["tool_calls"]]
        if kept := repaired(message[OPAQUE], ids, [call["id"] for call in calls]):
            fixed[OPAQUE] = kept
    return fixed


def _calls(calls: object) -> list[dict[str, Any]]:
    legal: dict[str, dict[str, Any]] = {}
    for call in calls if isinstance(calls, list) else ():
        function: Any = call.get("function") if _is_mapping(call) else None
        if not _is_mapping(function):
            continue
        call_id, name = _id(call.get("id")), _name(function.get("name"))
        if not call_id or not name or call_id in legal:
            continue
        arguments = _arguments(function.get("arguments"))
        legal[call_id] = {
            "id": call_id,
            "type": "function",
            "function": {"name": name, "arguments": arguments},
        }
    return list(legal.values())


def _result(message: Mapping[str, Any], call_id: str) -> dict[str, Any]:
    result: dict[str, Any] = {"role": "tool", "tool_call_id": call_id}
    if name := _name(message.get("name")):
        result["name"] = name
    result["content"] = plain_text(message.get("content"))
    return result


def _unused(call_id: str, used: Collection[str]) -> str:
    """Number an id that was used before; what LiteLLM carries in the rest of some ids stays in its place."""
    if _as_sent(call_id) not in used:
        return call_id
    head, mark, tail = call_id.partition("__thought__")
    numbered = (f"{head}_{number}{mark}{tail}" for number in count(2))
    return next(each for each in numbered if _as_sent(each) not in used)


def _as_sent(call_id: str) -> str:
    """Write an id as it is compared by the provider that allows the fewest characters in one."""
    # Most ids and names are words of ASCII, which is seen in a quarter of the time.
    if call_id.isascii() and call_id.isidentifier():
        return call_id
    return _NOT_IN_NAME.sub("_", call_id)


def _completed(calls: Collection[str], results: list[dict[str, Any]]) -> list[dict[str, Any]]:
    """Put a made-up result in the place of each missing one: behind that of the call before it."""
    if len(results) == len(calls):
        return results
    answered = {result["tool_call_id"] for result in results}
    whole, at = list(results), 0
    for call_id in calls:
        if call_id not in answered:
            whole.insert(at, {"role": "tool", "tool_call_id": call_id, "content": LOST_RESULT})
        at = next(i for i, result in enumerate(whole) if result["tool_call_id"] == call_id) + 1
    return whole


def _user_content(content: object) -> str | list[dict[str, Any]]:
    if not isinstance(content, list) or all(_block_type(block) in ("", "text") for block in content):
        return plain_text(content)
    blocks = []
    for block in content:
        if _well_formed(block):
            blocks.append(dict(block))
        elif text := _block_text(block):
            blocks.append({"type": "text", "text": text})
    if all(block["type"] == "text" for block in blocks):
        return "\n".join(block["text"] for block in blocks)
    return blocks


def _well_formed(block: Any) -> bool:
    kind = _block_type(block)
    if kind == "image_url":
        image = block.get("image_url")
        return isinstance(image, Mapping) and isinstance(url := image.get("url"), str) and bool(url)
    return kind in ("input_audio", "file") and isinstance(block.get(kind), Mapping)


def _block_type(block: object) -> str:
    kind = block.get("type") if isinstance(block, Mapping) else None
    return kind if isinstance(kind, str) else ""


def _block_text(block: object) -> str:
    if isinstance(block, str):
        return _clean(block)
    if not isinstance(block, Mapping):
        return ""
    text = block.get("text")
    if isinstance(text, str):
        return _clean(text)
    kind = _block_type(block)
    return f"[{_BLOCK_NAMES[kind]}]" if kind in _BLOCK_NAMES else ""


def _named(message: Mapping[str, Any], fixed: dict[str, Any]) -> dict[str, Any]:
    name = message.get("name")
    if isinstance(name, str) and name and name == _name(name):
        fixed["name"] = name
    return fixed


def _is_mapping(value: Any) -> bool:
    # What is no dict is asked for, which takes twenty times as long.
    return type(value) is dict or isinstance(value, Mapping)


def _id(value: object) -> str:
    if isinstance(value, str):
        return _clean(value)
    return str(value) if isinstance(value, int) and not isinstance(value, bool) else ""


def _name(value: object) -> str:
    return _as_sent(value)[:64] if isinstance(value, str) else ""


def _arguments(value: object) -> str:
    if value is None or value == "":
        return "{}"
    if isinstance(value, str):
        text = _clean(value)
        return text if _is_object(text) else _dumps({"raw": text})
    return _dumps(value if isinstance(value, Mapping) else {"raw": _dumps(value)})


def _is_object(text: str) -> bool:
    try:
        # The faster reader refuses more; of what is short, nothing that the other one refuses.
        if len(text) < _SHORT and isinstance(orjson.loads(text), dict):
            return True
    except ValueError:
        pass
    try:
        return isinstance(json.loads(text, parse_constant=_refuse), dict)
    except (ValueError, RecursionError):
        return False


def _refuse(constant: str) -> NoReturn:
    raise ValueError(constant)


def _dumps(value: object) -> str:
    try:
        return _clean(json.dumps(value, ensure_ascii=False, allow_nan=False, default=str))
    except (ValueError, TypeError, RecursionError):
        return '{"raw": "unreadable"}'


def _clean(text: str) -> str:
    return text if is_clean(text) else _SURROGATE.sub("\ufffd", text)


def is_clean(text: str) -> bool:
    """Say whether a text can be sent as UTF-8."""
    if text.isascii():
        return True
    # To encode a text takes a tenth of what it takes to search it.
    try:
        text.encode()
    except UnicodeEncodeError:
        return False
    return True


def _placeholder(name: str, text: str) -> str:
    short = f"[{name}: truncated, was {len(text)} chars]"
    return text if len(text) <= len(short) or _PLACEHOLDER.fullmatch(text) else short
