"""Where the configuration and the workspace lie, found in a few milliseconds: nothing is checked here."""

from __future__ import annotations

import contextlib
import errno
import os
import tomllib
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

PREFIX = "CHAT_GATEWAY_"
DEFAULT_WORKSPACE = "~/.chat-gateway"
MAX_BYTES = 16 * 2**20


def find_file(config_file: Path | None = None, environ: Mapping[str, str] | None = None) -> Path | None:
    """Say which file is read: the one named, else the first of the usual places that is there."""
    environ = os.environ if environ is None else environ
    if config_file is not None:
        return config_file
    if named := environ.get(f"{PREFIX}CONFIG"):
        return expand(named, environ)
    usual = (Path("chat-gateway.toml"), usual_file(environ))
    return next((path for path in usual if os.path.lexists(path)), None)


def contents(file: Path, at_most: int = MAX_BYTES) -> bytes:
    """Read a file that a person named.

    Raises:
        OSError: it cannot be read, or is larger (EFBIG).
    """
    # What a name leads to may have no end, as devices have none.
    with file.open("rb") as opened:
        data = opened.read(at_most + 1)
    if len(data) > at_most:
        raise OSError(errno.EFBIG, f"over {at_most} bytes", str(file))
    return data


def named_files(config_file: Path | None = None, environ: Mapping[str, str] | None = None) -> list[Path]:
    """List the configuration file and the files that its keys ``…_file`` name, of those that are there."""
    environ = os.environ if environ is None else environ
    found = find_file(config_file, environ)
    if found is None or not found.is_file():
        return []
    named = _named_in(tomllib.loads(contents(found).decode("utf-8-sig")), found.parent, environ)
    return [found, *sorted({path for path in named if path.is_file()})]


def _named_in(table: Mapping[str, object], base: Path, environ: Mapping[str, str]) -> Iterator[Path]:
    for name, value in table.items():
        if isinstance(value, Mapping):
            yield from _named_in(value, base, environ)
        elif name.endswith("_file") and isinstance(value, str):
            yield base / expand(value, environ)


def usual_file(environ: Mapping[str, str] | None = None) -> Path:
    """Say where a person's configuration is made when there is none yet."""
    return expand("~/.config/chat-gateway/config.toml", os.environ if environ is None else environ)


def glance(config_file: Path | None, workspace: Path | None) -> tuple[Path, dict[str, Any]]:
    """Return the workspace and what the file holds, as far as both can be seen; of use for hints alone."""
    file = find_file(config_file)
    found: dict[str, Any] = {}
    with contextlib.suppress(OSError, ValueError):
        found = tomllib.loads(contents(file).decode("utf-8-sig")) if file is not None else {}
    named = os.environ.get(f"{PREFIX}WORKSPACE")
    if workspace is not None or named:
        return expand(str(workspace or named), os.environ), found
    written = found.get("workspace")
    base = file.parent if file is not None and isinstance(written, str) else Path()
    return base / expand(written if isinstance(written, str) else DEFAULT_WORKSPACE, os.environ), found


def expand(path: str, environ: Mapping[str, str]) -> Path:
    """Put the home folder in the place of ``~``."""
    home = environ.get("HOME")
    if home and (path == "~" or path.startswith("~/")):
        return Path(home + path[1:])
    try:
        return Path(path).expanduser()
    # There is no such user, or nobody knows the home folder.
    except RuntimeError:
        return Path(path)
