"""A process that hangs in the model call of its consolidation, and says ``asked``: ``… WORKSPACE``."""

from __future__ import annotations

import asyncio
import sys
from pathlib import Path

from session.models.model import Answer, Prompt
from tests.session.memory_place import ADA, open_workspace


async def hang(_: Prompt) -> Answer:
    print("asked", flush=True)
    await asyncio.Event().wait()
    raise AssertionError


async def main(folder: Path) -> None:
    async with open_workspace(folder, hang, kind="workspace") as workspace:
        await workspace.memory.consolidate(ADA)


if __name__ == "__main__":
    asyncio.run(main(Path(sys.argv[1])))
