"""What a daemon has let go of goes back to the system: its threads share few places of the allocator."""

from __future__ import annotations

import asyncio
from pathlib import Path

from gateway.app.allocator import ARENAS
from tests.support.arenas import arenas, needs_glibc
from tests.support.harness import Daemon, ask


@needs_glibc
async def test_the_threads_of_a_daemon_share_few_places(tmp_path: Path) -> None:
    """Left alone, each of the disk's threads gets one of its own, which keeps what was once free there."""
    # One that is forked from a process with threads would have those of that process as well.
    async with Daemon(tmp_path, anew=True) as daemon:
        async with asyncio.TaskGroup() as group:
            for number in range(60):
                group.create_task(ask(daemon, f"web:c{number}", "m", f"question {number}"))

        assert daemon.pid is not None
        assert arenas(daemon.pid) <= ARENAS
