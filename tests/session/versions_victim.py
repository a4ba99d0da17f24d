"""Changes memory in children that die at each step: ``python -m tests.session.versions_victim DIR TASK``.

Prints how many there are. TASK is ``write`` (a MEMORY.md that a person has edited), ``restore``, ``forget``.
"""

from __future__ import annotations

import sys
from pathlib import Path

import structlog

from session.memory.memory_commands import MemoryHistory
from tests.session.dying import die_everywhere
from tests.session.memory_place import ADA, open_workspace


async def written(folder: Path) -> None:
    async with open_workspace(folder) as house:
        scope = await house.scope(ADA)
        house.memory.notes(scope).write_memory("three\n")


async def restored(folder: Path) -> None:
    async with open_workspace(folder) as house:
        scope = await house.scope(ADA)
        versions = house.memory.notes(scope).versions.all("MEMORY.md")
        first = next(one for one in versions if one.read() == b"one\n")
        await MemoryHistory(house.memory, house.known).restore(ADA, scope, first.id)


async def forgotten(folder: Path) -> None:
    async with open_workspace(folder) as house:
        await house.known.forget(ADA, await house.scope(ADA), "C")


TASKS = {"write": written, "restore": restored, "forget": forgotten}

if __name__ == "__main__":
    # Standard output is for the number alone.
    structlog.configure(logger_factory=structlog.PrintLoggerFactory(sys.stderr))
    print(die_everywhere(Path(sys.argv[1]), TASKS[sys.argv[2]]))
