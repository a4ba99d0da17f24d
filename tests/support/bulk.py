"""Much text for an index, and the process that takes it in."""

from __future__ import annotations

import os
import signal
import sqlite3
from contextlib import suppress
from datetime import UTC, datetime, timedelta
from pathlib import Path

from session.transcript.key import SessionKey, plain_stem
from session.transcript.line import dump, make_line, naive, stamp
from tests.support.until import until

MESSAGES = 20_000
_TEXT = "and the ferret of {} went to sea in a beautiful boat with some honey and plenty of money {}"


def fill(workspace: Path, key: SessionKey) -> Path:
    """Write an active session of so many messages, 4 MB in all, last written now."""
    at = datetime.now(UTC) - timedelta(days=1)
    head = {
        "_type": "metadata",
        "key": key,
        "created_at": naive(at),
        "updated_at": naive(at),
        "metadata": {"session_id": "01KG9N3D3R6V4T1X8Y2Z5B7C9E", "chat": "direct"},
        "last_consolidated": MESSAGES,
    }
    lines = (
        make_line("assistant" if number % 2 else "user", _TEXT.format(number, number % 97), stamp(at, UTC))
        for number in range(MESSAGES)
    )
    path = workspace / "sessions" / f"{plain_stem(key)}.jsonl"
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_bytes(b"".join(dump(line) + b"\n" for line in (head, *lines)))
    return path


def child_of(pid: int) -> int:
    """Return the process that some process has started for its index; 0 without one."""
    with suppress(OSError):
        for listed in Path(f"/proc/{pid}/task").glob("*/children"):
            for each in listed.read_text().split():
                if b"session.recall.update" in Path(f"/proc/{each}/cmdline").read_bytes():
                    return int(each)
    return 0


def is_gone(pid: int) -> bool:
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] == "Z"
    except FileNotFoundError:
        return True


def taken_in(index: Path) -> int:
    """Count the messages that an index holds; 0 while there is none."""
    if not index.exists():
        return 0
    file = sqlite3.connect(index)
    try:
        return int(file.execute("SELECT count(*) FROM places").fetchone()[0])
    except sqlite3.OperationalError:
        return 0
    finally:
        file.close()


async def stopped_in_the_midst(pid: int, index: Path) -> int:
    """Wait until a process has written a part of an index, and let it stand still; return the child."""
    child = await until(lambda: child_of(pid))
    await until(lambda: taken_in(index) or is_gone(child))
    os.kill(child, signal.SIGSTOP)
    if not 0 < taken_in(index) < MESSAGES:
        os.kill(child, signal.SIGCONT)
        raise AssertionError("it was not in the midst")
    return int(child)
