"""What 1,000 chats in the cache take of memory, beside a nanobot with as many; and a turn in a full one.

Where there are more chats than the cache has room for, and they write in turn, each turn reads a chat from
its files and gives up another. That costs the same however many the cache holds.
"""

from __future__ import annotations

import asyncio
import time
from dataclasses import dataclass, field
from pathlib import Path

from bench.place import Place, folder, place, transcript
from bench.row import Row, median, times_slower
from session.transcript.key import SessionKey
from tests.support import peers

CHATS, MESSAGES = 1_000, 40
# Chats that a full cache holds; and how many turns are measured in each.
FEW, MANY = 250, 5_000
ROUNDS, TURNS = 5, 200
# What is too many for the cache, of what it holds.
TOO_MANY = 1.2


def run() -> list[Row]:
    """Open each once here, load each once there."""
    with folder() as home:
        for number in range(CHATS):
            transcript(home, _key(number), MESSAGES)
        words = {"workspace": str(home), "chats": CHATS, "messages": MESSAGES}
        theirs = peers.ask(peers.NANOBOT_014, home, do="memory", **words)["bytes"]
        # A turn adds to the files, so that theirs are read first.
        ours = asyncio.run(_ours(home))
    with folder() as home:
        few, many = asyncio.run(_full(home))
    return [
        Row(
            "memory of 1,000 cached chats",
            ours / 2**20,
            theirs / 2**20,
            "MB",
            "nanobot 0.1.4.post3",
            ours / theirs,
            at_most=1,
            notes={
                "what": f"resident memory that {CHATS:,} chats of {MESSAGES} messages add, each once in use"
            },
        ),
        times_slower(
            f"a turn in a full cache of {MANY:,} chats",
            median(many),
            median(few),
            f"the same of {FEW}",
            what=f"each of a chat that has to be read; medians of {ROUNDS * TURNS}, in turn",
            at_most=1.3,
        ),
    ]


def _key(number: int) -> SessionKey:
    return SessionKey(f"cli:m{number}")


async def _ours(workspace: Path) -> int:
    async with place(workspace) as here:
        # What the first turn imports and opens is no chat's.
        await here.turn(SessionKey("cli:first"), "first", "hello")
        before = resident_bytes()
        for number in range(CHATS):
            await here.turn(_key(number), f"m{number}.next", "hello")
        return resident_bytes() - before


@dataclass
class _Full:
    """A place whose cache is full: more chats write in turn than it has room for."""

    here: Place
    chats: int
    turns: int = 0
    samples: list[float] = field(default_factory=list)

    async def turn(self) -> None:
        """Run the next chat's turn, and note the seconds that it took."""
        chat = self.turns % self.chats
        began = time.perf_counter()
        await self.here.turn(_key(chat), f"m{self.turns}", "hello")
        self.samples.append(time.perf_counter() - began)
        self.turns += 1


async def _full(home: Path) -> tuple[list[float], list[float]]:
    """Return the seconds of turns in a full cache of few chats, and of many: each chat has to be read."""
    async with place(home / "one") as probe:
        await probe.turn(_key(0), "probe", "hello")
        each = probe.store.cached_bytes()
    async with (
        place(home / "few", cache_bytes=FEW * each) as few,
        place(home / "many", cache_bytes=MANY * each) as many,
    ):
        both = [_Full(few, int(FEW * TOO_MANY)), _Full(many, int(MANY * TOO_MANY))]
        for full in both:
            for chat in range(full.chats):
                await full.here.turn(_key(chat), f"c{chat}", "hello")
        for _ in range(ROUNDS):
            for full in both:
                for _ in range(TURNS):
                    await full.turn()
    return both[0].samples, both[1].samples


def resident_bytes() -> int:
    """Return this process's resident memory."""
    for line in Path("/proc/self/status").read_text().splitlines():
        if line.startswith("VmRSS"):
            return int(line.split()[1]) * 1024
    raise OSError("no VmRSS")
