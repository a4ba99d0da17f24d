"""Moves a machine's own files and is killed at every instant of it: ``python -m … FOLDER there|back|onward``.

For each instant a workspace is made, a child of this process is killed there, and the next start goes on.
Written is a line of JSON for each: at which instant, and what was found then.
"""

from __future__ import annotations

import contextlib
import json
import os
import signal
import sqlite3
import sys
from pathlib import Path

from gateway.app.local_dir import settle
from session.disk.local_files import homes_of, local_state

ROWS = {
    "delivery-discord.db": 3,
    "delivery-telegram.db": 2,
    "vectors.db": 1,
    "recall/chats/" + "a" * 32 + ".db": 4,
}


def fill(place: Path) -> None:
    """Lay down the files of a gateway that was killed: what was written last stands in their logs."""
    for name, count in ROWS.items():
        (place / name).parent.mkdir(parents=True, exist_ok=True)
        file = sqlite3.connect(place / name, isolation_level=None)
        file.execute("PRAGMA journal_mode=WAL")
        file.execute("CREATE TABLE rows (text TEXT)")
        file.executemany("INSERT INTO rows VALUES (?)", [(f"{name} {n}",) for n in range(count)])
        copies = {end: (place / f"{name}{end}").read_bytes() for end in ("", "-wal")}
        file.close()
        for end, data in copies.items():
            (place / f"{name}{end}").write_bytes(data)


def rows(place: Path) -> dict[str, int]:
    """Count the rows of each file in a place."""
    found = {}
    for name in ROWS:
        if (place / name).exists():
            with contextlib.closing(sqlite3.connect(place / name)) as file:
                found[name] = file.execute("SELECT count(*) FROM rows").fetchone()[0]
    return found


def start(workspace: Path, wanted: Path | None, *, dies_at: int = 0) -> str:
    """Do as a start does; return the last instant that was passed."""
    passed = []

    def at(instant: str) -> None:
        passed.append(instant)
        if len(passed) == dies_at:
            os.write(1, f"{instant} ".encode())
            os.kill(os.getpid(), signal.SIGKILL)

    settle(workspace, wanted, beside=list, at=at)
    return passed[-1] if passed else ""


def killed(workspace: Path, wanted: Path | None, dies_at: int) -> bool:
    """Have a child die at that instant; False where it came to its end before."""
    child = os.fork()
    if child == 0:
        start(workspace, wanted, dies_at=dies_at)
        os._exit(0)
    _, status = os.waitpid(child, 0)
    return os.WIFSIGNALED(status)


def main(folder: Path, way: str) -> None:
    """Try each instant."""
    for number in range(1, 100):
        here = folder / str(number)
        workspace, first, second = here / "w", here / "first", here / "second"
        (workspace / "state").mkdir(parents=True)
        fill(workspace / "state")
        wanted: Path | None = first
        if way != "there":
            start(workspace, first)
            wanted = None if way == "back" else second
        if not killed(workspace, wanted, number):
            return
        # Whoever looks before the next start finds all of it in one place.
        between = rows(local_state(workspace / "state"))
        # What the user changes his mind to meanwhile is done, too.
        start(workspace, wanted)
        place = local_state(workspace / "state")
        folders = [path for each in (first, second) if each.exists() for path in each.iterdir()]
        found = {
            "between": between == ROWS,
            "after": rows(place) == ROWS,
            "where": str(place.parent if place != workspace / "state" else place) == str(wanted or place),
            "elsewhere": [each for each in (workspace / "state", *folders) if each != place and rows(each)],
            "folders": len(folders) == (wanted is not None),
            "notes": [home.phase for home in homes_of(workspace / "state")] == [""] * (wanted is not None),
            "again": start(workspace, wanted) == "",
        }
        print(json.dumps(found, default=str), flush=True)


if __name__ == "__main__":
    main(Path(sys.argv[1]), sys.argv[2])
