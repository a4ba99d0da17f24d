"""nanobot's files of jobs: ``cron/jobs.json`` from text to rows, and what ``cron/action.jsonl`` adds."""

from __future__ import annotations

import contextlib
import json
import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Final

import orjson
import structlog

import durable
from channels import storage
from channels.errors import ChannelError

VERSION: Final = 1
_JOBS: Final = re.compile(r'"jobs"\s*:\s*\[')
_ID: Final = re.compile(r'"id"\s*:\s*"((?:[^"\\]|\\.)*)"')
_MOST_FAILED: Final = 2_000


@dataclass(frozen=True, slots=True)
class Fault:
    """Why a file is not as it should be; ``newer``: a later version of the format, not to be written."""

    text: str
    cure: str
    newer: bool = False


@dataclass(frozen=True, slots=True)
class Lost:
    """A stretch of a damaged file out of which no job could be read."""

    id: str | None
    text: str
    cure: str = "correct it there"


@dataclass(frozen=True, slots=True)
class Document:
    """A file taken apart.

    Args:
        top: its outermost object, as far as there is one.
        rows: what stands in ``jobs``, sound or not.
        plain: the fast codec reads it, so that it may write it, too.
    """

    top: Mapping[str, Any] = field(default_factory=dict)
    rows: list[Any] = field(default_factory=list)
    plain: bool = True
    fault: Fault | None = None
    lost: tuple[Lost, ...] = ()


def decode(data: bytes | None) -> Document:
    """Take a file apart, as far as it goes; None is a file that is not there."""
    if data is None:
        return Document()
    try:
        content, plain = _load(data)
    except ValueError as error:
        return _rescue(data, str(error))
    except RecursionError:
        return _rescue(data, "nested too deeply")
    if isinstance(content, list):
        return Document(rows=content, plain=plain, fault=_fault("it is a list, not an object with jobs"))
    if not isinstance(content, dict):
        return Document(plain=plain, fault=_fault("it contains no jobs"))
    rows, version = content.get("jobs", []), content.get("version", VERSION)
    if not isinstance(rows, list):
        return Document(content, plain=plain, fault=_fault("jobs is not a list"))
    fault = None
    if type(version) is int and version > VERSION:
        cure = "update chat-gateway; its jobs run, but the file is not changed"
        fault = Fault(f"version {version} of the format is newer than {VERSION}", cure, newer=True)
    return Document(content, rows, plain, fault)


def encode(document: Document) -> bytes:
    """Write a file as nanobot does."""
    top = {"version": VERSION, **document.top, "jobs": document.rows}
    if document.plain:
        try:
            return orjson.dumps(top, option=orjson.OPT_INDENT_2)
        except TypeError:
            # A number of over 64 bits or half of a surrogate pair is JSON, but not for every parser.
            pass
    return json.dumps(top, indent=2).encode()


def _load(data: bytes) -> tuple[Any, bool]:
    try:
        return orjson.loads(data), True
    except orjson.JSONDecodeError:
        return json.loads(data), False


def _fault(text: str) -> Fault:
    return Fault(text, 'correct it: {"version": 1, "jobs": [ … ]}')


def _rescue(data: bytes, why: str) -> Document:
    """Read the jobs that stand whole in a file that is no JSON."""
    text = data.decode("utf-8", "replace")
    found = _JOBS.search(text)
    rows: list[Any] = []
    lost: list[Lost] = []
    torn = found.end() if found else 0
    for row, begin, end in _objects(text, torn):
        _lose(text, torn, begin, lost)
        rows.append(row)
        torn = end
    _lose(text, torn, len(text), lost)
    return Document(
        rows=rows,
        plain=False,
        fault=Fault(f"it is not JSON ({why})", "correct it; its intact jobs run meanwhile"),
        lost=tuple(lost),
    )


def _objects(text: str, start: int) -> Iterator[tuple[Any, int, int]]:
    """Yield each whole object from ``start`` on that has the look of a job, with where it stands."""
    decoder = json.JSONDecoder()
    position = text.find("{", start)
    failed = 0
    while position >= 0 and failed < _MOST_FAILED:
        try:
            row, end = decoder.raw_decode(text, position)
        except (ValueError, RecursionError):
            row, end = None, position + 1
        if isinstance(row, dict) and "id" in row and "schedule" in row:
            yield row, position, end
        else:
            end, failed = position + 1, failed + 1
        position = text.find("{", end)


def _lose(text: str, begin: int, end: int, lost: list[Lost]) -> None:
    """Note what stands between two jobs, where it is more than what belongs there."""
    between = text[begin:end]
    at = between.find("{")
    if at < 0:
        return
    found = _ID.search(between)
    line = text.count("\n", 0, begin + at) + 1
    lost.append(Lost(found[1] if found else None, f"line {line}: no complete job"))


log = structlog.get_logger("cron")

_HUMP: Final = re.compile(r"_([a-z])")
_INNER: Final = ("schedule", "payload", "state")


class Left:
    """The changes that wait beside the jobs of a workspace."""

    def __init__(self, workspace: Path) -> None:
        self._path = workspace / "cron" / "action.jsonl"
        # nanobot takes this lock around every touch of the file.
        self._lock = workspace / "cron.lock"

    def waits(self) -> bool:
        """Say whether there are any."""
        try:
            return self._path.stat().st_size > 0
        except OSError:
            return False

    def read(self) -> bytes:
        """Return them as they stand; nothing is changed.

        Raises:
            ChannelError: they, or the lock around them, cannot be opened.
        """
        if not self.waits():
            return b""
        with storage.locked(self._lock), self._told("read"):
            return self._path.read_bytes()

    def damaged(self) -> int:
        """Count the lines that nobody understands; they would change nothing."""
        return sum(1 for line in self.read().splitlines() if line.strip() and _action(line) is None)

    def mend(self) -> None:
        """Leave those lines out, with the whole file as it was in a copy beside it."""
        with storage.locked(self._lock):
            content = self._path.read_bytes()
            lines = [line for line in content.splitlines() if line.strip()]
            sound = [line for line in lines if _action(line) is not None]
            if len(sound) < len(lines):
                durable.replace(
                    self._path.with_name(f"{self._path.name}.corrupt-{durable.new_id()}"), content
                )
                durable.replace(self._path, b"".join(line + b"\n" for line in sound))

    def done(self, taken: bytes) -> None:
        """Remove what was taken over; what came meanwhile stays. A line that is torn is kept in a copy.

        What the disk refuses stays there and is taken over again by the next write: the jobs have it already.
        """
        if not taken:
            return
        try:
            self._remove(taken)
        except ChannelError as error:
            log.warning("actions.kept", error=str(error), hint=error.hint)

    def _remove(self, taken: bytes) -> None:
        with storage.locked(self._lock), self._told("emptied"):
            content = self._path.read_bytes()
            if any(_action(line) is None for line in taken.splitlines() if line.strip()):
                durable.replace(self._path.with_name(f"{self._path.name}.corrupt-{durable.new_id()}"), taken)
            if not content.startswith(taken):
                return
            if rest := content[len(taken) :]:
                durable.replace(self._path, rest)
                return
            # A full disk has no room for an empty file; a change made twice would undo what came between.
            self._path.unlink()
            durable.sync_folder(self._path.parent)

    @contextlib.contextmanager
    def _told(self, what: str) -> Iterator[None]:
        try:
            yield
        except OSError as error:
            raise ChannelError(
                f"cron/action.jsonl cannot be {what}: {error.strerror}", hint=f"check {self._path}"
            ) from error


def merged(rows: list[Any], left: bytes) -> list[Any]:
    """Return the jobs with these changes made, in their order; torn lines change nothing."""
    for line in left.splitlines():
        action = _action(line)
        if action is None:
            continue
        kind, params = action
        job_id = params.get("job_id") if kind == "del" else params.get("id")
        positions = [n for n, row in enumerate(rows) if isinstance(row, dict) and row.get("id") == job_id]
        if kind == "del":
            rows = [row for n, row in enumerate(rows) if n not in positions]
        elif positions:
            known = rows[positions[0]]
            rows = [*rows[: positions[0]], _over(known, _job_row(params)), *rows[positions[0] + 1 :]]
        else:
            rows = [*rows, _job_row(params)]
    return rows


def _action(line: bytes) -> tuple[str, dict[str, Any]] | None:
    try:
        action = json.loads(line)
    except (ValueError, RecursionError):
        return None
    if not isinstance(action, dict) or action.get("action") not in ("add", "update", "del"):
        return None
    params = action.get("params")
    return (action["action"], params) if isinstance(params, dict) else None


def _over(row: Mapping[str, Any], change: Mapping[str, Any]) -> dict[str, Any]:
    """Put a change over a job; what the change does not know of the job stays."""
    found = {**row, **change}
    for name in _INNER:
        if isinstance(row.get(name), dict) and isinstance(change.get(name), dict):
            found[name] = {**row[name], **change[name]}
    return found


def _job_row(params: Mapping[str, Any]) -> dict[str, Any]:
    """Turn the names of their program into those of their file: ``every_ms`` into ``everyMs``."""
    row = _camel(params)
    for name in _INNER:
        if isinstance(row.get(name), dict):
            row[name] = _camel(row[name])
    state = row.get("state")
    if isinstance(state, dict) and isinstance(state.get("runHistory"), list):
        state["runHistory"] = [_camel(one) if isinstance(one, dict) else one for one in state["runHistory"]]
    return row


def _camel(fields: Mapping[str, Any]) -> dict[str, Any]:
    return {_HUMP.sub(lambda found: found[1].upper(), name): value for name, value in fields.items()}
