"""What some provider or other refuses about the tools of a request, as their documentation says."""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Any

from jsonschema import Draft202012Validator, FormatChecker
from jsonschema.exceptions import SchemaError

from session.mcp.schema import resolved

MAX_TOOLS = 128
TOOL_NAME = re.compile(r"[a-zA-Z0-9_-]{1,64}")
# Google's rule; those of others are wider.
KEY = re.compile(r"[A-Za-z_][A-Za-z0-9_]{0,63}")
NOT_AT_ROOT = frozenset({"anyOf", "oneOf", "allOf", "enum", "const", "not", "if", "then", "else", "$ref"})
_NAMED = ("properties", "patternProperties", "$defs", "definitions", "dependentSchemas")
_LISTED = ("anyOf", "oneOf", "allOf", "prefixItems")
_SINGLE = ("items", "additionalProperties", "not", "contains", "if", "then", "else", "propertyNames")


def refused(body: Mapping[str, Any]) -> str:
    """Say what is wrong with the tools of a request; empty: nothing."""
    tools = [tool["function"] for tool in body.get("tools") or ()]
    if len(tools) > MAX_TOOLS:
        return f"Invalid 'tools': array too long. Expected maximum length {MAX_TOOLS}, got {len(tools)}."
    for tool in tools:
        if TOOL_NAME.fullmatch(tool["name"]) is None:
            return f"Invalid tools name: {tool['name']!r}"
        if fault := fault_of(tool["parameters"]):
            return f"Invalid schema for function {tool['name']!r}: {fault}"
    return ""


def fault_of(schema: Mapping[str, Any]) -> str:
    """Say what is wrong with the schema of a tool's arguments; empty: nothing."""
    if schema.get("type") != "object" or schema.keys() & NOT_AT_ROOT:
        return f"its root is {sorted(schema)}"
    try:
        # Patterns are JavaScript's.
        Draft202012Validator.check_schema(schema, format_checker=FormatChecker(()))
    except SchemaError as error:
        return f"no schema: {error.message}"
    return _fault(schema, schema)


def _fault(schema: Any, root: Mapping[str, Any]) -> str:
    if not isinstance(schema, dict):
        return "a schema is none"
    if "$ref" in schema and not isinstance(resolved(schema["$ref"], root), dict):
        return f"nothing at {schema['$ref']}"
    kinds = schema.get("type")
    is_array = "array" in (kinds if isinstance(kinds, list) else [kinds])
    if is_array and not (isinstance(schema.get("items"), dict) and schema["items"]):
        return "array schema missing items"
    properties = schema.get("properties", {})
    for name in properties:
        if KEY.fullmatch(name) is None:
            return f"the key {name!r}"
    if missing := set(schema.get("required", ())) - properties.keys():
        return f"required, and no property: {missing}"
    inner = [each for name in _NAMED for each in schema.get(name, {}).values()]
    inner += [each for name in _LISTED for each in schema.get(name, ())]
    inner += [schema[name] for name in _SINGLE if name in schema and not isinstance(schema[name], bool)]
    return next((fault for each in inner if (fault := _fault(each, root))), "")
