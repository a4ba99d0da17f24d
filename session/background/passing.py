"""How far the clock may have come since it was last looked at: a jump is no reason to delete anything."""

from __future__ import annotations

from datetime import datetime, timedelta
from pathlib import Path

from session.disk.state import read_state, write_state
from session.errors import NotNow
from session.transcript.line import read_time

# A gateway that was off for longer meets the same doubt: nothing tells its clock from one that was set wrong.
LIMIT = timedelta(days=7)
# How long a leap stands before it is believed.
DOUBTED_FOR = timedelta(days=7)


class Passing:
    """Remembers in a file of ``state/`` when the clock was last believed.

    Args:
        path: the file.
        sessions: the folder of the transcripts, whose times count before there is such a file.
    """

    def __init__(self, path: Path, sessions: Path) -> None:
        self._path = path
        self._sessions = sessions

    def believe(self, now: datetime) -> None:
        """Return where the clock went on as it should, or leapt a week ago and goes on since; blocks.

        Raises:
            NotNow: it leapt; nothing may be concluded from it yet.
            NewerFormat, StoreError: the file cannot be used.
        """
        content = read_state(self._path)
        seen = _time(content.get("seen")) or self._newest()
        last, since = _time(content.get("last")) or seen, _time(content.get("leapt"))
        if seen is None or last is None or now - seen <= LIMIT:
            return self._keep(now, now, None)
        if since is None or now < since or now - last > LIMIT:
            since = now
        if now - since >= DOUBTED_FOR:
            return self._keep(now, now, None)
        self._keep(seen, now, since)
        raise NotNow(
            f"the clock is {(now - seen).days} days later than at the last check: nothing is deleted",
            reason="clock",
            until=since + DOUBTED_FOR,
            hint="check the clock; if it is right, old sessions are deleted from "
            f"{(since + DOUBTED_FOR).isoformat(timespec='minutes')} on",
        )

    def _keep(self, seen: datetime, last: datetime, leapt: datetime | None) -> None:
        told = leapt.isoformat() if leapt is not None else None
        write_state(self._path, {"seen": seen.isoformat(), "last": last.isoformat(), "leapt": told})

    def _newest(self) -> datetime | None:
        """Return when a conversation was last written; None where there is none."""
        times = [path.stat().st_mtime for path in self._sessions.glob("*.jsonl")]
        times += [path.stat().st_mtime for path in self._sessions.glob("archive/*/*.jsonl")]
        return datetime.fromtimestamp(max(times)).astimezone() if times else None


def _time(value: object) -> datetime | None:
    return read_time(value) if isinstance(value, str) else None
