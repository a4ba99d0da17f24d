"""A message that was accepted in the first second of a new workspace survives a power cut."""

from __future__ import annotations

import asyncio
import sys
from pathlib import Path

import httpx
import pytest

from tests.support.guarantee import guarantee
from tests.support.harness import ROOT, environment

pytestmark = guarantee("storage", "A new folder is on disk before anything in it counts as stored.")


async def accepted(process: asyncio.subprocess.Process) -> int:
    """Wait for the ``ready`` line, send the first message, and return the status of its answer."""
    assert process.stderr is not None
    async with asyncio.timeout(120):
        async for line in process.stderr:
            if line.startswith(b"ready "):
                url = line.decode().split()[1]
                break
        async with httpx.AsyncClient(base_url=url, timeout=60) as client:
            sent = await client.post("/v1/messages", json={"chat_id": "ann", "text": "first"})
            return sent.status_code


@pytest.mark.parametrize("there", ["nothing", "workspace", "state"])
async def test_every_folder_of_the_queue_is_synced_into_its_parent_before_the_first_202(
    tmp_path: Path, there: str
) -> None:
    """Also where one that was killed right behind its ``mkdir`` left the folder behind, unsynced."""
    workspace = tmp_path / "new" / "workspace"
    made_before = {"nothing": tmp_path, "workspace": workspace, "state": workspace / "state"}[there]
    made_before.mkdir(parents=True, exist_ok=True)
    log = tmp_path / "calls"
    process = await asyncio.create_subprocess_exec(
        *(sys.executable, "-m", "tests.support.synced_victim", str(log)),
        *("--workspace", str(workspace), "run"),
        cwd=ROOT,
        env=environment({"http.port": 0}),
        stdout=asyncio.subprocess.DEVNULL,
        stderr=asyncio.subprocess.PIPE,
    )
    try:
        status = await accepted(process)
        calls = log.read_text().splitlines()
    finally:
        process.kill()
        await process.communicate()

    assert status == 202
    queue = workspace / "state"
    missing = [path for path in (queue, *queue.parents) if tmp_path in path.parents]
    made = [path for path in missing if f"made {path}" in calls]
    assert made == [path for path in missing if path not in (made_before, *made_before.parents)]
    unsynced = made if there == "nothing" else [*made, made_before]
    for path in unsynced:
        behind = calls[calls.index(f"made {path}") :] if path in made else calls
        assert f"synced {path.parent}" in behind, path
