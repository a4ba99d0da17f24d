"""JSON Schemas of servers that nobody vouches for: looked at within bounds, and held against what came.

A schema may be built to be endless: references that double at each step, patterns that no search survives.
So nothing here searches a pattern, follows an address, or takes more steps than it is given.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
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
        if "$ref" in schema and (found := self._by_reference(value, schema["$ref"], at, depth)):
            return found
        return (
            _of_itself(value, schema, at)
            or self._choices(value, schema, at, depth)
            or self._inside(value, schema, at, depth)
        )

    def _by_reference(self, value: object, ref: object, at: str, depth: int) -> str:
        there = resolved(ref, self._root)
        return self.look(value, there, at, depth + 1) if there is not None else ""

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
