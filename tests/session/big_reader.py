"""Opens the big transcript of a WORKSPACE and reads its end; prints by how much its memory grew."""

from __future__ import annotations

import asyncio
import json
import sys
from datetime import UTC
from pathlib import Path

from session.store.store import Store
from session.transcript.key import SessionKey
from tests.session.big_place import KEY, exchange


def peak_mb() -> float:
    for line in Path("/proc/self/status").read_text().splitlines():
        if line.startswith("VmHWM:"):
            return int(line.split()[1]) / 1024
    raise OSError("/proc/self/status has no VmHWM")


async def read(workspace: Path) -> dict[str, float]:
    store = Store(workspace, zone=UTC)
    async with store.open(SessionKey("cli:small")) as session:
        await session.append(exchange(1))
    before = peak_mb()
    async with store.open(KEY) as session:
        await session.append(exchange(9))
        count = len(session)
        assert len(session.lines(count - 60)) == 60
        assert session.find("cli:9") is not None
        assert session.find_sent("nobody's") is None
        await session.checkpoint(last_consolidated=count - 10)
    await store.aclose()
    return {"messages": count, "grew_mb": peak_mb() - before}


if __name__ == "__main__":
    print(json.dumps(asyncio.run(read(Path(sys.argv[1])))))
