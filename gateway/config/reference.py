"""What each key of the configuration means, in words and as a JSON Schema."""

from __future__ import annotations

import ast
import contextlib
import inspect
import textwrap
from collections.abc import Iterator, Mapping
from itertools import pairwise
from typing import Any, Final, get_args

from pydantic import BaseModel

from gateway.config.schema import ADDRESSES

# Of a secret, which a header has to carry.
_WITHOUT_SPACES: Final = "^[!-~]*$"
# One model compares the texts of all agents.
_REFUSED: Final = ("agents.*.model.embedding",)


def json_schema(settings: type[BaseModel]) -> dict[str, Any]:
    """Return the JSON Schema of a configuration file, as editors of TOML take it.

    Each key has its default, its range and its words, with the unit of a number; each secret may also be
    given as a file's name. It needs nothing of a later draft than 7, which is as far as some editors go.
    """
    schema = settings.model_json_schema()
    tables = schema.pop("$defs", {})
    # Every key has a default, the workspace too, though its model asks for one.
    schema.pop("required", None)
    inlined = _inlined(schema, tables, settings, ())
    inlined["properties"]["workspace"]["default"] = "~/.chat-gateway"
    # In a file the keys at the top stand before the first table.
    inlined["properties"] = dict(sorted(inlined["properties"].items(), key=lambda each: is_table(each[1])))
    return {"$schema": "https://json-schema.org/draft/2020-12/schema", **inlined, "title": "chat-gateway"}


def _inlined(
    table: dict[str, Any], tables: Mapping[str, Any], model: type[BaseModel], above: tuple[str, ...]
) -> dict[str, Any]:
    """Put each table in the place of its name, with the words of the settings' models."""
    more = table.get("additionalProperties", False)
    found: dict[str, Any] = {"type": "object", "additionalProperties": more, "properties": {}}
    if "required" in table:
        found["required"] = table["required"]
    words = _words_below(model)
    fields = {info.alias or name: (name, info) for name, info in model.model_fields.items()}
    for name, value in table["properties"].items():
        path, entry = (*above, name), _plain(value)
        if ".".join(path) in _REFUSED:
            continue
        field, info = fields[name]
        described = words.get(field, "")
        if (inner := _model_in(info.annotation)) is not None:
            described = described or " ".join((inner.__doc__ or "").split())
        for at, below in ((None, path), ("items", (*path, "*")), ("additionalProperties", (*path, "*"))):
            holder = entry if at is None else entry.get(at)
            if inner is not None and isinstance(holder, dict) and "$ref" in holder:
                whole = _inlined(tables[holder["$ref"].rpartition("/")[2]], tables, inner, below)
                entry = whole if at is None else entry | {at: whole}
        if entry.get("writeOnly"):
            entry["pattern"] = _WITHOUT_SPACES
        found["properties"][name] = entry | ({"description": described} if described else {})
        if entry.get("writeOnly") or path in ADDRESSES:
            file = f"File that contains `{name}`."
            found["properties"][f"{name}_file"] = {"type": "string", "description": file}
    return found


def _words_below(model: type[BaseModel]) -> dict[str, str]:
    """Read the text below each field of a table, with those of its bases.

    Pydantic would read them at each start of the program.
    """
    found: dict[str, str] = {}
    for kind in reversed(model.__mro__):
        # A table that was put together has no text of its own.
        with contextlib.suppress(OSError, TypeError):
            (made,) = ast.parse(textwrap.dedent(inspect.getsource(kind))).body
            for field, text in pairwise(made.body if isinstance(made, ast.ClassDef) else ()):
                if not (isinstance(field, ast.AnnAssign) and isinstance(field.target, ast.Name)):
                    continue
                if isinstance(text, ast.Expr) and isinstance(text.value, ast.Constant):
                    found[field.target.id] = " ".join(str(text.value.value).split())
    return found


def _model_in(kind: object) -> type[BaseModel] | None:
    """Return the table that a field is or holds."""
    if isinstance(kind, type) and issubclass(kind, BaseModel):
        return kind
    return next((found for each in get_args(kind) if (found := _model_in(each)) is not None), None)


def _plain(entry: dict[str, Any]) -> dict[str, Any]:
    """Leave out what TOML has no use for: null, and titles made of names."""
    kept = {name: value for name, value in entry.items() if name not in ("title", "anyOf")}
    for choice in entry.get("anyOf", ()):
        if choice.get("type") != "null":
            kept |= choice
    if kept.get("default", ...) is None:
        del kept["default"]
    if "pattern" in kept:
        # Python's end of text; in the regular expressions of JSON Schema it would be the letter.
        kept["pattern"] = kept["pattern"].replace(r"\Z", "$")
    return kept


def is_table(entry: Mapping[str, Any]) -> bool:
    """Say whether a schema is that of a table."""
    return entry.get("type") == "object"


def keys(schema: Mapping[str, Any], above: tuple[str, ...] = ()) -> Iterator[tuple[str, dict[str, Any]]]:
    """Yield every table and key of a schema with its dotted name, a table before its keys.

    A table whose name people choose is ``*``, and so is one of a list: ``mcp.*.url``, ``bindings.*.agent``.
    """
    for name, entry in schema["properties"].items():
        path = (*above, name)
        yield ".".join(path), entry
        chosen = entry.get("additionalProperties") or entry.get("items")
        if "properties" in entry:
            yield from keys(entry, path)
        elif isinstance(chosen, dict) and "properties" in chosen:
            yield from keys(chosen, (*path, "*"))
