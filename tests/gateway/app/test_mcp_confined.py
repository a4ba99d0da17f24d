"""Servers on their stdio run in the sandbox: of the workspace they have their own folder alone."""

from __future__ import annotations

import asyncio
import sys
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path

from gateway.app.mcp import Confined
from session.mcp.server import Server
from session.mcp.spec import ServerSpec
from tests.session.mcp.mcp_place import GOOD, HERE, TIME, called


@asynccontextmanager
async def confined(workspace: Path, spec: ServerSpec) -> AsyncIterator[Server]:
    """Keep a server up as a daemon of this workspace does."""
    server = Server(spec, workspace / "state/mcp", launch=Confined(workspace).launch)
    keeping = asyncio.create_task(server.run())
    try:
        await server.tried.wait()
        yield server
    finally:
        keeping.cancel()
        await asyncio.wait([keeping])


async def test_a_server_sees_its_own_folder_alone(tmp_path: Path) -> None:
    workspace, secret = tmp_path / "w", tmp_path / "w/memory/MEMORY.md"
    before = GOOD.read_bytes()
    secret.parent.mkdir(parents=True)
    secret.write_text("the safe opens with 1234")
    spec = ServerSpec("good", command=[sys.executable, str(GOOD), "log"], readable=[HERE])
    async with confined(workspace, spec) as server:
        looked = (await called(server, "peek", path=str(secret))).text
        changed = (await called(server, "peek", path=str(GOOD))).text
        setting = (await called(server, "peek", path="/proc/sys/kernel/domainname")).text
        own = (await called(server, "add", a=1, b=2)).text

    assert looked == "refused: No such file or directory"
    assert changed.startswith("refused: ")
    assert setting.startswith("refused: ")
    assert GOOD.read_bytes() == before
    assert own == "3"
    assert (workspace / "state/mcp/good/log").read_text() == "add 1 2\n"


async def test_a_program_that_a_link_names_is_found_with_what_it_needs(tmp_path: Path) -> None:
    """As those are that are installed in environments of their own."""
    link = tmp_path / "bin/time"
    link.parent.mkdir()
    link.symlink_to(TIME)
    async with confined(tmp_path / "w", ServerSpec("time", command=[str(link)])) as server:
        assert [tool.name for tool in server.tools] == ["convert_time", "get_current_time"]


async def test_one_that_cannot_be_confined_is_not_started(tmp_path: Path) -> None:
    spec = ServerSpec("good", command=[sys.executable, str(GOOD), "log"], readable=[tmp_path / "none"])
    async with confined(tmp_path / "w", spec) as server:
        said = server.part()["error"]

    assert said == f"it is not started: {tmp_path / 'none'} is to be readable and is not there"
    assert not (tmp_path / "w/state/mcp/good/log").exists()
