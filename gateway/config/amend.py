"""Changes keys of a person's configuration file, all in one write; its comments and everything else stay."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import tomlkit
from tomlkit.exceptions import TOMLKitError

from gateway.config import edit
from gateway.config.toml_lines import KeyPath, with_key
from gateway.errors import GatewayError

Values = Mapping[KeyPath, str | bool | int]


def amended(text: str, values: Values, gone: Sequence[KeyPath] = ()) -> str:
    """Return a sound document with these keys, and without those that are to be gone.

    Raises:
        GatewayError: a table is one that cannot be changed so.
    """
    try:
        document = tomlkit.parse(text)
        for path in gone:
            _table(document, path).pop(path[-1], None)
        missing = [path for path in values if path[-1] not in _table(document, path)]
        for path in values.keys() - missing:
            _table(document, path)[path[-1]] = values[path]
        new: str | None = tomlkit.dumps(document)
    except (TOMLKitError, TypeError, AttributeError):
        new, missing = None, []
    for path in missing:
        # Below the head of its table: the comment at its end is often that of the next one.
        new = None if new is None else with_key(new, path, json.dumps(values[path], ensure_ascii=False))
    if new is None:
        names = ", ".join(".".join(path) for path in values)
        raise GatewayError(f"the configuration cannot be changed here: {names}", hint="write them by hand")
    return new


def amend(file: Path, values: Values, gone: Sequence[KeyPath] = ()) -> None:
    """Write ``amended`` in the place of a file, which is made where there is none.

    Raises:
        GatewayError: as ``amended``, or it cannot be written; the file is as it was.
    """
    edit.rewrite(file, lambda text: amended(text, values, gone), cure="look at its permissions")


def _table(document: Any, path: KeyPath) -> Any:
    for name in path[:-1]:
        document = document.get(name, {})
    return document
