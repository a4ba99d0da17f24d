"""Opens a connection to a server as the configuration has it: as a process of our own, or over HTTP."""

from __future__ import annotations

import asyncio
import re
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Final
from urllib.parse import parse_qsl, urlsplit

from session.mcp.connection import Connection, connected
from session.mcp.errors import ServerFailed
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


MAX_BYTES: Final = 64 * 1024
_NAME = re.compile(r"[A-Za-z0-9!#$%&'*+.^_`|~-]+")


def read_headers(path: Path | None) -> dict[str, str]:
    """Read the file anew at each connection, so that a secret may be changed; none where there is none.

    Raises:
        ServerFailed: it cannot be read, or a line is no header; without a word of what stands there.
    """
    if path is None:
        return {}
    cure = "one header per line, as Name: value"
    try:
        # What a name leads to may have no end, as devices have none.
        with path.open("rb") as file:
            data = file.read(MAX_BYTES + 1)
    except OSError as error:
        raise ServerFailed(f"headers_file {path} cannot be read: {error.strerror}") from error
    if len(data) > MAX_BYTES:
        raise ServerFailed(f"headers_file {path} has over {MAX_BYTES} bytes", hint=cure)
    found: dict[str, str] = {}
    for number, line in enumerate(data.decode("utf-8-sig", "replace").splitlines(), 1):
        if not line.strip() or line.startswith("#"):
            continue
        name, colon, value = line.partition(":")
        if not colon or not _NAME.fullmatch(name) or not (value.isascii() and value.strip().isprintable()):
            raise ServerFailed(f"headers_file {path}, line {number}: not a header", hint=cure)
        found[name] = value.strip()
    return found
