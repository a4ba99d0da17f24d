"""Erases a person, and dies at each step of it: ``python -m tests.gateway.erasing_victim FOLDER``.

Each child works on a copy of the workspace, named ``FOLDER-<number>``, and dies at its n-th change of the
disk. Prints how many children there were; the last one got to its end.
"""

from __future__ import annotations

import os
import sys
from pathlib import Path

import structlog

from session.store.state import workspace_state
from tests.gateway.erasing_place import eraser
from tests.session.dying import CHANGES, SYNCS, die_everywhere


async def erase(workspace: Path) -> None:
    state, null = workspace_state(workspace / "state"), os.open(os.devnull, os.O_RDWR)
    # A change that the caller of ``die_everywhere`` counts: a kill behind a commit, before its files follow.
    state.at = lambda name: os.pwrite(null, b"", 0) if name == "committed" else None
    async with eraser(workspace) as (erasure, _):
        await erasure.person("ada")


def main(folder: Path) -> None:
    structlog.configure(
        wrapper_class=structlog.make_filtering_bound_logger(50),
        logger_factory=structlog.PrintLoggerFactory(sys.stderr),
    )
    # A sync changes nothing that the next life could see.
    print(die_everywhere(folder, erase, changes=[name for name in CHANGES if name not in SYNCS]))


if __name__ == "__main__":
    main(Path(sys.argv[1]))
