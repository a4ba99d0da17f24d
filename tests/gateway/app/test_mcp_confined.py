"""Servers on their stdio run in the sandbox: of the workspace they have their own folder alone."""

from __future__ import annotations

import asyncio
import shutil
import sys
import tempfile
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager
from pathlib import Path

import pytest
from structlog.testing import capture_logs

from gateway.app.wiring_mcp import Confined
from session.mcp.server import Server
from session.mcp.spec import ServerSpec
from tests.session.mcp.mcp_place import GOOD, HERE, TIME, called
from tests.support.place import write

pytestmark = pytest.mark.ordinary_user


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
    write(secret, "the safe opens with 1234")
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

    assert said == f"not started: {tmp_path / 'none'} is in readable but does not exist"
    assert not (tmp_path / "w/state/mcp/good/log").exists()


@pytest.fixture
def var_tmp() -> Iterator[Path]:
    folder = Path(tempfile.mkdtemp(prefix="chat-gateway-test-", dir="/var/tmp"))
    yield folder
    shutil.rmtree(folder)


async def test_one_below_var_tmp_runs(tmp_path: Path, var_tmp: Path) -> None:
    """The sandbox has a folder of its own there; so has a workspace that lies there."""
    shutil.copy(GOOD, var_tmp)
    for workspace, readable in ((tmp_path / "w", var_tmp), (var_tmp / "w", HERE)):
        command = [sys.executable, str(readable / GOOD.name), "log"]
        async with confined(workspace, ServerSpec("good", command=command, readable=[readable])) as server:
            assert (await called(server, "add", a=1, b=2)).text == "3"


SAYS = """\
import os, sys
print("x" * 30_000, "line before", file=sys.stderr)
print("key", os.environ["KEY"], "quoted", repr(os.environ["KEY"]), "word s3cret", file=sys.stderr)
"""
KEY = "it's s3cret"


@pytest.mark.parametrize(
    ("script", "readable", "said", "cure"),
    [
        ("print('never')", False, "can't open file", "SCRIPT is not visible in the sandbox"),
        (f"{SAYS}raise SystemExit('no MODE')", True, "no MODE", "add what it needs to its table"),
        ("import os; os.environ['API_URL']", True, "KeyError: 'API_URL'", "variables to env"),
        ("open('/etc/shadow')", True, "'/etc/shadow'", "/etc/shadow is not visible in the sandbox"),
        (f"{SAYS}print(os.environ['KEY'] * 3_000, file=sys.stderr)", True, "exited with code 0", "its table"),
    ],
    ids=["script-outside", "its-own-words", "variable-missing", "file-outside", "one-long-line"],
)
async def test_one_that_does_not_start_says_why_and_names_the_cure(
    tmp_path: Path, script: str, readable: bool, said: str, cure: str
) -> None:
    """The end of its stderr, without its secrets, is for the operator; the log has none of it."""
    path = tmp_path / "outside/server.py"
    path.parent.mkdir()
    path.write_text(script)
    spec = ServerSpec(
        "good",
        command=[sys.executable, "-u", str(path)],
        env={"KEY": KEY},
        readable=[path.parent] if readable else [],
    )
    with capture_logs() as logged:
        async with confined(tmp_path / "w", spec) as server:
            part = server.part()

    assert said in part["error"]
    assert len(part["error"]) < 600
    assert cure.replace("SCRIPT", str(path)) in part["hint"]
    assert "s3cret" not in str(part)
    kept = [line for line in logged if line["log_level"] != "debug"]
    assert kept
    assert "it wrote" not in str(kept)
