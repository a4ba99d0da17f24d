"""The headers that a server over HTTP is to see, which may be secrets: lines ``Name: value`` of a file."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Final

from session.mcp.errors import ServerFailed

MAX_BYTES: Final = 64 * 1024
_NAME = re.compile(r"[A-Za-z0-9!#$%&'*+.^_`|~-]+")


def read_headers(path: Path | None) -> dict[str, str]:
    """Read the file anew at each connection, so that a secret may be changed; none where there is none.

    Raises:
        ServerFailed: it cannot be read, or a line is no header; without a word of what stands there.
    """
    if path is None:
        return {}
    cure = "one header per line, as Name: value"
    try:
        # What a name leads to may have no end, as devices have none.
        with path.open("rb") as file:
            data = file.read(MAX_BYTES + 1)
    except OSError as error:
        raise ServerFailed(f"headers_file {path} cannot be read: {error.strerror}") from error
    if len(data) > MAX_BYTES:
        raise ServerFailed(f"headers_file {path} has over {MAX_BYTES} bytes", hint=cure)
    found: dict[str, str] = {}
    for number, line in enumerate(data.decode("utf-8-sig", "replace").splitlines(), 1):
        if not line.strip() or line.startswith("#"):
            continue
        name, colon, value = line.partition(":")
        if not colon or not _NAME.fullmatch(name) or not (value.isascii() and value.strip().isprintable()):
            raise ServerFailed(f"headers_file {path}, line {number}: not a header", hint=cure)
        found[name] = value.strip()
    return found
