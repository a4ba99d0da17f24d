"""Reads and rewrites a person's configuration file; its comments, permissions and owner stay."""

from __future__ import annotations

import errno
import json
import os
import tomllib
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

import tomlkit
from tomlkit.container import OutOfOrderTableProxy
from tomlkit.exceptions import TOMLKitError
from tomlkit.items import InlineTable

from durable import like, make_folder, replacing, write_all
from gateway.config.finding import MAX_BYTES, contents
from gateway.config.toml_lines import KeyPath, lines_of
from gateway.errors import GatewayError

_MARK = b"\xef\xbb\xbf"


def read(file: Path, at_most: int | None = None) -> bytes:
    """Read a person's file whole. Raises GatewayError where that cannot be done, or it is longer."""
    try:
        return file.read_bytes() if at_most is None else contents(file, at_most)
    except OSError as error:
        hint = "choose another file" if error.errno == errno.EFBIG else "check its permissions"
        raise GatewayError(f"{file} cannot be read: {error.strerror}", hint=hint) from error


def standing(file: Path, path: KeyPath) -> tuple[object, int] | None:
    """Return the value of a key in a sound file, and its line from 1; None where it is not there."""
    text = read(file, MAX_BYTES).removeprefix(_MARK).decode()
    found: object = tomllib.loads(text)
    for name in path:
        if not isinstance(found, Mapping) or name not in found:
            return None
        found = found[name]
    lines = lines_of(text)
    return found, lines.get(path) or lines.get(path[:1]) or 1


def rewrite(file: Path, change: Callable[[str], str], *, cure: str) -> None:
    """Put what ``change`` makes of a file's text in its place; it is given nothing where there is no file.

    A crash leaves the old file or the new one; a link stays one.

    Raises:
        GatewayError: it cannot be written; the file is as it was.
    """
    target = Path(os.path.realpath(file))
    old = read(target) if target.exists() else b""
    mark = _MARK if old.startswith(_MARK) else b""
    new = change(old.removeprefix(_MARK).decode())
    temp = target.with_name(f".{target.name[:200]}.tmp")

    def unchanged() -> None:
        if (read(target) if target.exists() else b"") != old:
            raise GatewayError(f"{file} was changed by another program just now", hint="try again")

    try:
        make_folder(target.parent)
        with replacing(target, temp=temp, check=unchanged) as fd:
            if target.exists():
                like(fd, target)
            write_all(fd, mark + new.encode())
    except OSError as error:
        raise GatewayError(f"{file} cannot be written: {error.strerror}", hint=cure) from error


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
    rewrite(file, lambda text: amended(text, values, gone), cure="check its permissions")


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
