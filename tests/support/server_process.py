"""Servers of the tests in processes of their own, where what is measured shall not share a loop with them."""

from __future__ import annotations

import asyncio
import sys
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager, suppress
from pathlib import Path


@asynccontextmanager
async def server_process(module: str, *options: str) -> AsyncIterator[tuple[str, asyncio.subprocess.Process]]:
    """Run a server that says ``ready URL``; yields its url and the process, which is killed at the end."""
    process = await asyncio.create_subprocess_exec(
        *(sys.executable, "-m", module, *options),
        stdout=asyncio.subprocess.PIPE,
        cwd=Path(__file__).parent.parent.parent,
    )
    try:
        assert process.stdout is not None
        word, url = (await process.stdout.readline()).decode().split()
        assert word == "ready"
        yield url, process
    finally:
        with suppress(ProcessLookupError):
            process.kill()
        await process.wait()
