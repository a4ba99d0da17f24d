"""Opens a connection to a server as the configuration has it: as a process of our own, or over HTTP."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Final
from urllib.parse import parse_qsl, urlsplit

from session.mcp.connection import Connection, connected
from session.mcp.errors import ServerFailed
from session.mcp.headers import read_headers
from session.mcp.process import Launch, running
from session.mcp.spec import ServerSpec
from session.mcp.streams import over_http, over_process
from session.mcp.watch import Watch

# A server may have to look for much before it answers; one of the older era is asked in the newer for 10 s.
START_S: Final = 30.0


@asynccontextmanager
async def opened(
    spec: ServerSpec, folder: Path, *, launch: Launch, clock: Callable[[], float]
) -> AsyncIterator[Connection]:
    """Keep a connection while the context is open; ``folder`` is where a process of our own works.

    Raises:
        ServerFailed: it cannot be opened, or broke.
    """
    headers = await asyncio.to_thread(read_headers, spec.headers_file) if spec.url else {}
    asked = [value for _, value in parse_qsl(urlsplit(spec.url).query)]
    watch = Watch(clock=clock, secrets=[*headers.values(), *asked, *spec.env.values()])
    if spec.url:
        over = over_http(spec.url, headers, watch, timeout_s=spec.timeout_s)
        async with connected(over, watch, within_s=START_S) as connection:
            yield connection
        return
    async with running(spec, folder, launch) as process:
        try:
            async with connected(over_process(process, watch), watch, within_s=START_S) as connection:
                yield connection
        except ServerFailed as fault:
            await process.explain(fault, spec)
            raise
