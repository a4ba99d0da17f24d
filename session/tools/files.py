"""Tools that read, write, change, list and search files below the scope's folder, and read skills."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator, Mapping
from contextlib import suppress
from functools import partial
from pathlib import Path
from typing import Any, ClassVar

import durable
from session.errors import ToolError
from session.library.library import Library, PatternResult, Skill, search
from session.models.model import ToolSpec
from session.tools import MAX_RESULT_BYTES, ToolPlace, parameters
from session.tools.beneath import (
    MAX_FILE_BYTES,
    below,
    change_file,
    is_temp,
    names_of,
    off_loop,
    open_folder,
    read_file,
    read_in,
    threaded,
    write_file,
)
from session.transcript.agent import scopes_below
from session.transcript.attachments import open_beneath

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
        ignore_case, limit_s = arguments.get("ignore_case", False), self._limit_s
        rows = await threaded(
            path, lambda: _grep(place.folder, path, pattern, ignore_case=ignore_case, limit_s=limit_s)
        )
        return "\n".join(rows) if rows else "(no line)"


def _grep(folder: Path, path: str, pattern: str, *, ignore_case: bool, limit_s: float) -> list[str]:
    until = durable.monotonic() + limit_s
    cure = "use a simpler pattern or a smaller path"
    too_long = ToolError(f"the search ran for over {limit_s:g} s and was stopped; {cure}")

    def left_s() -> float:
        left = until - durable.monotonic()
        if left < 0:
            raise too_long
        return max(left, 0.001)

    def ask(text: str, most: int) -> PatternResult:
        found = search(pattern, text, limit_s=left_s(), ignore_case=ignore_case, most_lines=most)
        if found.slow:
            raise too_long
        if found.problem:
            raise ToolError(f"the pattern is not a valid regular expression: {found.problem}")
        return found

    rows: list[str] = []
    # A broken pattern is an error even where there is no file.
    ask("", 1)
    for name, data in _texts(folder, path, left_s):
        text = data.decode("utf-8", "replace")
        lines = text.split("\n")
        found = ask(text, MAX_LINES + 1 - len(rows))
        rows += [f"{name}:{number}: {_shown(lines[number - 1])}" for number in found.lines]
        if len(rows) > MAX_LINES:
            return [*rows[:MAX_LINES], f"[more lines than {MAX_LINES}; narrow the pattern or the path]"]
    return rows


def _texts(folder: Path, path: str, check: Callable[[], object]) -> Iterator[tuple[str, bytes]]:
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
    check: Callable[[], object],
    *,
    depth: int,
    hidden: frozenset[str] = frozenset(),
) -> Iterator[tuple[str, bytes]]:
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


MAX_NAMED = 100
NAMED_DEPTH = 3


class SkillRead:
    """Reads from the workspace's ``skills/``, and from nothing else."""

    repeatable: ClassVar[bool] = True
    spec: ClassVar[ToolSpec] = ToolSpec(
        "skill_read",
        "Read the instructions of a skill, or another file of it.",
        parameters(
            "name",
            name={"type": "string", "description": "The skill's name as listed"},
            path={"type": "string", "description": "A file of the skill; default: its instructions"},
        ),
    )

    def __init__(self, library: Library) -> None:
        self._library = library

    async def run(self, arguments: Mapping[str, Any], place: ToolPlace) -> str:
        """Return the text, and the names of the files beside it."""
        return await off_loop(partial(self._read, arguments["name"], arguments.get("path", "")))

    def _read(self, name: str, path: str) -> str:
        skills = {skill.name: skill for skill in self._library.skills()}
        skill = skills.get(name)
        if skill is None:
            raise ToolError(f"there is no skill {name!r}; the skills are: {', '.join(skills) or 'none'}")
        if path not in ("", "SKILL.md"):
            return _file(skill, path)
        files = _beside(skill)
        more = f"\n\n[files of this skill, to read with path: {', '.join(files)}]" if files else ""
        return (skill.body or "(its instructions are empty)") + more


def _file(skill: Skill, path: str) -> str:
    try:
        fd = open_beneath(skill.path.parent, path)
    except (OSError, ValueError) as error:
        raise ToolError(f"{path}: there is no such file in this skill") from error
    with os.fdopen(fd, "rb") as file:
        data = file.read(MAX_FILE_BYTES)
    if b"\0" in data[:8192]:
        raise ToolError(f"{path}: not a text file")
    return data.decode("utf-8", "replace")


def _beside(skill: Skill) -> list[str]:
    """Name the files of a skill, the first ``MAX_NAMED`` of them, at most ``NAMED_DEPTH`` folders deep."""
    top = skill.path.parent
    found: list[str] = []
    for folder, folders, names in os.walk(top):
        here = os.path.relpath(folder, top)
        depth = 0 if here == "." else here.count("/") + 1
        folders[:] = (
            sorted(name for name in folders if not name.startswith(".")) if depth < NAMED_DEPTH else []
        )
        for name in sorted(names):
            path = os.path.normpath(os.path.join(here, name))  # noqa: PTH118 - relative, of os.walk
            if path != "SKILL.md" and not name.startswith(".") and not (top / path).is_symlink():
                found.append(path)
                if len(found) == MAX_NAMED:
                    return found
    return found
