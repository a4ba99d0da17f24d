"""Schemas of servers become such as every provider takes, and arguments those that the server takes."""

from __future__ import annotations

import re
from typing import Any

import pytest

from session.mcp.fit import Fitted
from session.mcp.schema import fault_of

TEXT = {"type": "string"}
ROOT_REF = {"$ref": "#/$defs/a", "$defs": {"a": {"type": "object", "properties": {"x": TEXT}}}}
SCHEMAS: list[dict[str, Any]] = [
    {},
    {"anyOf": [{"properties": {"a": TEXT}, "required": ["a"]}, {"properties": {"b": TEXT}}]},
    {"oneOf": [{"properties": {"a": TEXT}}, {"properties": {"a": {"type": "integer"}}}], "not": {}},
    {"allOf": [{"properties": {"a": TEXT}, "required": ["a"]}], "properties": {"b": TEXT}, "enum": [{}]},
    ROOT_REF,
    {
        "properties": {
            "list": {"type": "array"},
            "deep": {"items": {"type": ["array", "null"]}, "type": "array"},
        }
    },
    {"properties": {"pair": {"type": "array", "items": [TEXT, {"type": "number"}]}}},
    {
        "properties": {
            "t": {"type": "array", "prefixItems": [TEXT]},
            "o": {"properties": {"l": {"type": "array"}}},
        }
    },
    {"properties": {"$filter": TEXT, "filter": TEXT, "a b": TEXT, "x" * 90: TEXT, "ü": True}},
]


def refused(schema: Any, *, root: bool = True) -> str:
    """Say what some provider refuses about a schema."""
    if root and (
        schema.get("type") != "object" or {"anyOf", "oneOf", "allOf", "enum", "not"} & schema.keys()
    ):
        return "root"
    if not isinstance(schema, dict):
        return "no object"
    kinds = schema.get("type")
    if "array" in (kinds if isinstance(kinds, list) else [kinds]) and not isinstance(
        schema.get("items"), dict
    ):
        return "items"
    for name, each in schema.get("properties", {}).items():
        if not re.fullmatch(r"[a-zA-Z0-9_.-]{1,64}", name) or (found := refused(each, root=False)):
            return f"{name}: {found if re.fullmatch(r'[a-zA-Z0-9_.-]{1,64}', name) else 'key'}"
    return refused(schema["items"], root=False) if "items" in schema else ""


@pytest.mark.parametrize("schema", SCHEMAS)
def test_no_provider_refuses_what_is_offered(schema: dict[str, Any]) -> None:
    assert fault_of(schema) == "" or "items" in str(schema)
    assert refused(Fitted(schema).parameters) == ""


def test_choices_at_the_root_are_properties() -> None:
    """What all choices ask for is required, what one asks for is not; two kinds of one name are a choice."""
    one = {"properties": {"a": TEXT, "id": TEXT}, "required": ["id", "a"]}
    two = {"properties": {"a": {"type": "integer"}, "id": TEXT}, "required": ["id"]}

    found = Fitted({"anyOf": [one, two]}).parameters

    assert found["required"] == ["id"]
    assert found["properties"] == {"a": {"anyOf": [TEXT, {"type": "integer"}]}, "id": TEXT}


def test_arguments_go_back_under_the_servers_names() -> None:
    """At any depth that the schema describes; what it leaves open stays as it is."""
    row = {"type": "object", "properties": {"$top": {"type": "integer"}}}
    free = {"type": "object"}
    schema = {"properties": {"$filter": TEXT, "rows": {"type": "array", "items": row}, "free": free}}
    fit = Fitted({**schema, "required": ["$filter"]})

    assert fit.parameters["required"] == ["filter"]
    assert fit.restore({"filter": "x", "rows": [{"top": 3}], "free": {"filter": 1, "top": 2}}) == {
        "$filter": "x",
        "rows": [{"$top": 3}],
        "free": {"filter": 1, "top": 2},
    }
