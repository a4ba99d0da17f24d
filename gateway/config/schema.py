"""What is known of each key: its type, what resembles it, the JSON Schema of all."""

from __future__ import annotations

import ast
import contextlib
import datetime
import difflib
import inspect
import textwrap
import types
from collections.abc import Iterator, Mapping
from itertools import pairwise
from typing import Any, Final, Literal, Union, get_args, get_origin, get_type_hints

import orjson
from pydantic import BaseModel, SecretStr
from pydantic.fields import FieldInfo

from gateway.config.toml_lines import KeyPath

# Addresses of servers, which may hold a password.
ADDRESSES: Final[tuple[KeyPath, ...]] = (("broker", "url"), ("state", "url"))
_NOUNS_OF_FAULTS = {"bool": "true or false", "dict": "a table", "model": "a table"}
_YES, _NO = ("true", "yes", "on", "1"), ("false", "no", "off", "0")


class Schema:
    """Every key of a tree of models, as a path from its root."""

    def __init__(self, root: type[BaseModel]) -> None:
        self._root: object = root
        self._fields = dict(_walk(root, ()))
        secrets = [path for path, info in self._fields.items() if _kind(info) is SecretStr]
        self.secrets: tuple[KeyPath, ...] = (*ADDRESSES, *secrets)
        self._names = [*self._fields, *((*path[:-1], f"{path[-1]}_file") for path in self.secrets)]

    def knows(self, path: KeyPath) -> bool:
        """Say whether there is such a key (or section, or a free key such as a person's name)."""
        if path in self._names or self.field(path) is not None:
            return True
        # A secret within a table whose name people choose may be given as a file's name as well.
        secret = self.field((*path[:-1], path[-1].removesuffix("_file")))
        return path[-1].endswith("_file") and secret is not None and _kind(secret) is SecretStr

    def field(self, path: KeyPath) -> FieldInfo | None:
        """Return what is known of a key; where people choose its name, what holds for each of them."""
        info, kind = None, self._root
        for name in path:
            if (info := _below(kind, name)) is None:
                return None
            kind = _kind(info)
        return info

    def misspelt(self, name: str) -> KeyPath | None:
        """Return the key whose parts, joined by one underscore each, make ``name``: ``http_port``."""
        plain = name.lower().replace("__", "_")
        return next((path for path in self._names if len(path) > 1 and "_".join(path) == plain), None)

    def nearest(self, path: KeyPath, *, whole: bool) -> KeyPath | None:
        """Return the key that ``path`` was most likely meant to be; only neighbours unless ``whole``."""
        neighbours = {name[-1]: name for name in self._names if name[:-1] == path[:-1]}
        above = self.field(path[:-1])
        table = _kind(above) if above is not None else None
        neighbours |= {name: (*path[:-1], name) for name in (_fields(table) if _is_model(table) else ())}
        cutoff = 0.6 if whole else 0.8
        if close := difflib.get_close_matches(path[-1], neighbours, 1, cutoff):
            return neighbours[close[0]]
        if not whole:
            return None
        if moved := [name for name in self._names if name[-1] == path[-1]]:
            return moved[0]
        # What else is in a table that exists is no more alike than the names of both tables are.
        if len(path) == 1 or path[:-1] in self._fields:
            return None
        dotted = {".".join(name): name for name in self._names}
        close = difflib.get_close_matches(".".join(path), dotted, 1, cutoff)
        return dotted[close[0]] if close else None


def expected(schema: Schema, path: KeyPath, value: object, fault: str) -> str:
    """Say what a key wants and what it got: the kind, and the value only where that is a plain number.

    Args:
        schema: of all keys.
        path: the key.
        value: what stands there.
        fault: pydantic's name of what is wrong, which knows the kind of a key that ``schema`` does not.
    """
    if fault == "missing":
        return "missing"
    item = bool(path) and path[-1].isdigit()
    info = schema.field(path[:-1] if item else path)
    if info is None or item:
        noun = _NOUNS_OF_FAULTS.get(fault.removesuffix("_type").removesuffix("_parsing"), "text in quotes")
        return f"expected {noun}, got {got(value)}"
    if fault == "string_pattern_mismatch":
        pattern = next(mark.pattern for mark in info.metadata if getattr(mark, "pattern", None))
        return f"expected text that fits {pattern}"
    kind = _kind(info)
    if get_origin(kind) is Literal:
        choices = [str(choice) for choice in get_args(kind)]
        near = difflib.get_close_matches(value, choices, 1) if isinstance(value, str) else []
        words = " or ".join(f'"{choice}"' for choice in choices)
        return f"expected {words}" + (f'; nearest: "{near[0]}"' if near else "")
    each = get_args(kind)[-1] if get_origin(kind) is Mapping else None
    if _is_model(each) or get_origin(each) is Mapping:
        return f"expected a table for each name, as [{'.'.join(path)}.NAME], got {got(value)}"
    number = type(value) in (int, float) and kind in (int, float)
    return f"expected {_noun(kind)}{_bounds(info)}, got {value if number else got(value)}"


def got(value: object) -> str:
    """Name the kind of a TOML value."""
    if isinstance(value, bool):
        return "true" if value else "false"
    kinds: dict[type, str] = {int: "a whole number", float: "a number", str: "text"}
    kinds |= {list: "a list", tuple: "a list", dict: "a table"}
    kinds |= {datetime.date: "a date", datetime.datetime: "a date", datetime.time: "a time"}
    if isinstance(value, str) and any("\ud800" <= character <= "\udfff" for character in value):
        return "text that is not UTF-8"
    return "an empty text" if value == "" else kinds.get(type(value), "something else")


def parse_text(text: str, info: FieldInfo | None) -> object:
    """Read a variable's text as its key's type; what cannot be read stays text, which the check refuses."""
    kind = str if info is None else _kind(info)
    try:
        if kind is bool:
            return _flag(text)
        if kind is int:
            return int(text)
        if kind is float:
            return float(text)
        if get_origin(kind) is tuple or get_origin(kind) is Mapping or _is_model(kind):
            return _collection(text, as_list=get_origin(kind) is not None)
    except ValueError:
        pass
    return text


def _flag(text: str) -> object:
    word = text.strip().lower()
    return True if word in _YES else False if word in _NO else text


def _collection(text: str, *, as_list: bool) -> object:
    if text.lstrip()[:1] in ("[", "{"):
        found: object = orjson.loads(text)
        return found
    return [word.strip() for word in text.split(",") if word.strip()] if as_list else text


def _walk(model: object, above: KeyPath) -> list[tuple[KeyPath, FieldInfo]]:
    found: list[tuple[KeyPath, FieldInfo]] = []
    for name, info in _fields(model).items():
        found.append(((*above, name), info))
        if _is_model(_kind(info)):
            found.extend(_walk(_kind(info), (*above, name)))
    return found


def _fields(table: Any) -> dict[str, FieldInfo]:
    return {info.alias or name: info for name, info in table.model_fields.items()}


def _kind(info: FieldInfo) -> object:
    """Return the type of a field, without its ``| None``."""
    kind: object = info.annotation
    if get_origin(kind) in (Union, types.UnionType):
        kind = next(each for each in get_args(kind) if each is not type(None))
    return kind


def _below(kind: Any, name: str) -> FieldInfo | None:
    """Return a key of a table, whose keys people may choose."""
    if get_origin(kind) is Mapping:
        each = get_args(kind)[-1]
        # Names of environment variables are told apart by case, which those of ours are not.
        return None if each is SecretStr else FieldInfo.from_annotation(each)
    if not _is_model(kind):
        return None
    if kind.model_config.get("extra") == "allow":
        return _fields(kind).get(name) or FieldInfo.from_annotation(_extra_of(kind))
    return _fields(kind).get(name)


def _extra_of(table: object) -> Any:
    """Return the type of the keys that people choose in a table that has keys of its own, too."""
    return get_args(get_type_hints(table)["__pydantic_extra__"])[-1]


def _is_model(kind: object) -> bool:
    return isinstance(kind, type) and issubclass(kind, BaseModel)


def _noun(kind: object) -> str:
    nouns: dict[object, str] = {bool: "true or false", int: "a whole number", float: "a number"}
    nouns |= {str: "text in quotes", SecretStr: "text in quotes"}
    if get_origin(kind) is tuple:
        return "a list of quoted texts"
    if get_origin(kind) is Mapping:
        is_list = get_origin(_kind(FieldInfo.from_annotation(get_args(kind)[-1]))) is tuple
        return f"a table with {'a list of quoted texts' if is_list else 'text in quotes'} for each name"
    if _is_model(kind):
        return "a table"
    return nouns.get(kind, "something else")


def _bounds(info: FieldInfo) -> str:
    """Put a field's limits into words: " from 1 to 256", " of at least 1", " above 0"."""
    limit: dict[str, object] = {}
    for mark in info.metadata:
        for name in ("ge", "gt", "le", "min_length"):
            if (bound := getattr(mark, name, None)) is not None:
                limit[name] = bound
    if "ge" in limit and "le" in limit:
        return f" from {limit['ge']} to {limit['le']}"
    if "gt" in limit and "le" in limit:
        return f" above {limit['gt']} and at most {limit['le']}"
    if "ge" in limit:
        return f" of at least {limit['ge']}"
    if "gt" in limit:
        return f" above {limit['gt']}"
    return ""


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
