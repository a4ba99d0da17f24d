"""Finds what is damaged beside the transcripts, and knows what mends it.

What is left out of a file stays beside it in a copy. What is derived is removed, and made anew when used.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator, Mapping
from functools import partial
from pathlib import Path
from typing import Final

import durable
from durable import Damaged, NewerVersion, decode_state, sync_folder
from session.approvals.files import FOLDER, KEPT
from session.approvals.record import is_id
from session.approvals.record import read as read_approval
from session.background.job_files import JobFiles, job_of
from session.disk.layout import Layout
from session.disk.local_files import local_state
from session.disk.state import locked, read_state, replace_file
from session.errors import SessionError
from session.store.derived import discard, is_damaged
from session.transcript import archive
from session.transcript.agent import AGENTS
from session.transcript.index import read_index, remove_index
from session.transcript.line import is_ulid
from session.transcript.loading import read_beginning

# What it is, and what makes it sound again; None: that is for a person to do.
Finding = tuple[Path, str, Callable[[], None] | None]
NOTES: Final = ("MEMORY.md", "HISTORY.md", "USER.md")
ULID_CHARS: Final = 26
_VERSION_MAX: Final = 2**31
_NOT_RUN: Final = f"the call was not run; the file can be deleted after {KEPT.total_seconds() / 3600:g} h"
# What is not known without a file, by the folder of ``state/`` that it lies in.
_LOST: Final[Mapping[str, str]] = {
    "subagents": ", and results of the subagents of its chat are parked",
    "memory": ", so it is unknown how much of its scope was moved into memory",
}


def findings(layout: Layout) -> Iterator[Finding]:
    """Yield each file with a problem: its path, the problem, and what mends it; None: a person decides.

    Args:
        layout: the workspace; a daemon may run in it.
    """
    looks = (_notes, _facts, _jobs, _approvals, _indexes, _states, _databases)
    for look in looks:
        yield from look(layout)


def _notes(layout: Layout) -> Iterator[Finding]:
    for path in _in_scopes(layout, *NOTES):
        try:
            data = path.read_bytes()
        except OSError as error:
            yield path, f"cannot be read: {error.strerror}", None
            continue
        faults = ["NUL bytes"] if b"\0" in data else []
        try:
            data.decode()
        except UnicodeDecodeError as error:
            faults.append(f"not UTF-8 at byte {error.start}")
        if faults:
            lock = _lock_of(layout, "memory", path)
            yield path, ", ".join(faults), partial(_rewrite, path, lock, _as_text)


def _facts(layout: Layout) -> Iterator[Finding]:
    for path in _in_scopes(layout, "facts.jsonl"):
        try:
            lines, torn = broken(path.read_bytes())
        except OSError as error:
            yield path, f"cannot be read: {error.strerror}", None
            continue
        if lines or torn:
            lock = _lock_of(layout, "facts", path)
            yield path, told(lines, torn), partial(_rewrite, path, lock, whole)


def _jobs(layout: Layout) -> Iterator[Finding]:
    """A job that nobody can read is made anew of its name and the session that it is for."""
    for path in sorted((layout.workspace / "state" / "jobs").glob("*.json")):
        if (problem := _state_problem(path)) is None:
            continue
        session_id = path.name[:ULID_CHARS]
        key = _key_of(layout, session_id) if is_ulid(session_id) else ""
        if key is None:
            yield (
                path,
                f"{problem}; its session is gone, so there is nothing to do",
                partial(_remove, path),
            )
        elif (job := job_of(path.name, key)) is not None:
            text = f"{problem}; its name tells what to do for session {session_id}"
            yield path, text, partial(JobFiles(layout.workspace / "state").keep, job)
        else:
            text = f"{problem}; session {session_id} may be missing in memory"
            yield path, f"{text}; move it away", None


def _key_of(layout: Layout, session_id: str) -> str | None:
    """Return whose session that is, ended or not; None: it is gone, empty: what cannot be read may be it."""
    hidden = False
    ended = archive.find(layout, session_id)
    files = [(ended.path, ended.stem)] if ended is not None else []
    for path, stem in [*files, *((each, each.stem) for each in sorted(layout.sessions.glob("*.jsonl")))]:
        try:
            read = read_beginning(path, stem)
        except SessionError:
            hidden = True
            continue
        if read is not None and read.session_id == session_id:
            return read.key
    return "" if hidden else None


def _approvals(layout: Layout) -> Iterator[Finding]:
    """Without its file a person might be asked anew about a call that ran: it stays while a turn may come."""
    for path in sorted((layout.workspace / "state" / FOLDER).glob("*.json")):
        problem = _state_problem(path)
        if problem is None and not (is_id(path.stem) and read_approval(read_state(path)) is None):
            continue
        problem = problem or f"{path.name} does not contain the request"
        try:
            over = durable.wall_s() - path.stat().st_mtime > KEPT.total_seconds()
        except FileNotFoundError:
            continue
        if over:
            yield path, f"{problem}; its turn ended long ago", partial(_remove, path)
        else:
            yield path, f"{problem}; {_NOT_RUN}", None


def _indexes(layout: Layout) -> Iterator[Finding]:
    state = layout.workspace / "state"
    for path in sorted((state / "index").glob("*.idx")):
        if read_index(path) is None:
            yield path, "damaged index; it will be rebuilt", partial(remove_index, path)
    local = local_state(state)
    for path in sorted([*local.glob("vectors.db"), *(local / "recall").rglob("*.db")]):
        if is_damaged(path):
            yield path, "damaged index; it will be rebuilt", partial(discard, path)


def _states(layout: Layout) -> Iterator[Finding]:
    state = layout.workspace / "state"
    others = ("jobs", FOLDER)
    for path in sorted(state.rglob("*.json")):
        inside = path.relative_to(state).parts
        # That of subagents is looked at as a workspace of its own, but for what is on record of them.
        if inside[0] in others or (inside[0] == "subagents" and inside[1] != "chats"):
            continue
        if (problem := _state_problem(path)) is not None:
            lost = _LOST.get(inside[0], "")
            yield path, f"{problem}{lost}; repair it, or move it away", None


def _state_problem(path: Path) -> str | None:
    try:
        decode_state(path.read_bytes(), _VERSION_MAX, path.name)
    except (Damaged, NewerVersion) as error:
        return str(error)
    except FileNotFoundError:
        return None
    except OSError as error:
        return f"cannot be read: {error.strerror}"
    return None


def _databases(layout: Layout) -> Iterator[Finding]:
    state = layout.workspace / "state"
    for path in (path for name in (durable.STATE_FILE, durable.CHANNELS_FILE) for path in state.glob(name)):
        if is_damaged(path):
            yield path, "damaged database; stop the gateway and restore a backup of it", None


def _in_scopes(layout: Layout, *names: str) -> Iterator[Path]:
    """List the files of these names in all scopes, those of other agents than the default one behind it."""
    for memory in (layout.workspace / "memory", *sorted(layout.workspace.glob(f"{AGENTS}/*/memory"))):
        for folder in (memory, *sorted(memory.glob("chats/*")), *sorted(memory.glob("people/*"))):
            yield from (folder / name for name in names if (folder / name).is_file())


def _lock_of(layout: Layout, kind: str, path: Path) -> Path:
    home, _, scope = path.parent.relative_to(layout.workspace).as_posix().partition("memory")
    return layout.workspace / "state" / kind / f"{home}{scope.lstrip('/') or 'workspace'}.lock"


def _rewrite(path: Path, lock: Path, sound: Callable[[bytes], bytes]) -> None:
    with locked(lock):
        data = path.read_bytes()
        replace_file(path.with_name(f"{path.name}.corrupt-{durable.new_id()}"), data)
        replace_file(path, sound(data))


def _as_text(data: bytes) -> bytes:
    return data.replace(b"\0", b"").decode("utf-8", "replace").encode()


def _remove(path: Path) -> None:
    path.unlink(missing_ok=True)
    sync_folder(path.parent)


def broken(data: bytes) -> tuple[int, int]:
    """Count the lines that are no object, and the bytes behind the last whole line that are none either."""
    keep = data.rfind(b"\n") + 1
    torn = len(data) - keep if data[keep:] and not is_object(data[keep:]) else 0
    return sum(1 for line in data[:keep].split(b"\n") if line.strip() and not is_object(line)), torn


def whole(data: bytes) -> bytes:
    """Return the data without those lines."""
    return b"".join(line + b"\n" for line in data.split(b"\n") if line.strip() and is_object(line))


def is_object(line: bytes) -> bool:
    """Say whether a line is a JSON object."""
    try:
        return isinstance(json.loads(line.strip(b"\0 ")), dict)
    except (ValueError, RecursionError):
        return False


def told(lines: int, torn: int) -> str:
    """Say what ``broken`` has counted; empty where that is nothing."""
    said = [f"{lines} damaged {'line' if lines == 1 else 'lines'}"] if lines else []
    return ", ".join([*said, *([f"an unfinished line at the end ({torn} bytes)"] if torn else [])])
