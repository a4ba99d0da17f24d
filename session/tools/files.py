"""Tools that read, write, change and list files below the folder they are given."""

from __future__ import annotations

import os
from collections.abc import Mapping
from contextlib import suppress
from pathlib import Path
from typing import Any, ClassVar

from session.errors import ToolError
from session.models.model import ToolSpec
from session.tools import MAX_RESULT_BYTES, ToolPlace, parameters
from session.tools.beneath import (
    MAX_FILE_BYTES,
    below,
    change_file,
    is_temp,
    names_of,
    read_file,
    threaded,
    write_file,
)
from session.transcript.agent import scopes_below

MAX_ENTRIES = 2_000
_NOTE_ROOM = 200
_BLOCK_BYTES = 2**16
_PATH = {"type": "string", "description": "Path below the files folder, for example notes/today.txt"}


class Read:
    """The tool ``read``: lines of a text file."""

    repeatable: ClassVar[bool] = True
    spec: ClassVar[ToolSpec] = ToolSpec(
        "read",
        "Read a text file. Long files come in parts; the result says how to ask for the next.",
        parameters(
            "path",
            path=_PATH,
            offset={"type": "integer", "minimum": 1, "description": "First line, from 1"},
            limit={"type": "integer", "minimum": 1, "description": "How many lines"},
        ),
    )

    async def run(self, arguments: Mapping[str, Any], place: ToolPlace) -> str:
        """Return the asked lines, at most 64 kB of them."""
        path = arguments["path"]
        data = await threaded(path, lambda: read_file(place.folder, path))
        return _page(data, first=arguments.get("offset", 1), limit=arguments.get("limit"))


class Write:
    """The tool ``write``: a whole file, replaced in one step."""

    repeatable: ClassVar[bool] = False
    spec: ClassVar[ToolSpec] = ToolSpec(
        "write",
        "Write a text file, replacing its content; missing folders are created.",
        parameters(
            "path", "content", path=_PATH, content={"type": "string", "description": "The whole text"}
        ),
    )

    async def run(self, arguments: Mapping[str, Any], place: ToolPlace) -> str:
        """Replace the file; on return it survives a power cut."""
        path = arguments["path"]
        data = arguments["content"].encode("utf-8", "replace")
        if len(data) > MAX_FILE_BYTES:
            raise ToolError(f"{path}: over {MAX_FILE_BYTES} bytes; nothing was written")
        await threaded(path, lambda: write_file(place.folder, path, data))
        return f"wrote {len(data)} bytes to {path}"


class Edit:
    """The tool ``edit``: a passage of a text file, put in the place of another."""

    repeatable: ClassVar[bool] = False
    spec: ClassVar[ToolSpec] = ToolSpec(
        "edit",
        "Replace a passage of a text file. The old passage must occur exactly once, exactly as given.",
        parameters(
            "path",
            "old",
            "new",
            path=_PATH,
            old={"type": "string", "description": "The passage exactly as it is, including lines and spaces"},
            new={"type": "string", "description": "The new text; empty removes it"},
            all={"type": "boolean", "description": "Replace all occurrences"},
        ),
    )

    async def run(self, arguments: Mapping[str, Any], place: ToolPlace) -> str:
        """Replace the file in one step; on return it survives a power cut."""
        path, every = arguments["path"], arguments.get("all", False)
        old, new = (arguments[name].encode("utf-8", "replace") for name in ("old", "new"))
        count = 0

        def change(data: bytes) -> bytes:
            nonlocal count
            changed, count = replaced(data, old, new, path=path, every=every)
            return changed

        await threaded(path, lambda: change_file(place.folder, path, change))
        return f"replaced {count} passage{'s' * (count != 1)} in {path}"


class Ls:
    """The tool ``ls``: the names in a folder."""

    repeatable: ClassVar[bool] = True
    spec: ClassVar[ToolSpec] = ToolSpec(
        "ls",
        "List a folder: one name a line, folders end with /, files with their size in bytes.",
        parameters(path={**_PATH, "description": "Folder, . for the top"}),
    )

    async def run(self, arguments: Mapping[str, Any], place: ToolPlace) -> str:
        """Return the names in alphabetical order."""
        path = arguments.get("path", ".")
        return await threaded(path, lambda: _list_folder(place.folder, path))


def _page(data: bytes, *, first: int, limit: int | None) -> str:
    """Return lines from ``first`` on that fit the limits, and how to go on where more follow."""
    count = data.count(b"\n") + (not data.endswith(b"\n") and bool(data))
    if first > max(count, 1):
        raise ToolError(f"the file has {count} lines")
    # More than fits is not made into text: 10 MB of short lines would take 30 times that.
    at = _start_of(data, first)
    shown = data[at : at + MAX_RESULT_BYTES].removesuffix(b"\n") if count else b""
    asked = [line.decode("utf-8", "replace") for line in shown.split(b"\n")][:limit]
    size = MAX_RESULT_BYTES // 1024
    room = left = MAX_RESULT_BYTES - _NOTE_ROOM
    taken = 0
    for line in asked:
        left -= len(line.encode()) + 1
        if left < 0:
            break
        taken += 1
    text, notes = "\n".join(asked[:taken]), []
    if asked and not taken:
        # One line alone over the limit is cut here: the toolbox would cut the note behind it as well.
        text, taken = asked[0].encode()[:room].decode("utf-8", "ignore"), 1
        notes.append(f"[line {first} does not fit into the {size} kB of a result; this is its beginning]")
    rest = count - (first - 1) - taken
    if rest > 0:
        notes.append(f"[{rest} more lines; continue with offset={first + taken}]")
    return "\n".join([text, *notes])


def _start_of(data: bytes, line: int) -> int:
    """Return the offset at which a line begins, counted from 1."""
    at, left = 0, line - 1
    while left and (passed := data.count(b"\n", at, at + _BLOCK_BYTES)) < left:
        at, left = at + _BLOCK_BYTES, left - passed
    for _ in range(left):
        at = data.index(b"\n", at) + 1
    return at


def replaced(data: bytes, old: bytes, new: bytes, *, path: str, every: bool) -> tuple[bytes, int]:
    """Return the text with ``old`` replaced, and how often; lines that end in CR LF keep doing so.

    Raises:
        ToolError: it is not there, stands there more than once, or nothing would change.
    """
    if b"\n" in old + new and data.count(b"\r\n") == data.count(b"\n") > 0:
        old, new = (part.replace(b"\r\n", b"\n").replace(b"\n", b"\r\n") for part in (old, new))
    if not old or old == new:
        raise ToolError(f"{path}: old is empty, or the same as new; nothing was changed")
    count = data.count(old)
    if not count:
        raise ToolError(f"{path}: the old passage was not found; read the file and copy it exactly")
    if count > 1 and not every:
        raise ToolError(f"{path}: the old passage occurs {count} times; pass more of it, or all = true")
    if len(data) + count * (len(new) - len(old)) > MAX_FILE_BYTES:
        raise ToolError(f"{path}: it would be over {MAX_FILE_BYTES} bytes; nothing was changed")
    return data.replace(old, new), count


def _list_folder(folder: Path, path: str) -> str:
    names = names_of(folder, path)
    with below(folder, names) as fd, os.scandir(fd) as entries:
        hidden = scopes_below(folder) if not names else frozenset()
        rows = sorted(
            _row(entry) for entry in entries if not is_temp(entry.name) and entry.name not in hidden
        )
    if not rows:
        return "(empty)"
    more = [f"[{len(rows) - MAX_ENTRIES} more names are not shown]"] if len(rows) > MAX_ENTRIES else []
    return "\n".join(rows[:MAX_ENTRIES] + more)


def _row(entry: os.DirEntry[str]) -> str:
    name = os.fsencode(entry.name).decode("utf-8", "replace").replace("\n", "?")
    if entry.is_symlink():
        return f"{name} (link, not followed)"
    if entry.is_dir(follow_symlinks=False):
        return f"{name}/"
    with suppress(OSError):
        return f"{name} ({entry.stat(follow_symlinks=False).st_size} bytes)"
    return name
