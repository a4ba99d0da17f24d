"""Servers of tests, kept up as a daemon keeps them."""

from __future__ import annotations

import asyncio
import subprocess
import sys
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager, contextmanager
from pathlib import Path
from typing import Any

from session.mcp.connection import Answer
from session.mcp.server import Server
from session.mcp.spec import CallFailed, ServerSpec
from tests.support.until import until

HERE = Path(__file__).parent
ROOT = Path(__file__).parents[3]
TOKEN = "sesame-sesame-sesame"
GOOD, WILD = HERE / "good_server.py", HERE / "wild_server.py"
# A server from a registry, as it was installed.
TIME = Path(sys.executable).with_name("mcp-server-time")


def spec_of(script: Path, log: Path, *arguments: object, **more: Any) -> ServerSpec:
    """Configure a server of ours."""
    return ServerSpec(
        script.stem, command=[sys.executable, str(script), str(log), *map(str, arguments)], **more
    )


@contextmanager
def served(log: Path, port: int, era: str = "new") -> Iterator[None]:
    """Run a server over HTTP, and go on when it listens: its imports take as long as the machine is busy."""
    words = [sys.executable, "-m", "tests.session.mcp.http_server", str(log), str(port), era, TOKEN]
    with subprocess.Popen(words, cwd=ROOT, stdout=subprocess.PIPE) as process:
        try:
            assert process.stdout is not None
            assert process.stdout.readline() == b"listening\n"
            yield
        finally:
            process.kill()


def at(folder: Path, port: int, *, path: str = "mcp", token: str = TOKEN, **more: Any) -> ServerSpec:
    """Configure the server, with its token in a file."""
    headers = folder / "headers"
    headers.write_text(f"# who we are\nAuthorization: Bearer {token}\n")
    return ServerSpec("good", url=f"http://127.0.0.1:{port}/{path}", headers_file=headers, **more)


@asynccontextmanager
async def kept_up(spec: ServerSpec, folder: Path) -> AsyncIterator[Server]:
    """Keep a server up until the context is left; its first start is over when it is entered."""
    server = Server(spec, folder)
    keeping = asyncio.create_task(server.run(), name="keeping")
    try:
        await server.tried.wait()
        yield server
    finally:
        keeping.cancel()
        await asyncio.wait([keeping])


async def called(server: Server, name: str, **arguments: Any) -> Answer:
    """Call a tool by its name."""
    tool = next(tool for tool in server.tools if tool.name == name)
    return await server.call(tool, arguments)


async def fault(server: Server, name: str, **arguments: Any) -> str:
    """Call a tool, which has to fail, and return what is said of it."""
    try:
        answer = await called(server, name, **arguments)
    except CallFailed as error:
        return str(error)
    raise AssertionError(f"it did not fail: {answer}")


async def up_again(server: Server) -> None:
    """Wait until a server that went down is up once more."""
    await until(lambda: not server.part()["up"])
    await until(lambda: server.part()["up"])


def noted(log: Path) -> list[str]:
    """Return what a server wrote down."""
    return log.read_text().splitlines() if log.exists() else []
