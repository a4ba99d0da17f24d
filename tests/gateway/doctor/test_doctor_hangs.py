"""Whatever hangs, doctor ends, names it with a cure, and shows what else it found."""

from __future__ import annotations

import asyncio
import json
import os
import socket
import subprocess
import sys
from collections.abc import AsyncIterator, Mapping
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import pytest

import durable
from gateway.app.daemons import DaemonRegistry
from gateway.queue.embedded.mailbox import EmbeddedMailbox
from session.store.state import workspace_state
from tests.support.guarantee import guarantee

pytestmark = guarantee(
    "operation",
    "`doctor` finishes and reports its other findings when a disk, queue, MCP server or sandbox hangs.",
)

WITHIN_S = "2"
# Longer than the looks together take, and shorter than a person would wait.
PATIENCE_S = 60
DISK = "check the disk, or the network drive of this folder"


def doctor(*options: str | Path, env: Mapping[str, str] | None = None) -> tuple[int, list[dict[str, str]]]:
    """Run it to its end; return the exit code and the findings."""
    done = subprocess.run(
        [sys.executable, "-m", "gateway", *options, "doctor", "--json", "--within", WITHIN_S],
        env={**os.environ, **(env or {})},
        capture_output=True,
        text=True,
        timeout=PATIENCE_S,
        check=False,
    )
    assert done.stdout, done.stderr
    found: list[dict[str, Any]] = json.loads(done.stdout)
    return done.returncode, found


def of(found: list[dict[str, str]], name: str) -> dict[str, str]:
    return next(check for check in found if check["name"] == name)


def processes() -> str:
    return subprocess.run(["ps", "-eo", "args"], capture_output=True, text=True, check=True).stdout


def written(folder: Path, text: str) -> Path:
    file = folder / "config.toml"
    file.write_text(text)
    return file


def test_a_configuration_on_a_disk_that_hangs(tmp_path: Path) -> None:
    """What needs no configuration is looked at, and the workspace where it is named."""
    os.mkfifo(tmp_path / "config.toml")
    work = tmp_path / "work"
    work.mkdir()

    code, found = doctor("--config", tmp_path / "config.toml", "--workspace", work)

    text = f"no answer from {tmp_path / 'config.toml'} within 2 s"
    assert code == 1
    assert of(found, "configuration") == {
        "name": "configuration",
        "level": "fail",
        "text": text,
        "cure": DISK,
    }
    assert {"versions", "workspace", "locks", "transcripts", "cron"} <= {check["name"] for check in found}


def test_a_secret_on_a_disk_that_hangs(tmp_path: Path) -> None:
    """Its file is named, not the one of the configuration; which workspace it is, nobody said."""
    os.mkfifo(tmp_path / "token")
    file = written(tmp_path, '[channels.telegram]\nenabled = true\ntoken_file = "token"')

    code, found = doctor("--config", file)

    assert code == 1
    assert of(found, "configuration")["text"] == f"no answer from {tmp_path / 'token'} within 2 s"
    assert "--workspace" in of(found, "workspace")["cure"]


@asynccontextmanager
async def held_queue(workspace: Path) -> AsyncIterator[None]:
    """Hold the embedded queue as a daemon does."""
    state = workspace / "state"
    mailbox = EmbeddedMailbox(state)
    serving = asyncio.create_task(mailbox.serve())
    await mailbox.ready()

    async def changed(_: str, __: bool) -> None:
        """Hear of a change."""

    try:
        async with durable.listening(state, workspace_state(state), changed):
            yield
    finally:
        serving.cancel()
        await asyncio.wait([serving])


async def test_a_queue_whose_daemon_never_answers(tmp_path: Path) -> None:
    """It holds the queue, its page takes connections, and it says nothing."""
    with socket.create_server(("127.0.0.1", 0)) as deaf:
        url = f"http://127.0.0.1:{deaf.getsockname()[1]}/"
        async with held_queue(tmp_path):
            with DaemonRegistry(tmp_path).entry(url=url, role="all"):
                code, found = await asyncio.to_thread(doctor, "--workspace", tmp_path)

    broker = of(found, "broker")
    assert code == 1
    holder = f"the daemon with pid {os.getpid()}"
    assert broker["text"] in (
        f"embedded queue, in use by {holder}, which does not answer",
        f"no answer from {holder} within 2 s",
    )
    assert "chat-gateway status" in broker["cure"]
    assert {"transcripts", "channels"} <= {check["name"] for check in found}


async def test_a_queue_on_a_disk_that_hangs(tmp_path: Path) -> None:
    """Somebody holds it, and the file that names who does not answer."""
    async with held_queue(tmp_path):
        os.mkfifo(tmp_path / "state" / "daemon.json")
        code, found = await asyncio.to_thread(doctor, "--workspace", tmp_path)

    assert code == 1
    text = f"no answer from the queue in {tmp_path / 'state'} within 2 s"
    assert of(found, "broker") == {"name": "broker", "level": "fail", "text": text, "cure": DISK}
    assert {"model", "transcripts", "channels"} <= {check["name"] for check in found}


@pytest.mark.ordinary_user
def test_mcp_servers_that_never_answer(tmp_path: Path) -> None:
    """A program that says nothing, and an address that does; both are named, and the program is ended."""
    with socket.create_server(("127.0.0.1", 0)) as deaf:
        port = deaf.getsockname()[1]
        file = written(
            tmp_path,
            f'[mcp.quiet]\ncommand = ["sleep", "987654"]\n[mcp.deaf]\nurl = "http://127.0.0.1:{port}/mcp"',
        )
        code, found = doctor("--config", file, "--workspace", tmp_path / "work")

    assert code == 1
    for name in ("mcp.quiet", "mcp.deaf"):
        assert of(found, name)["text"] == "no answer from this server within 2 s"
        assert of(found, name)["cure"]
    assert of(found, "transcripts")["level"] == "ok"
    assert "987654" not in processes()


def test_what_is_known_of_mcp_servers_on_a_disk_that_hangs(tmp_path: Path) -> None:
    records = tmp_path / "work" / "state" / "mcp"
    records.mkdir(parents=True)
    os.mkfifo(records / "time.json")
    file = written(tmp_path, '[mcp.time]\ncommand = ["sleep", "987653"]')

    code, found = doctor("--config", file, "--workspace", tmp_path / "work")

    assert code == 1
    assert of(found, "mcp") == {
        "name": "mcp",
        "level": "fail",
        "text": f"no answer from {records} within 2 s",
        "cure": DISK,
    }
    assert {"locks", "channels"} <= {check["name"] for check in found}


@pytest.mark.ordinary_user
def test_a_sandbox_that_never_answers(tmp_path: Path) -> None:
    """The program that confines commands hangs; it is ended."""
    fake = tmp_path / "bwrap"
    fake.write_text("#!/bin/sh\nexec sleep 987652\n")
    fake.chmod(0o755)
    file = written(tmp_path, "[tools.shell]\nenabled = true")

    env = {"PATH": f"{tmp_path}:{os.environ['PATH']}"}
    code, found = doctor("--config", file, "--workspace", tmp_path / "work", env=env)

    assert code == 1
    assert of(found, "tools")["text"] == "no answer from the sandbox within 2 s"
    assert of(found, "transcripts")["level"] == "ok"
    assert "987652" not in processes()
