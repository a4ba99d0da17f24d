"""Looks at what lies beside the transcripts, and repairs what can be: journals, notes, facts, indexes.

What is left out of a file stays beside it in a copy. What is derived is removed, and made anew when used.
"""

from __future__ import annotations

import json
import os
from collections.abc import Callable, Iterator
from datetime import UTC, datetime
from functools import partial
from pathlib import Path
from typing import Any, Final

from ulid import ULID

from durable import Damaged, NewerVersion, decode_state, write_all
from session.disk.derived import DerivedFile, is_damaged
from session.disk.layout import Layout
from session.disk.state import locked, replace_file
from session.disk.threads import start_thread
from session.errors import SessionError, StoreError
from session.store.fence import Fence, Wait
from session.store.original import keep_original
from session.store.store import Store
from session.transcript import journal_lines
from session.transcript.index_file import read_index, remove_index

Row = dict[str, Any]
# What it is, and what makes it sound again; None: that is for a person to do.
Finding = tuple[Path, str, Callable[[], None] | None]
NOTES: Final = ("MEMORY.md", "HISTORY.md", "USER.md")
_VERSION_MAX: Final = 2**31


async def verify(store: Store, *, repair: bool = False) -> list[Row]:
    """Check a whole workspace: transcripts, active and ended, then what lies beside them, as ``check``."""
    rows = await store.verify(repair=repair)
    beside = await start_thread(
        lambda: check(store.layout, repair=repair, owner=store.owner), name="disk-verify"
    )
    return [*rows, *beside]


def check(layout: Layout, *, repair: bool, owner: str) -> list[Row]:
    """Return a row for each file with a problem, as ``verify`` has them of transcripts; nothing else is read.

    Args:
        layout: the workspace; a daemon may run in it.
        repair: mend what can be mended.
        owner: who this process is to the locks of keys.
    """
    rows = []
    for path, problem, mend in _findings(layout, owner):
        row: Row = {"file": str(path.relative_to(layout.workspace)), "problem": problem, "repaired": False}
        if repair and mend is not None:
            try:
                mend()
                row["repaired"] = True
            except (OSError, SessionError) as error:
                row["problem"] = f"{problem}; not repaired: {error}"
        rows.append(row)
    return rows


def _findings(layout: Layout, owner: str) -> Iterator[Finding]:
    for look in (_journals, _notes, _facts, _indexes, _states, _databases):
        yield from look(layout, owner)


def _journals(layout: Layout, owner: str) -> Iterator[Finding]:
    for path in sorted(layout.keys.glob("*.log")):
        try:
            lines, torn = _broken_lines(path.read_bytes())
        except OSError as error:
            yield path, f"cannot be read: {error.strerror}", None
            continue
        if lines or torn:
            yield path, _told(lines, torn), partial(_mend_journal, layout, path, owner)


def _mend_journal(layout: Layout, path: Path, owner: str) -> None:
    """Leave out what no reader understands, under the lock of the key."""
    fence = Fence(layout, path.stem, owner=owner)
    fd = os.open(path, os.O_RDWR | os.O_CLOEXEC)
    try:
        with fence.hold(Wait()) as held:
            data = path.read_bytes()
            journal_lines.read(data)
            keep_original(path, held, fd, now=datetime.now(UTC))
            with held.replacing(path) as target:
                write_all(target, _whole_lines(data))
    finally:
        os.close(fd)


def _notes(layout: Layout, _: str) -> Iterator[Finding]:
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
            faults.append(f"no UTF-8 at byte {error.start}")
        if faults:
            lock = _lock_of(layout, "memory", path)
            yield path, ", ".join(faults), partial(_rewrite, path, lock, _as_text)


def _facts(layout: Layout, _: str) -> Iterator[Finding]:
    for path in _in_scopes(layout, "facts.jsonl"):
        try:
            lines, torn = _broken_lines(path.read_bytes())
        except OSError as error:
            yield path, f"cannot be read: {error.strerror}", None
            continue
        if lines or torn:
            lock = _lock_of(layout, "facts", path)
            yield path, _told(lines, torn), partial(_rewrite, path, lock, _whole_lines)


def _indexes(layout: Layout, _: str) -> Iterator[Finding]:
    state = layout.workspace / "state"
    for path in sorted((state / "index").glob("*.idx")):
        if read_index(path) is None:
            yield path, "a damaged index; it is made anew", partial(remove_index, path)
    for path in sorted([*state.glob("vectors.db"), *(state / "recall").rglob("*.db")]):
        if is_damaged(path):
            yield path, "a damaged index; it is made anew", partial(_discard, path)


def _states(layout: Layout, _: str) -> Iterator[Finding]:
    state = layout.workspace / "state"
    for path in sorted([*state.glob("*.json"), *(state / "memory").rglob("*.json")]):
        try:
            decode_state(path.read_bytes(), _VERSION_MAX, path.name)
        except (Damaged, NewerVersion) as error:
            yield path, f"{error}; mend it, or move it away", None
        except FileNotFoundError:
            continue
        except OSError as error:
            yield path, f"cannot be read: {error.strerror}", None


def _databases(layout: Layout, _: str) -> Iterator[Finding]:
    state = layout.workspace / "state"
    for path in sorted([*state.glob("queue.db"), *state.glob("delivery-*.db")]):
        if is_damaged(path):
            yield path, "a damaged database; end the daemon and put a backup in its place", None


def _in_scopes(layout: Layout, *names: str) -> Iterator[Path]:
    memory = layout.workspace / "memory"
    for folder in (memory, *sorted(memory.glob("chats/*")), *sorted(memory.glob("people/*"))):
        yield from (folder / name for name in names if (folder / name).is_file())


def _lock_of(layout: Layout, kind: str, path: Path) -> Path:
    """Name the lock file of the scope in whose folder a file lies."""
    scope = path.parent.relative_to(layout.workspace / "memory").as_posix()
    return layout.workspace / "state" / kind / f"{'workspace' if scope == '.' else scope}.lock"


def _rewrite(path: Path, lock: Path, sound: Callable[[bytes], bytes]) -> None:
    with locked(lock):
        data = path.read_bytes()
        replace_file(path.with_name(f"{path.name}.corrupt-{ULID()}"), data)
        replace_file(path, sound(data))


def _as_text(data: bytes) -> bytes:
    return data.replace(b"\0", b"").decode("utf-8", "replace").encode()


def _broken_lines(data: bytes) -> tuple[int, int]:
    """Count the lines that are no object, and the bytes behind the last whole line that are none either."""
    keep = data.rfind(b"\n") + 1
    torn = len(data) - keep if data[keep:] and not _is_object(data[keep:]) else 0
    return sum(1 for line in data[:keep].split(b"\n") if line.strip() and not _is_object(line)), torn


def _whole_lines(data: bytes) -> bytes:
    return b"".join(line + b"\n" for line in data.split(b"\n") if line.strip() and _is_object(line))


def _is_object(line: bytes) -> bool:
    try:
        return isinstance(json.loads(line.strip(b"\0 ")), dict)
    except (ValueError, RecursionError):
        return False


def _told(lines: int, torn: int) -> str:
    said = [f"{lines} damaged {'line' if lines == 1 else 'lines'}"] if lines else []
    return ", ".join([*said, *([f"an unfinished line at the end ({torn} bytes)"] if torn else [])])


def _discard(path: Path) -> None:
    file = DerivedFile(path, lambda _: None, busy_s=1.0, patient=True)
    try:
        file.discard()
    except OSError as error:
        raise StoreError(f"{path.name} could not be removed: {error.strerror}") from error
