"""Changes keys of a person's configuration file, all in one write; its comments and everything else stay."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import tomlkit
from tomlkit.container import OutOfOrderTableProxy
from tomlkit.exceptions import TOMLKitError
from tomlkit.items import InlineTable

from gateway.config import edit
from gateway.config.toml_lines import KeyPath
from gateway.errors import GatewayError

Values = Mapping[KeyPath, str | bool | int]


def amended(text: str, values: Values, gone: Sequence[KeyPath] = ()) -> str:
    """Return a sound document with these keys, and without those that are to be gone.

    Raises:
        GatewayError: a table is one that cannot be changed so.
    """
    newline = "\r\n" if "\r\n" in text else "\n"
    end = newline if text and not text.endswith("\n") else ""
    new = text + end
    try:
        for path, value in values.items():
            new = _with_key(new, path, value, newline)
        document = tomlkit.parse(new)
        for path in gone:
            _table(document, path).pop(path[-1], None)
        return tomlkit.dumps(document).removesuffix(end)
    except (TOMLKitError, TypeError, AttributeError) as error:
        names = ", ".join(".".join(path) for path in values)
        raise GatewayError(
            f"the configuration cannot be changed here: {names}", hint="edit the file by hand"
        ) from error


def amend(file: Path, values: Values, gone: Sequence[KeyPath] = ()) -> None:
    """Write ``amended`` in the place of a file, which is made where there is none.

    Raises:
        GatewayError: as ``amended``, or it cannot be written; the file is as it was.
    """
    edit.rewrite(file, lambda text: amended(text, values, gone), cure="check its permissions")


def _with_key(text: str, path: KeyPath, value: str | bool | int, newline: str) -> str:
    document = tomlkit.parse(text)
    table, key = _table(document, path), path[-1]
    if key in table or isinstance(table, InlineTable | OutOfOrderTableProxy):
        table[key] = value
    else:
        # Below the header of its table: a comment at its end is often that of the next one.
        line = tomlkit.parse(f"{key} = {json.dumps(value, ensure_ascii=False)}{newline}")
        table.value.body.insert(0, line.body[0])
    return tomlkit.dumps(document)


def _table(document: Any, path: KeyPath) -> Any:
    for name in path[:-1]:
        document = document.setdefault(name, tomlkit.table())
    return document
