"""What a daemon has let go of goes back to the system: its threads share few places of the allocator."""

from __future__ import annotations

import asyncio
import os
import subprocess
import sys
from pathlib import Path

import pytest

from gateway.app.allocator import ARENAS
from tests.support.arenas import arenas, needs_glibc
from tests.support.guarantee import guarantee
from tests.support.harness import Daemon, ask

pytestmark = guarantee("operation", "Freed memory returns to the operating system.")


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


# As many threads as may have a place of their own, each asking for memory while the others do.
THREADS = """
import os, threading
from gateway.app.allocator import keep_little
from tests.support.arenas import arenas

keep_little()
together = threading.Barrier(6)
held = []

def ask():
    together.wait()
    held.append([bytes(2000) for _ in range(2000)])
    together.wait()

threads = [threading.Thread(target=ask) for _ in range(6)]
for thread in threads: thread.start()
for thread in threads: thread.join()
print(arenas(os.getpid()))
"""


@needs_glibc
@pytest.mark.parametrize(
    ("said", "stands"),
    [({}, False), ({"MALLOC_ARENA_MAX": "6"}, True), ({"GLIBC_TUNABLES": "glibc.malloc.arena_max=6"}, True)],
)
def test_what_an_operator_says_of_it_stands(said: dict[str, str], stands: bool) -> None:
    """Who tunes the allocator by its own variables knows why."""
    env = {name: value for name, value in os.environ.items() if not name.startswith(("MALLOC_", "GLIBC_"))}
    done = subprocess.run(
        [sys.executable, "-c", THREADS], env=env | said, capture_output=True, text=True, check=True
    )
    assert (int(done.stdout) > ARENAS) is stands
