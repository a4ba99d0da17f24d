"""What a service cannot read or write holds messages back, and is shown where people look."""

from __future__ import annotations

import json
import os
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import httpx
import pytest

from gateway.doctor.workspace import mend_owners, owner_check
from tests.gateway.service_place import UID, as_root, service, strangers_files, workspace_of_the_service
from tests.support.guarantee import guarantee
from tests.support.harness import Daemon, command
from tests.support.telegram_server import TelegramServer
from tests.support.until import until
from tests.system.platform_place import ADA, told, with_telegram

pytestmark = [
    as_root,
    guarantee("operation", "A file error that holds messages back is shown with its channel."),
]
BOB = 87654321


@pytest.fixture
def workspace() -> Iterator[Path]:
    with workspace_of_the_service() as folder:
        yield folder


def take(path: Path) -> None:
    """Put a copy in the place of a file, as a root that keeps no owners does."""
    copy = path.with_suffix(".new")
    copy.write_bytes(path.read_bytes())
    copy.chmod(0o600)
    copy.replace(path)


async def parts(daemon: Daemon) -> dict[str, Any]:
    async with httpx.AsyncClient(base_url=daemon.url, timeout=60) as client:
        answer = await client.get("/readyz")
        assert answer.status_code == 200
        found: dict[str, Any] = answer.json()["parts"]
        return found


async def doctor(workspace: Path, config: dict[str, Any], *more: str) -> dict[str, dict[str, str]]:
    _, printed = await command(workspace, "doctor", "--json", *more, config=config)
    return {check["name"]: check for check in json.loads(printed)}


async def test_what_holds_arrivals_back_turns_their_channel_down(workspace: Path) -> None:
    """``/readyz``, ``status`` and ``doctor`` name a lock that is root's; mended, nothing is lost."""
    async with TelegramServer() as server:
        config = with_telegram(server, direct="pairing")
        async with service(workspace, config) as daemon:
            server.write(ADA, "let me in")
            await server.said(ADA)
            take(workspace / "state" / "channels.lock")
            server.write(BOB, "me, too")
            await daemon.said("arrival.waits")

            part = (await parts(daemon))["telegram"]
            status = json.loads(await told(workspace, "status", "--json"))
            checks = await doctor(workspace, config)
            await told(workspace, "doctor", "--fix")
            said = await server.said(BOB)

            async def up() -> bool:
                return bool((await parts(daemon))["telegram"]["up"])

            await until(up, within_s=30)

    assert not part["up"]
    assert part["error"].startswith("1 message waits: channels.db cannot be written: ")
    assert part["error"].endswith(f"Permission denied: '{workspace}/state/channels.lock'")
    shown_there = status["parts"]["telegram"]
    assert (shown_there["up"], shown_there["error"]) == (False, part["error"])
    assert checks["owners"]["level"] == "fail"
    assert "state/channels.lock" in checks["owners"]["text"]
    assert checks["owners"]["cure"] == f"chown -R {UID}:{UID} {workspace}"
    assert re.search(r"\b[A-Z0-9]{8}\b", said.text)
    assert strangers_files(workspace) == []


async def test_a_transcript_that_cannot_be_read_turns_its_channel_down(workspace: Path) -> None:
    async with TelegramServer() as server:
        config = with_telegram(server)
        async with service(workspace, config) as daemon:
            server.write(ADA, "one")
            await server.said(ADA, lambda sent: sent.text == "echo: one")
            take(workspace / "sessions" / f"telegram_{ADA}.jsonl")
            server.write(ADA, "two")
            await daemon.said("turn.delayed")

            held = await parts(daemon)
            await told(workspace, "doctor", "--fix")
            await server.said(ADA, lambda sent: sent.text == "echo: two")

            async def up() -> bool:
                found = await parts(daemon)
                return bool(found["telegram"]["up"] and not found["lanes"]["error"])

            await until(up, within_s=30)

    cause = f"1 chat waits: telegram_{ADA}.jsonl cannot be read: Permission denied"
    assert not held["telegram"]["up"]
    assert held["telegram"]["error"] == held["lanes"]["error"] == cause


async def test_doctor_gives_back_no_file_that_has_a_second_name(workspace: Path) -> None:
    """Its other name may be one of the system's, and whoever owns the workspace may have linked it in."""
    outside = workspace.parent / "shadow"
    outside.write_text("secret")
    outside.chmod(0o600)
    (workspace / "state").mkdir(mode=0o700)
    os.chown(workspace / "state", UID, UID)
    os.link(outside, workspace / "state" / "channels.db")

    given = mend_owners(workspace)

    assert given == 0
    assert outside.stat().st_uid == 0
    assert owner_check(workspace).level == "fail"


async def test_files_of_a_person_that_can_be_read_are_fine(workspace: Path) -> None:
    folder = workspace / "files"
    folder.mkdir(mode=0o700)
    os.chown(folder, UID, UID)
    (folder / "handbook.md").write_text("read me")
    (folder / "handbook.md").chmod(0o644)

    assert owner_check(workspace).level == "ok"
