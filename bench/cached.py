"""What 1,000 chats in the cache take of memory, beside a nanobot that holds the same."""

from __future__ import annotations

import asyncio
from pathlib import Path

from bench.place import folder, place, transcript
from bench.row import Row
from session.transcript.key import SessionKey
from tests.support import peers

CHATS, MESSAGES = 1_000, 40


def run() -> list[Row]:
    """Open each once here, load each once there."""
    with folder() as home:
        for number in range(CHATS):
            transcript(home, _key(number), MESSAGES)
        words = {"workspace": str(home), "chats": CHATS, "messages": MESSAGES}
        theirs = peers.ask(peers.NANOBOT_014, home, do="memory", **words)["bytes"]
        # A turn adds to the files, so that theirs are read first.
        ours = asyncio.run(_ours(home))
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
        )
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


def resident_bytes() -> int:
    """Return this process's resident memory."""
    for line in Path("/proc/self/status").read_text().splitlines():
        if line.startswith("VmRSS"):
            return int(line.split()[1]) * 1024
    raise OSError("no VmRSS")
