"""Fields that a provider adds to a tool call or its message and wants back, such as thought signatures."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from typing import Any

from durable import plain_value

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

    Args:
        model: as LiteLLM writes it.
        fields: of the message.
        calls: of each tool call, in their order.
    """
    if not fields and not any(calls):
        return {}
    return {"model": model, "fields": plain_value(fields), "calls": plain_value(calls)}


def repaired(kept: object, ids: Sequence[str], sent: Sequence[str]) -> dict[str, Any]:
    """Return the fields as ``put_back`` takes them; empty where nothing of them is sound.

    Args:
        kept: as a line has it.
        ids: of the calls of the line, to which the fields of calls belong by their place.
        sent: of those calls that are sent.
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
