"""``cron/action.jsonl``: what a nanobot that does not run the clock left for the program that does."""

from __future__ import annotations

import contextlib
import json
import re
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any, Final

import structlog

import durable
from channels import storage
from channels.errors import ChannelError

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
    return {
        re.sub(r"_([a-z])", lambda found: found[1].upper(), name): value for name, value in fields.items()
    }
