"""Repairs a damaged workspace, dying at each step: ``python -m tests.gateway.repair_victim FOLDER``.

Each child works on a copy of the workspace, named ``FOLDER-<number>``, and dies at its n-th change of the
disk. Prints how many children there were; the last one got to its end. ``fix`` behind the folder does what
``doctor --fix`` does, else it is what ``sessions verify --repair`` does.
"""

from __future__ import annotations

import asyncio
import sys
from datetime import UTC
from pathlib import Path

import structlog

from gateway.config.settings import Settings
from gateway.doctor.workspace import cron_damage, fix
from session.kept.checking import verify
from session.store.store import Store
from tests.session.dying import CHANGES, SYNCS, die_everywhere


async def repair(workspace: Path) -> None:
    store = Store(workspace, zone=UTC)
    await verify(store, repair=True)
    cron_damage(workspace, repair=True)
    await store.aclose()


async def mend(workspace: Path) -> None:
    settings = Settings.model_validate({"workspace": workspace})
    # In a thread, since it has a loop of its own.
    await asyncio.to_thread(lambda: list(fix(settings)))


def main(folder: Path, *words: str) -> None:
    structlog.configure(
        wrapper_class=structlog.make_filtering_bound_logger(50),
        logger_factory=structlog.PrintLoggerFactory(sys.stderr),
    )
    # A sync changes nothing that the next life could see.
    changes = [name for name in CHANGES if name not in SYNCS]
    print(die_everywhere(folder, mend if "fix" in words else repair, changes=changes))


if __name__ == "__main__":
    main(Path(sys.argv[1]), *sys.argv[2:])
