"""Verbs that root runs beside a service of another user, or before it starts, silence nothing."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.gateway.service_place import as_root, service, strangers_files, workspace_of_the_service
from tests.support.guarantee import guarantee
from tests.support.harness import ask
from tests.support.telegram_server import TelegramServer
from tests.system.platform_place import ADA, told, with_telegram

pytestmark = [
    as_root,
    guarantee(
        "operation", "A command that root runs never locks a service of another user out of its files."
    ),
]
BOB = 87654321


@pytest.fixture
def workspace() -> Iterator[Path]:
    with workspace_of_the_service() as folder:
        yield folder


def transcript(folder: Path) -> Path:
    path = folder / "foreign.jsonl"
    lines: list[dict[str, object]] = [
        {"_type": "metadata", "key": "cli:imported", "created_at": "2026-01-01T00:00:00", "metadata": {}},
        {"role": "user", "content": "from elsewhere", "timestamp": "2026-01-01T00:00:00"},
        {"role": "assistant", "content": "indeed", "timestamp": "2026-01-01T00:00:01"},
    ]
    path.write_text("".join(json.dumps(line) + "\n" for line in lines))
    return path


async def verbs_of_root(workspace: Path, folder: Path) -> None:
    """Run each verb that writes."""
    await told(workspace, "cron", "add", "--every", "24h", "--message", "wake up")
    await told(workspace, "chat", "-m", "from root", "--key", "cli:root")
    await told(workspace, "sessions", "new", "cli:root")
    await told(workspace, "sessions", "import", "--from", "nanobot", str(transcript(folder)))
    await told(workspace, "memory", "show", "cli:root")
    await told(workspace, "sessions", "close", "cli:imported")


async def test_a_service_answers_after_everything_that_root_did_beside_it(
    workspace: Path, tmp_path: Path
) -> None:
    async with (
        TelegramServer() as server,
        service(workspace, with_telegram(server, direct="pairing")) as daemon,
    ):
        server.write(ADA, "let me in")
        code = re.search(r"\b[A-Z0-9]{8}\b", (await server.said(ADA)).text)
        assert code is not None
        await told(workspace, "pairing", "approve", code[0])
        await verbs_of_root(workspace, tmp_path)

        server.write(ADA, "hello")
        await server.said(ADA, lambda sent: sent.text == "echo: hello")
        server.write(BOB, "let me in, too")
        assert "pairing approve" in (await server.said(BOB)).text
        answer = await ask(daemon, "web:ann", "1", "and here")
        again = await ask(daemon, "cli:root", "2", "and in root's own")
        jobs = json.loads(await told(workspace, "cron", "list", "--json"))
        assert await daemon.stop() == 0

    assert answer is not None
    assert again is not None
    assert (answer["reply"], again["reply"]) == ("echo: and here", "echo: and in root's own")
    assert [job["payload"]["message"] for job in jobs] == ["wake up"]
    assert strangers_files(workspace) == []


async def test_a_service_starts_on_what_root_made_before_it(workspace: Path, tmp_path: Path) -> None:
    """Root ran queue, sessions and all in its own process, in a workspace that was still empty."""
    await verbs_of_root(workspace, tmp_path)

    assert strangers_files(workspace) == []
    async with service(workspace) as daemon:
        answer = await ask(daemon, "cli:root", "1", "hello")
        assert await daemon.stop() == 0
    assert answer is not None
    assert answer["reply"] == "echo: hello"
    assert strangers_files(workspace) == []
