"""A transcript of 100 MB that nobody has open: how long until its next turn begins, in how much memory."""

from __future__ import annotations

import asyncio
import json
import shutil
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import orjson

from bench.place import TEXT, Instant, folder, place, transcript
from bench.row import Row, median
from session.transcript.key import SessionKey
from session.transcript.line import make_line

BYTES, FRESH = 100_000_000, 60
FIRST_TIMES, TIMES = 4, 9
FIRST_S, INDEXED_S, MEMORY_MB = 1.0, 0.05, 25
BIG, SMALL = SessionKey("cli:big"), SessionKey("cli:small")
AT = "2026-01-01T10:00:00.000000+00:00"


def run() -> list[Row]:
    """Open it in one new process after another, first without and then with its index."""
    with folder() as here:
        lines = _write(here, BYTES)
        first = []
        for _ in range(FIRST_TIMES):
            shutil.rmtree(here / "state" / "index", ignore_errors=True)
            first.append(_child(here))
        indexed = [_child(here) for _ in range(TIMES)]
        bare_s = min(_bare(here) for _ in range(3))
        index_mb = sum(path.stat().st_size for path in (here / "state" / "index").iterdir()) / 1e6
    what = f"Store.open in a new process, {lines:,} lines; the file lies in the page cache"
    cpu_s = min(one["cpu_s"] for one in first)
    bare = (
        f"of the processor it takes {cpu_s * 1e3:.0f} ms, orjson alone over the lines {bare_s * 1e3:.0f} ms"
    )
    return [
        _row("100 MB, opened for the first time", first, "open_s", FIRST_S, {"what": what, "bare": bare}),
        _row("… with its index", indexed, "open_s", INDEXED_S, {"index": f"{index_mb:.1f} MB"}),
        _row("… and a whole turn", indexed, "turn_s", INDEXED_S, {"what": f"{FRESH} messages are sent"}),
        _row("memory, peak of the first time", first, "grew_mb", MEMORY_MB, _MEMORY),
        _row("memory, peak with the index", indexed, "grew_mb", MEMORY_MB, _MEMORY),
    ]


_MEMORY = {"what": "VmHWM after the turn, less that after a turn on 100 messages in the same process"}


def _row(name: str, found: list[dict[str, float]], figure: str, limit: float, notes: dict[str, str]) -> Row:
    ours, unit = median([one[figure] for one in found]), figure.rpartition("_")[2]
    if unit == "s":
        ours, limit, unit = ours * 1e3, limit * 1e3, "ms"
    return Row(name, ours, limit, unit.replace("mb", "MB"), "limit", ours / limit, at_most=1, notes=notes)


def _write(workspace: Path, size: int) -> int:
    """Write the big transcript, and a small one beside it; return how many lines the big one has."""
    transcript(workspace, SMALL, 100)
    path = transcript(workspace, BIG, 0)
    number, written = 0, 0
    with path.open("ab") as file:
        while written < size:
            id_ = f"cli:{number:08}"
            text = f"{number}: {TEXT * (1 + number % 4)}"
            usage = {"prompt": 1000, "completion": 50, "cost_usd": 0.001}
            asked = make_line("user", text, AT, message_id=id_, sender={"id": "1", "name": "Ada"})
            told = make_line("assistant", text, AT, message_id=id_, final=True, usage=usage)
            written += file.write(orjson.dumps(asked) + b"\n" + orjson.dumps(told) + b"\n")
            number += 1
    head = orjson.loads(path.open("rb").readline()) | {"last_consolidated": 2 * number - FRESH}
    rest = path.with_suffix(".rest")
    path.rename(rest)
    with path.open("wb") as file, rest.open("rb") as old:
        old.readline()
        file.write(orjson.dumps(head) + b"\n")
        shutil.copyfileobj(old, file)
    rest.unlink()
    return 2 * number


def _bare(workspace: Path) -> float:
    """Return the seconds that the parser alone takes for the lines."""
    began = time.perf_counter()
    with (workspace / "sessions" / "cli_big.jsonl").open("rb") as file:
        for raw in file:
            orjson.loads(raw)
    return time.perf_counter() - began


def _child(workspace: Path) -> dict[str, float]:
    command = [sys.executable, "-m", "bench.big", str(workspace)]
    answer: dict[str, float] = json.loads(subprocess.run(command, stdout=subprocess.PIPE, check=True).stdout)
    return answer


async def measure(workspace: Path) -> dict[str, Any]:
    """Open the big transcript in this process, and run a turn on it."""
    async with place(workspace, Instant()) as here:
        await here.turn(SMALL, f"s{time.time_ns()}", "a message")
        before = _peak_mb()
        began, used = time.perf_counter(), time.process_time()
        async with here.store.open(BIG) as session:
            opened, cpu = time.perf_counter() - began, time.process_time() - used
            assert len(session) > 0
        began = time.perf_counter()
        await here.turn(BIG, f"b{time.time_ns()}", "a message")
        turn = time.perf_counter() - began
    return {"cpu_s": cpu, "open_s": opened, "turn_s": opened + turn, "grew_mb": _peak_mb() - before}


def _peak_mb() -> float:
    for line in Path("/proc/self/status").read_text().splitlines():
        if line.startswith("VmHWM:"):
            return int(line.split()[1]) / 1024
    raise OSError("/proc/self/status has no VmHWM")


if __name__ == "__main__":
    print(json.dumps(asyncio.run(measure(Path(sys.argv[1])))))
