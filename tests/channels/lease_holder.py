"""Takes a lease, says so, and keeps it until it is killed: ``python -m … STATE NAME``."""

from __future__ import annotations

import asyncio
import sys
from pathlib import Path

from channels.storage import lease


async def main(state: str, name: str) -> None:
    async with lease(Path(state), name):
        print("held", flush=True)
        await asyncio.Event().wait()


if __name__ == "__main__":
    asyncio.run(main(*sys.argv[1:]))
