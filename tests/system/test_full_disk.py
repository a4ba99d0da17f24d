"""A disk that is full: what was accepted waits and is answered, what was not is refused."""

from __future__ import annotations

import asyncio
import subprocess
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

import httpx
import pytest

from tests.support.broker import Broker
from tests.support.foreign import Steady, inbound
from tests.support.guarantee import guarantee
from tests.support.harness import Daemon, ask
from tests.support.place import contents, on
from tests.support.verdict import check

KEY = "foreign:ann"
STEM = "foreign_ann"


@contextmanager
def small_disk(folder: Path, size_kb: int) -> Iterator[Path]:
    """A file system of its own that a test can fill."""
    folder.mkdir()
    mounted = subprocess.run(["mount", "-t", "tmpfs", "-o", f"size={size_kb}k", "tmpfs", folder], check=False)
    if mounted.returncode:
        pytest.fail("mounting a small tmpfs needs root")
    try:
        yield folder
    finally:
        subprocess.run(["umount", "--lazy", folder], check=True)


def fill(folder: Path) -> Path:
    """Take all room that is left."""
    filler = folder / "filler"
    with filler.open("wb", buffering=0) as file, suppress(OSError):
        while file.write(b"x" * 4096):
            pass
    return filler


@guarantee("failures", "A full disk delays turns and causes one notice in each chat.")
async def test_a_full_disk_keeps_turns_waiting_and_tells_the_chat_once(
    tmp_path: Path, broker: Broker, broker_name: str
) -> None:
    long = "x" * 20_000
    with small_disk(tmp_path / "disk", 2048) as disk:
        workspace = disk / "workspace"
        async with (
            Daemon(workspace, role="session", config=on(broker, broker_name)) as daemon,
            Steady(broker.url, name=broker_name) as client,
        ):
            await client.put(inbound(KEY, "m1", "one"))
            await client.answered("m1#reply")
            filler = fill(disk)
            for name in ("m2", "m3"):
                await client.put(inbound(KEY, name, f"{name} {long}"))
            await client.answered("m2#notice.storage")
            await daemon.said("turn.delayed", times=2)
            # It tries on: nothing comes into the file before it is committed.
            assert contents(workspace, STEM) == ["one", "echo: one"]
            filler.unlink()
            texts = await client.answered("m2#reply", "m3#reply")
            assert await daemon.stop() == 0

        assert {text[:8] for text in texts.values()} == {"echo: m2", "echo: m3"}
        said = [reply["id"] for reply in client.replies]
        assert said == ["m1#reply", "m2#notice.storage", "m2#reply", "m3#reply"]
        assert check(workspace, {STEM: ["m1", "m2", "m3"]}).sound


async def test_a_full_disk_under_the_embedded_queue_loses_nothing_that_it_accepted(tmp_path: Path) -> None:
    """What is accepted is answered, what is not says 503; under the same id all works when there is room."""
    long = "x" * 20_000
    with small_disk(tmp_path / "disk", 2048) as disk:
        workspace = disk / "workspace"
        async with Daemon(workspace) as daemon, httpx.AsyncClient(timeout=30) as client:
            assert await ask(daemon, "web:a", "0", "zero")
            filler = fill(disk)
            codes = []
            for number in (1, 2):
                body = {"chat_id": "a", "text": f"{number} {long}", "id": str(number)}
                codes.append((await client.post(f"{daemon.url}/v1/messages", json=body)).status_code)
            filler.unlink()
            for number in (1, 2):
                async with asyncio.timeout(120):
                    while not (answer := await ask(daemon, "web:a", str(number), f"{number} {long}")):
                        await asyncio.sleep(0.1)
                assert answer["reply"] == f"echo: {number} {long}"
            assert await daemon.stop() == 0

        assert set(codes) <= {202, 503}
        assert 503 in codes
        verdict = check(workspace, {"web_a": [f"web:{number}" for number in range(3)]})
        assert verdict.sound, verdict
