"""Schemas of tools as every provider takes them, and arguments as the tool's server does."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from hashlib import sha256
from typing import Any, Final

from session.mcp.schema import resolved

# Anthropic's rule, the narrowest one.
_KEY = re.compile(r"[A-Za-z0-9_.-]{1,64}")
_NOT_IN_KEY = re.compile(r"[^A-Za-z0-9_.-]+")
MAX_KEY_CHARS: Final = 64
MAX_DEPTH: Final = 64
_COMBINED = ("allOf", "anyOf", "oneOf")
# Providers refuse these at the root.
_NOT_AT_ROOT = (*_COMBINED, "enum", "const", "not", "if", "then", "else", "$ref")
_NAMED = ("$defs", "definitions")
_ANYTHING = {"anyOf": [{"type": kind} for kind in ("string", "number", "boolean", "object")]}

Schema = Mapping[str, Any]


@dataclass(slots=True)
class Fitted:
    """A schema that providers take; ``restore`` turns arguments that fit it into those of the server."""

    parameters: dict[str, Any]
    # The server's own keys, by those that are offered.
    keys: dict[str, str] = field(default_factory=dict)

    def restore(self, arguments: Mapping[str, Any]) -> dict[str, Any]:
        """Name the arguments as the server does, at any depth that the schema describes."""
        if not self.keys:
            return dict(arguments)
        restored = self._restored(arguments, [self.parameters])
        return restored if isinstance(restored, dict) else {}

    def _restored(self, value: Any, schemas: list[Schema]) -> Any:
        """Restore a value, given all schemas that may describe it."""
        every = [each for schema in schemas for each in _branches(schema, self.parameters)]
        if isinstance(value, list):
            inner = [each["items"] for each in every if isinstance(each.get("items"), dict)]
            return [self._restored(item, inner) for item in value]
        if not isinstance(value, Mapping):
            return value
        restored: dict[str, Any] = {}
        for name, item in value.items():
            known = [each["properties"][name] for each in every if name in _properties(each)]
            more = [each["additionalProperties"] for each in every if _is_more(each)]
            own = str(self.keys.get(name, name) if known else name)
            restored[own] = self._restored(item, [each for each in known or more if isinstance(each, dict)])
        return restored


def fitted(schema: Schema) -> Fitted:
    """Fit a sound schema of an object: fold combinators at its root, fill in items, rename odd keys."""
    keys = _renamed({name for each in _all_schemas(schema) for name in _properties(each)})
    root = _folded(schema, schema)
    sound = _sound(root, keys, 0)
    sound = {**sound, "type": "object", "properties": sound.get("properties", {})}
    return Fitted(sound, {new: old for old, new in keys.items()})


def _folded(schema: Schema, root: Schema, depth: int = 0) -> dict[str, Any]:
    """Put the properties of what a root combines into it; what only one choice asks for is optional."""
    folded = {name: value for name, value in schema.items() if name not in _NOT_AT_ROOT}
    if depth > MAX_DEPTH:
        return folded
    inner: list[tuple[str, Any]] = [("allOf", resolved(schema.get("$ref"), root))]
    inner += [(name, each) for name in _COMBINED for each in schema.get(name) or ()]
    inner += [(name, schema.get(name)) for name in ("then", "else")]
    parts = [(name, _folded(each, root, depth + 1)) for name, each in inner if isinstance(each, dict)]
    required = set(folded.get("required", ()))
    properties = dict(_properties(folded))
    choices: dict[str, list[set[str]]] = {}
    for name, part in parts:
        for key, value in _properties(part).items():
            same = key not in properties or properties[key] == value
            properties[key] = value if same else _either(properties[key], value)
        choices.setdefault(name, []).append(set(part.get("required", ())))
        if "description" in part:
            folded.setdefault("description", part["description"])
    required |= set().union(*choices.pop("allOf", []))
    for name, asked in choices.items():
        if name in ("anyOf", "oneOf"):
            required |= set.intersection(*asked)
    folded["properties"] = properties
    if required:
        folded["required"] = sorted(required & properties.keys())
    if parts:
        # What a choice forbids beside its own properties another one may ask for.
        folded.pop("additionalProperties", None)
    return folded


def _either(one: Any, other: Any) -> dict[str, Any]:
    both = one["anyOf"] if isinstance(one, dict) and set(one) == {"anyOf"} else [one]
    return {"anyOf": both if other in both else [*both, other]}


def _sound(schema: Any, keys: Mapping[str, str], depth: int) -> dict[str, Any]:
    """Return a schema with items for each array, and keys that every provider takes."""
    # A provider takes no bare true or false for a schema.
    if not isinstance(schema, dict) or depth > MAX_DEPTH:
        return {}
    sound = dict(schema)
    if "properties" in schema:
        named = schema["properties"].items()
        sound["properties"] = {keys.get(key, key): _sound(each, keys, depth + 1) for key, each in named}
    if "required" in schema:
        sound["required"] = [keys.get(key, key) for key in schema["required"]]
    for name in _NAMED:
        if name in schema:
            sound[name] = {key: _sound(each, keys, depth + 1) for key, each in schema[name].items()}
    for name in _COMBINED:
        if name in schema:
            sound[name] = [_sound(each, keys, depth + 1) for each in schema[name]]
    for name in ("additionalProperties", "not", "contains"):
        if isinstance(schema.get(name), dict):
            sound[name] = _sound(schema[name], keys, depth + 1)
    kinds = schema.get("type")
    if "array" in (kinds if isinstance(kinds, list) else [kinds]) or {"items", "prefixItems"} & schema.keys():
        sound["items"] = _items(schema, keys, depth)
        sound.pop("prefixItems", None)
    return sound


def _items(schema: Schema, keys: Mapping[str, str], depth: int) -> dict[str, Any]:
    """Return what the items of an array are; a list of schemas, one for each place, becomes a choice."""
    items = schema.get("items")
    places = [*(schema.get("prefixItems") or ()), *(items if isinstance(items, list) else ())]
    if isinstance(items, dict) and items:
        places.append(items)
    each = [_sound(place, keys, depth + 1) for place in places if isinstance(place, dict) and place]
    if not each:
        return dict(_ANYTHING)
    return each[0] if len(each) == 1 else {"anyOf": each}


def _renamed(names: set[str]) -> dict[str, str]:
    """Map each key that some provider refuses to another one that nothing in the schema bears."""
    keys: dict[str, str] = {}
    taken = set(names)
    for name in sorted(names):
        if _KEY.fullmatch(name):
            continue
        plain = _NOT_IN_KEY.sub("_", name).strip("_") or "key"
        if len(plain) > MAX_KEY_CHARS or plain in taken:
            mark = sha256(name.encode("utf-8", "replace")).hexdigest()[:6]
            plain = f"{plain[: MAX_KEY_CHARS - 7]}_{mark}"
        keys[name] = plain
        taken.add(plain)
    return keys


def _all_schemas(part: Any, depth: int = 0) -> Iterator[Schema]:
    """Yield all objects within a schema, of which some are schemas."""
    if depth > MAX_DEPTH * 2:
        return
    if isinstance(part, dict):
        yield part
        for each in part.values():
            yield from _all_schemas(each, depth + 1)
    elif isinstance(part, list):
        for each in part:
            yield from _all_schemas(each, depth + 1)


def _branches(schema: Schema, root: Schema, depth: int = 0) -> Iterator[Schema]:
    """Yield a schema and all that it combines or refers to."""
    if depth > MAX_DEPTH:
        return
    yield schema
    inner = [each for name in _COMBINED for each in schema.get(name) or ()]
    inner.append(resolved(schema.get("$ref"), root))
    for each in inner:
        if isinstance(each, dict):
            yield from _branches(each, root, depth + 1)


def _properties(schema: Schema) -> Mapping[str, Any]:
    found = schema.get("properties")
    return found if isinstance(found, dict) else {}


def _is_more(schema: Schema) -> bool:
    return isinstance(schema.get("additionalProperties"), dict)
