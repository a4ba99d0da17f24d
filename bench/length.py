"""One more turn on a long transcript costs what it costs on a short one, in time and in bytes."""

from __future__ import annotations

import statistics
import time
from pathlib import Path

from bench.application import run as run_loop
from bench.place import Instant, Place, bytes_written, folder, one_core, place, transcript
from bench.row import Row, median, times_faster, times_slower
from session.models.model import Echo, Model
from session.transcript.key import SessionKey
from session.transcript.line import make_line
from tests.support import peers

SHORT, LONG = 100, 10_000
LENGTHS = (SHORT, 1_000, LONG, 100_000)
# Messages that no memory holds yet.
FRESH = 60
ROUNDS, TURNS = 12, 25
AT = "2026-01-01T10:00:00.000000+00:00"


def run() -> list[Row]:
    """Measure turns and appends here, saves there; on one core for both, as a cold load is, and why."""
    with folder() as here:
        with one_core():
            echo, written = run_loop(lambda: _compare(here / "echo", Echo(), consolidated=False))
            full, _ = run_loop(lambda: _compare(here / "full", Instant(), consolidated=True))
            append_s = run_loop(lambda: _append(here / "append"))
            theirs_s = _theirs(here)
        roaming_s = run_loop(lambda: _append(here / "roaming"))
    peer, same = "nanobot 0.1.4.post3 save", f"the same at {SHORT}"
    # In the order in which they are drawn.
    shorter, longer = (_by_length(length, echo, full) for length in LENGTHS if length not in (SHORT, LONG))
    return [
        shorter,
        times_slower(
            "turn, 10,000 messages",
            echo[LONG],
            echo[SHORT],
            same,
            what=f"Store.open, turn of echo, synced append; medians of {ROUNDS * TURNS}",
            at_most=1.2,
        ),
        times_slower(
            "the same with its history",
            full[LONG],
            full[SHORT],
            same,
            what=f"a full model that answers at once; all but the newest {FRESH} messages consolidated",
            at_most=1.2,
        ),
        longer,
        Row(
            "bytes written by that turn",
            written / 1000,
            64,
            "kB",
            "limit",
            written / 64_000,
            at_most=1,
            notes={"what": "wchar of /proc/self/io: all that was handed to write calls"},
        ),
        times_faster(
            "storing it, times cheaper",
            append_s,
            theirs_s,
            peer,
            what="two lines appended and synced, against its save (not synced) of the same",
            at_least=100,
        ),
        times_faster(
            "the whole turn, times cheaper",
            echo[LONG],
            theirs_s,
            peer,
            what="the turn of the first row, against the save alone of theirs",
            at_least=100,
        ),
        times_faster(
            "storing it, any core",
            roaming_s,
            theirs_s,
            peer,
            what="told only: storing it with a thread that may wake another core",
        ),
    ]


def _by_length(length: int, echo: dict[int, float], full: dict[int, float]) -> Row:
    what = f"told only; with its history {full[length] * 1e3:.2f} ms, at {SHORT} {full[SHORT] * 1e3:.2f} ms"
    ratio = echo[length] / echo[SHORT]
    name, ours, theirs = f"turn, {length:,} messages", echo[length] * 1e3, echo[SHORT] * 1e3
    return Row(name, ours, theirs, "ms", f"the same at {SHORT}", ratio, notes={"what": what})


async def _compare(workspace: Path, model: Model, *, consolidated: bool) -> tuple[dict[int, float], float]:
    """Return the median seconds of a turn by length, alternating, and the mean bytes written at LONG."""
    keys = {length: SessionKey(f"cli:l{length}") for length in LENGTHS}
    took: dict[int, list[float]] = {length: [] for length in LENGTHS}
    written = []
    for length, key in keys.items():
        transcript(workspace, key, length, consolidated=length - FRESH if consolidated else 0)
    async with place(workspace, model) as here:
        for length in keys:
            await _turns(here, keys[length], "warm", 3)
        for number in range(ROUNDS):
            for length, key in keys.items():
                before = bytes_written()
                took[length] += await _turns(here, key, f"r{number}", TURNS)
                wrote = (bytes_written() - before) / TURNS
                # The memory keeps up, as in real life: what is sent stays as short.
                if consolidated:
                    async with here.store.open(key) as session:
                        await session.checkpoint(last_consolidated=len(session) - FRESH)
                if length == LONG:
                    written.append(wrote)
    return {length: median(samples) for length, samples in took.items()}, statistics.mean(written)


async def _turns(here: Place, key: SessionKey, name: str, times: int) -> list[float]:
    took = []
    for number in range(times):
        began = time.perf_counter()
        await here.turn(key, f"{name}.{number}", f"message {number}")
        took.append(time.perf_counter() - began)
    return took


async def _append(workspace: Path) -> float:
    """Return the median seconds of storing one quick turn's two lines on LONG messages."""
    key = SessionKey("cli:append")
    transcript(workspace, key, LONG)
    took = []
    async with place(workspace) as here, here.store.open(key) as session:
        for number in range(ROUNDS * TURNS):
            lines = [
                make_line("user", f"question {number}", AT, message_id=f"m{number}"),
                make_line("assistant", f"answer {number}", AT, message_id=f"m{number}", final=True),
            ]
            began = time.perf_counter()
            await session.append(lines)
            took.append(time.perf_counter() - began)
    return median(took[5:])


def _theirs(home: Path) -> float:
    key = SessionKey("cli:save")
    transcript(home / "theirs", key, LONG)
    answer = peers.ask(peers.NANOBOT_014, home, do="save", workspace=str(home / "theirs"), key=key, times=20)
    return median(answer["took"])
