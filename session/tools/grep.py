"""The tool ``grep``: lines of text files in which a pattern is found, confined to the files folder."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Any, ClassVar

import durable
from session.errors import ToolError
from session.library.library import PatternResult, search
from session.models.model import ToolSpec
from session.tools import ToolPlace, parameters
from session.tools.beneath import below, is_temp, names_of, open_folder, read_in, threaded
from session.transcript.agent import scopes_below

LIMIT_S = 5.0
MAX_LINES = 200
MAX_DEPTH = 32
SHOWN_CHARS = 300


class Grep:
    """Searches a file, or all text files of a folder."""

    repeatable: ClassVar[bool] = True
    spec: ClassVar[ToolSpec] = ToolSpec(
        "grep",
        "Search text files for a regular expression (Python's); gives path, number and text of each line.",
        parameters(
            "pattern",
            pattern={"type": "string", "description": "Regular expression, searched in each line"},
            path={"type": "string", "description": "File or folder, . for all files (the default)"},
            ignore_case={"type": "boolean", "description": "Ignore case"},
        ),
    )

    def __init__(self, *, limit_s: float = LIMIT_S) -> None:
        self._limit_s = limit_s

    async def run(self, arguments: Mapping[str, Any], place: ToolPlace) -> str:
        """Return the lines, at most ``MAX_LINES`` of them; a search is given up after its limit."""
        path, pattern = arguments.get("path", "."), arguments["pattern"]
        search = _Search(pattern, ignore_case=arguments.get("ignore_case", False), limit_s=self._limit_s)
        rows = await threaded(path, lambda: search.run(place.folder, path))
        return "\n".join(rows) if rows else "(no line)"


class _Search:
    def __init__(self, pattern: str, *, ignore_case: bool, limit_s: float) -> None:
        self._pattern = pattern
        self._ignore_case = ignore_case
        self._limit_s = limit_s
        self._until = durable.monotonic() + limit_s

    def run(self, folder: Path, path: str) -> list[str]:
        rows: list[str] = []
        # A broken pattern is an error even where there is no file.
        self._ask("", 1)
        for name, data in _texts(folder, path, self._check):
            text = data.decode("utf-8", "replace")
            lines = text.split("\n")
            found = self._ask(text, MAX_LINES + 1 - len(rows))
            rows += [f"{name}:{number}: {_shown(lines[number - 1])}" for number in found.lines]
            if len(rows) > MAX_LINES:
                return [*rows[:MAX_LINES], f"[more lines than {MAX_LINES}; narrow the pattern or the path]"]
        return rows

    def _ask(self, text: str, most: int) -> PatternResult:
        self._check()
        left_s = max(self._until - durable.monotonic(), 0.001)
        found = search(self._pattern, text, limit_s=left_s, ignore_case=self._ignore_case, most_lines=most)
        if found.slow:
            raise self._too_long()
        if found.problem:
            raise ToolError(f"the pattern is not a valid regular expression: {found.problem}")
        return found

    def _check(self) -> None:
        if durable.monotonic() > self._until:
            raise self._too_long()

    def _too_long(self) -> ToolError:
        cure = "use a simpler pattern or a smaller path"
        return ToolError(f"the search ran for over {self._limit_s:g} s and was stopped; {cure}")


def _texts(folder: Path, path: str, check: Callable[[], None]) -> Iterator[tuple[str, bytes]]:
    """Yield path and bytes of the text file, or of those below the folder; what is no text is passed over."""
    names = names_of(folder, path)
    if names and not path.endswith("/"):
        with below(folder, names[:-1]) as parent:
            if not _is_folder(parent, names[-1]):
                yield "/".join(names), read_in(parent, names[-1], path)
                return
    with below(folder, names) as top:
        hidden = scopes_below(folder) if not names else frozenset()
        prefix = "".join(f"{name}/" for name in names)
        yield from _walk(top, prefix, check, depth=MAX_DEPTH, hidden=hidden)


def _walk(
    fd: int,
    prefix: str,
    check: Callable[[], None],
    *,
    depth: int,
    hidden: frozenset[str] = frozenset(),
) -> Iterator[tuple[str, bytes]]:
    """Yield the text files below an open folder by name; links are not followed."""
    with os.scandir(fd) as entries:
        rows = sorted((entry.name, entry.is_dir(follow_symlinks=False)) for entry in entries)
    for name, is_folder in rows:
        check()
        if name in hidden:
            continue
        shown = prefix + os.fsencode(name).decode("utf-8", "replace").replace("\n", "?")
        try:
            deeper = open_folder(fd, name) if is_folder else -1
            data = b"" if is_folder or is_temp(name) else read_in(fd, name, shown)
        except (ToolError, OSError):
            # It went away meanwhile, cannot be read, or is a link or no text.
            continue
        if data:
            yield shown, data
        if is_folder:
            try:
                if depth:
                    yield from _walk(deeper, f"{shown}/", check, depth=depth - 1)
            finally:
                os.close(deeper)


def _is_folder(parent: int, name: str) -> bool:
    try:
        os.close(open_folder(parent, name))
    except OSError:
        return False
    return True


def _shown(line: str) -> str:
    line = line.rstrip("\r")
    return line if len(line) <= SHOWN_CHARS else f"{line[:SHOWN_CHARS]} […]"
