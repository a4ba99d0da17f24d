"""JSON Schemas of servers that nobody vouches for: checked within bounds, made fit for every provider.

A schema may be built to be endless: references that double at each step, patterns that no search survives.
So nothing here searches a pattern, follows an address, or takes more steps than it is given.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from hashlib import sha256
from typing import Any, Final

from session.tools import TYPES

MAX_SCHEMA_BYTES: Final = 32 * 1024
MAX_DEPTH: Final = 32
# Parts of a schema once its references are put in; whoever reads it, the model's provider too, may do that.
MAX_EXPANDED: Final = 20_000
MAX_STEPS: Final = 50_000

Schema = Mapping[str, Any]
NAMED = ("properties", "patternProperties", "$defs", "definitions", "dependentSchemas")
MANY = ("anyOf", "oneOf", "allOf", "prefixItems")
ONE = ("items", "additionalProperties", "not", "contains", "propertyNames", "if", "then", "else")
_COUNTS = tuple(f"{bound}{what}" for bound in ("min", "max") for what in ("Length", "Items", "Properties"))
# What a schema may say, and of which types; the rest is not offered to a model.
KEYWORDS: Mapping[str, tuple[type, ...]] = {
    **dict.fromkeys(NAMED, (dict,)),
    **dict.fromkeys((*MANY, "required", "enum", "examples"), (list,)),
    **dict.fromkeys(("minimum", "maximum", "multipleOf"), (int, float)),
    **dict.fromkeys(_COUNTS, (int,)),
    # In an earlier draft these are flags.
    **dict.fromkeys(("exclusiveMinimum", "exclusiveMaximum"), (int, float, bool)),
    **dict.fromkeys(("title", "description", "format", "pattern", "$ref"), (str,)),
    **dict.fromkeys(("uniqueItems", "nullable", "deprecated"), (bool,)),
    **dict.fromkeys(("type", "default", "const"), (object,)),
}


def fault_of(schema: object) -> str:
    """Say why a schema cannot be offered to a model; empty where nothing is wrong with it."""
    if not isinstance(schema, dict):
        return "its schema is not an object"
    kinds = schema.get("type", "object")
    if "object" not in (kinds if isinstance(kinds, list) else [kinds]):
        return "its schema does not describe an object"
    if not isinstance(schema.get("properties", {}), dict):
        return "the properties in its schema are not an object"
    try:
        size = len(json.dumps(schema, ensure_ascii=False).encode("utf-8", "replace"))
        if size > MAX_SCHEMA_BYTES:
            return f"its schema has {size} bytes; the limit is {MAX_SCHEMA_BYTES}"
        _Expanded(schema).of(schema, 0)
        if fault := _unsound(schema, "$"):
            return fault
    except (_TooMuch, RecursionError, ValueError) as error:
        return str(error) or "its schema is nested too deeply"
    return ""


def misfit(value: object, schema: Schema) -> str:
    """Say where a value does not fit a schema, as ``$.rows[0]: not of type string``; empty where it does.

    Types, required and further properties, items, ``enum``, ``const``, ``anyOf``, ``oneOf``, ``allOf`` and
    references within the schema are looked at, the rest of JSON Schema is not.

    Raises:
        ValueError: the schema asks for more than ``MAX_STEPS`` looks.
    """
    return _Fitting(schema).look(value, schema, "$", 0)


def _unsound(schema: object, at: str) -> str:
    """Say where a schema is none: a provider refuses the whole request for one bad word in a tool's."""
    if isinstance(schema, bool):
        return ""
    if isinstance(schema, list) and at.endswith(".items"):
        # As an earlier draft has it: one for each place.
        return next((fault for each in schema if (fault := _unsound(each, at[:-1]))), "")
    if not isinstance(schema, dict):
        return f"its schema is not valid at {at}"
    for name, kinds in KEYWORDS.items():
        # To Python, True is a number.
        given = schema.get(name)
        is_flag = isinstance(given, bool) and not {bool, object} & {*kinds}
        if name in schema and (not isinstance(given, kinds) or is_flag):
            return f"its schema is not valid at {at}: {name}"
    if (bad := [name for name in _COUNTS if schema.get(name, 0) < 0]) or schema.get("multipleOf", 1) <= 0:
        return f"its schema is not valid at {at}: {bad[0] if bad else 'multipleOf'}"
    types = schema.get("type", "object")
    if not all(
        isinstance(each, str) and each in TYPES for each in (types if isinstance(types, list) else [types])
    ):
        return f"its schema is not valid at {at}: type"
    if not all(isinstance(each, str) for each in schema.get("required", ())):
        return f"its schema is not valid at {at}: required"
    inner = [(name, schema[name]) for name in ONE if name in schema]
    inner += [(name, each) for name in MANY for each in schema.get(name, ())]
    inner += [
        (f"{name}.{key}", each) for name in NAMED if name in schema for key, each in schema[name].items()
    ]
    return next((fault for name, each in inner if (fault := _unsound(each, f"{at}.{name}"))), "")


class _TooMuch(ValueError):
    pass


def resolved(ref: object, root: Schema) -> object:
    """Return the part of a schema that a reference within it names; None where it names none."""
    if not isinstance(ref, str) or (ref != "#" and not ref.startswith("#/")):
        return None
    found: object = root
    for part in ref[1:].split("/")[1:]:
        name = part.replace("~1", "/").replace("~0", "~")
        if isinstance(found, dict) and name in found:
            found = found[name]
        elif isinstance(found, list) and name.isdecimal() and int(name) < len(found):
            found = found[int(name)]
        else:
            return None
    return found


class _Expanded:
    """Counts the parts of a schema whose references are put in; one that leads back to itself counts once."""

    def __init__(self, root: Schema) -> None:
        self._root = root
        self._known: dict[str, int] = {}

    def of(self, part: object, depth: int) -> int:
        if depth > MAX_DEPTH:
            raise _TooMuch(f"its schema is nested deeper than {MAX_DEPTH}")
        if isinstance(part, dict):
            size = 1 + sum(self.of(each, depth + 1) for each in part.values())
            if "$ref" in part:
                size += self._named(part["$ref"], depth)
        elif isinstance(part, list):
            size = 1 + sum(self.of(each, depth + 1) for each in part)
        else:
            size = 1
        if size > MAX_EXPANDED:
            raise _TooMuch(f"its schema has over {MAX_EXPANDED} parts once references are resolved")
        return size

    def _named(self, ref: object, depth: int) -> int:
        # A property may be called "$ref".
        if not isinstance(ref, str):
            return 0
        if not ref.startswith("#"):
            raise _TooMuch("its schema refers to something outside of it")
        if ref not in self._known:
            self._known[ref] = 1
            there = resolved(ref, self._root)
            if there is not None and (fault := _unsound(there, ref)):
                raise _TooMuch(fault)
            self._known[ref] = self.of(there, depth + 1)
        return self._known[ref]


class _Fitting:
    def __init__(self, root: Schema) -> None:
        self._root = root
        self._left = MAX_STEPS

    def look(self, value: object, schema: object, at: str, depth: int) -> str:
        self._left -= 1
        if self._left < 0 or depth > MAX_DEPTH * 2:
            raise ValueError("the schema of the result is too complex")
        if schema is False:
            return f"{at}: not allowed"
        if not isinstance(schema, dict):
            return ""
        there = resolved(schema.get("$ref"), self._root)
        if there is not None and (found := self.look(value, there, at, depth + 1)):
            return found
        return (
            _of_itself(value, schema, at)
            or self._choices(value, schema, at, depth)
            or self._inside(value, schema, at, depth)
        )

    def _choices(self, value: object, schema: Schema, at: str, depth: int) -> str:
        for each in _list(schema, "allOf"):
            if found := self.look(value, each, at, depth + 1):
                return found
        for name, most in (("anyOf", None), ("oneOf", 1)):
            choices = _list(schema, name)
            fitting = sum(not self.look(value, each, at, depth + 1) for each in choices)
            if choices and (not fitting or (most is not None and fitting > most)):
                return f"{at}: fits {fitting} of {name}"
        return ""

    def _inside(self, value: object, schema: Schema, at: str, depth: int) -> str:
        if isinstance(value, list):
            for number, each in enumerate(value):
                if found := self.look(each, schema.get("items", True), f"{at}[{number}]", depth + 1):
                    return found
        if not isinstance(value, dict):
            return ""
        known = schema.get("properties")
        known = known if isinstance(known, dict) else {}
        # With patterns it is not known which names are further ones.
        rest = schema.get("additionalProperties", True) if "patternProperties" not in schema else True
        for name, each in value.items():
            if found := self.look(each, known.get(name, rest), f"{at}.{name}", depth + 1):
                return found
        return ""


def _of_itself(value: object, schema: Schema, at: str) -> str:
    wanted = schema.get("type")
    types = [each for each in (wanted if isinstance(wanted, list) else [wanted]) if isinstance(each, str)]
    if types and not any(_is_a(value, each) for each in types):
        return f"{at}: not of type {' or '.join(types)}"
    if isinstance(schema.get("enum"), list) and not any(_same(value, each) for each in schema["enum"]):
        return f"{at}: not one of the allowed values"
    if "const" in schema and not _same(value, schema["const"]):
        return f"{at}: not the required value"
    if isinstance(value, dict):
        missing = [each for each in _list(schema, "required") if isinstance(each, str) and each not in value]
        return f"{at}: {missing[0]} is missing" if missing else ""
    return ""


def _list(schema: Schema, name: str) -> list[Any]:
    found = schema.get(name)
    return found if isinstance(found, list) else []


def _is_a(value: object, wanted: str) -> bool:
    if isinstance(value, bool):
        return wanted == "boolean" or wanted not in TYPES
    if wanted == "integer" and isinstance(value, float):
        return value.is_integer()
    # A type that JSON Schema does not know says nothing.
    return isinstance(value, TYPES.get(wanted, object))


def _same(value: object, other: object) -> bool:
    """Compare as JSON does, to which True is not 1."""
    return value == other and isinstance(value, bool) == isinstance(other, bool)


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
    left, seen = list(schemas), set[int]()
    while left:
        each = left.pop()
        if _is_new(each, seen):
            seen.add(id(each))
            yield each
            left += [part for name in (*_CHOICES, "allOf") for part in each.get(name, ())]
            left += [each.get("then"), each.get("else"), resolved(each.get("$ref"), root)]
