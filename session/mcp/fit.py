"""Schemas of tools as every provider takes them, and arguments as the tool's server does."""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from hashlib import sha256
from typing import Any, Final

from session.mcp.schema import KEYWORDS, MANY, NAMED, ONE, Schema, resolved

# Google's rule, the narrowest one.
_KEY = re.compile(r"[A-Za-z_][A-Za-z0-9_]{0,63}")
_NOT_IN_KEY = re.compile(r"[^A-Za-z0-9_]+")
MAX_KEY_CHARS: Final = 64
_CHOICES = ("anyOf", "oneOf")
# Providers refuse these at the root.
_NOT_AT_ROOT = (*_CHOICES, "allOf", "enum", "const", "not", "if", "then", "else", "$ref")
_ANYTHING = {"anyOf": [{"type": kind} for kind in ("string", "number", "boolean", "object")]}


class Fitted:
    """Fits a sound schema of an object: what its root combines becomes properties, odd keys are renamed.

    ``parameters`` is the schema that providers take.
    """

    def __init__(self, schema: Schema) -> None:
        self._root = schema
        self._renamed = _renamed(set(_property_names(schema)))
        # The server's own keys, by those that are offered.
        self._own = {new: old for old, new in self._renamed.items()}
        self._defs: dict[str, Any] = {}
        root = {name: value for name, value in schema.items() if name not in _NOT_AT_ROOT}
        properties, required = self._folded(schema, set())
        if len(root) < len(schema):
            # What a choice forbids beside its own properties another one may ask for.
            root.pop("additionalProperties", None)
        root |= {"type": "object", "properties": properties, "required": sorted(required)}
        self.parameters = self._sound(root)
        if self._defs:
            self.parameters["$defs"] = self._defs

    def restore(self, arguments: Mapping[str, Any]) -> dict[str, Any]:
        """Name arguments as the server does, at any depth that the schema describes."""
        return dict(self._restored(arguments, [self.parameters]))

    def _restored(self, value: Any, schemas: Sequence[Any]) -> Any:
        """Restore a value, given the schemas that describe it."""
        every = list(_described(schemas, self.parameters)) if isinstance(value, (dict, list)) else []
        if isinstance(value, list):
            return [self._restored(item, [each.get("items") for each in every]) for item in value]
        if not isinstance(value, dict):
            return value
        restored: dict[str, Any] = {}
        for name, item in value.items():
            known = [each["properties"][name] for each in every if name in each.get("properties", ())]
            own = str(self._own.get(name, name)) if known else name
            more = [each.get("additionalProperties") for each in every]
            restored[own] = self._restored(item, known or more)
        return restored

    def _folded(self, schema: Schema, seen: set[int]) -> tuple[dict[str, Any], set[str]]:
        """Gather the properties of all that a root combines, and which of them every choice requires."""
        seen.add(id(schema))
        properties, required = dict(schema.get("properties", {})), set(schema.get("required", ()))
        combined = {name: schema.get(name, ()) for name in _CHOICES}
        combined["allOf"] = [*schema.get("allOf", ()), resolved(schema.get("$ref"), self._root)]
        combined["if"] = [schema.get("then"), schema.get("else")]
        for name, parts in combined.items():
            found = [self._folded(each, seen) for each in parts if _is_new(each, seen)]
            for key, value in ((key, value) for more, _ in found for key, value in more.items()):
                same = properties.setdefault(key, value) == value
                properties[key] = value if same else _either(properties[key], value)
            asked = [needs for _, needs in found]
            if name == "allOf":
                required.update(*asked)
            elif asked and name in _CHOICES:
                required |= set.intersection(*asked)
        return properties, required

    def _sound(self, schema: Any) -> dict[str, Any]:
        """Return a schema with known keywords alone, items for each array, and keys of every provider."""
        # A provider takes no bare true or false for a schema.
        if not isinstance(schema, dict):
            return {}
        sound: dict[str, Any] = {}
        for name, value in schema.items():
            if name in ("properties", "patternProperties", "dependentSchemas"):
                key = self._key if name == "properties" else str
                sound[name] = {key(each): self._sound(inner) for each, inner in value.items()}
            elif name in ("required", "type") and isinstance(value, list):
                known = schema.get("properties", {})
                kept = [self._key(each) for each in value if name == "type" or each in known]
                sound |= {name: list(dict.fromkeys(kept))} if kept else {}
            elif name == "$ref":
                sound[name] = self._reference(value)
            elif isinstance(value, list) and name in (*MANY, "items"):
                sound |= {name: [self._sound(each) for each in value]} if value else {}
            elif name in ONE:
                sound[name] = self._sound(value) if isinstance(value, dict) else value
            elif name in KEYWORDS and name not in NAMED and (value != [] or name == "default"):
                sound[name] = value
        return _updated(sound)

    def _key(self, name: str) -> str:
        return self._renamed.get(name, name)

    def _reference(self, ref: str) -> str:
        """Put what a reference names into ``$defs``: where it stood may be renamed or folded."""
        if ref == "#":
            return ref
        name = _marked(_plain(ref.rpartition("/")[2]), ref)
        if name not in self._defs:
            self._defs[name] = {}
            self._defs[name] = self._sound(resolved(ref, self._root))
        return f"#/$defs/{name}"


def _updated(schema: dict[str, Any]) -> dict[str, Any]:
    """Say what each array holds by one schema, and write exclusive limits as numbers.

    In earlier drafts an array has a schema for each place, and a flag says what ``minimum`` means.
    """
    kinds, items = schema.get("type"), schema.get("items")
    if "array" in (kinds if isinstance(kinds, list) else [kinds]) or {"items", "prefixItems"} & schema.keys():
        places = [*schema.pop("prefixItems", ()), *(items if isinstance(items, list) else [items])]
        each = [place for place in places if isinstance(place, dict) and place]
        schema["items"] = {"anyOf": each} if len(each) > 1 else each[0] if each else dict(_ANYTHING)
    for limit, exclusive in (("minimum", "exclusiveMinimum"), ("maximum", "exclusiveMaximum")):
        if isinstance(schema.get(exclusive), bool) and schema.pop(exclusive) and limit in schema:
            schema[exclusive] = schema.pop(limit)
    return schema


def _is_new(schema: Any, seen: set[int]) -> bool:
    # References may lead back, and double at each step.
    return isinstance(schema, dict) and id(schema) not in seen


def _either(one: Any, other: Any) -> dict[str, Any]:
    both = one["anyOf"] if isinstance(one, dict) and set(one) == {"anyOf"} else [one]
    return {"anyOf": both if other in both else [*both, other]}


def _renamed(names: set[str]) -> dict[str, str]:
    """Map each key that some provider refuses to another one that nothing in the schema bears."""
    renamed: dict[str, str] = {}
    for name in sorted(name for name in names if _KEY.fullmatch(name) is None):
        plain = _plain(name)
        is_free = len(plain) <= MAX_KEY_CHARS and plain not in names | {*renamed.values()}
        renamed[name] = plain if is_free else _marked(plain, name)
    return renamed


def _plain(name: str) -> str:
    plain = _NOT_IN_KEY.sub("_", name).strip("_") or "key"
    return f"_{plain}" if plain[0].isdecimal() else plain


def _marked(plain: str, name: str) -> str:
    return f"{plain[: MAX_KEY_CHARS - 7]}_{sha256(name.encode('utf-8', 'replace')).hexdigest()[:6]}"


def _property_names(part: Any) -> Iterator[str]:
    if isinstance(part, dict) and isinstance(part.get("properties"), dict):
        yield from part["properties"]
    inner = part.values() if isinstance(part, dict) else part if isinstance(part, list) else ()
    for each in inner:
        yield from _property_names(each)


def _described(schemas: Iterable[Any], root: Schema) -> Iterator[Schema]:
    """Yield schemas and all that they combine or refer to, each once."""
    left, seen = list(schemas), set[int]()
    while left:
        each = left.pop()
        if _is_new(each, seen):
            seen.add(id(each))
            yield each
            left += [part for name in (*_CHOICES, "allOf") for part in each.get(name, ())]
            left += [each.get("then"), each.get("else"), resolved(each.get("$ref"), root)]
