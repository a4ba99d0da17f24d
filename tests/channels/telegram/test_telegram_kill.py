"""A kill of the adapter's process at any instant loses nothing that Telegram was told to forget."""

from __future__ import annotations

import asyncio
import json
import sys
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

from tests.support.guarantee import guarantee
from tests.support.telegram_server import TelegramServer

pytestmark = guarantee("loss", "Telegram's offset never passes an update that the broker has not confirmed.")

ROOT = Path(__file__).resolve().parents[3]
MESSAGES, CHATS = 300, 10
# Messages of that run: in the first batch, at its end, in the second.
KILLED_AFTER = (3, 57, 101, 140)


@asynccontextmanager
async def victim(server: TelegramServer, folder: Path) -> AsyncIterator[asyncio.StreamReader]:
    """Run an adapter in a process of its own, and kill it when the context is left."""
    table = {"enabled": True, "token": server.token, "poll_timeout_s": 1, "request_timeout_s": 5.0}
    table |= {"base_url": server.base_url, "base_file_url": server.base_file_url}
    command = (
        "-m",
        "tests.channels.telegram.telegram_victim",
        json.dumps(table),
        str(folder),
        str(folder / "out"),
    )
    process = await asyncio.create_subprocess_exec(
        sys.executable, *command, cwd=ROOT, stdout=asyncio.subprocess.PIPE
    )
    try:
        assert process.stdout is not None
        yield process.stdout
    finally:
        process.kill()
        await process.wait()


def written(folder: Path) -> list[list[str]]:
    """List what was emitted durably, in the order of writing."""
    return [json.loads(line) for line in (folder / "out").read_text().split("\n")[:-1]]


async def test_kills_while_300_messages_arrive(tmp_path: Path) -> None:
    """What Telegram forgets is durable at that instant; in the end all is, in order per chat."""
    early: list[int] = []

    def forgotten(update: dict[str, Any]) -> None:
        if f"telegram:4242424242:{update['update_id']}" not in {line[0] for line in written(tmp_path)}:
            early.append(update["update_id"])

    started = {"v": 1, "first_start": {"4242424242": "2020-01-01T00:00:00+00:00"}}
    (tmp_path / "telegram.json").write_text(json.dumps(started))
    with TelegramServer() as server:
        server.updates.on_confirm = forgotten
        for number in range(MESSAGES):
            last = server.write(100 + number % CHATS, str(number))
        for messages in KILLED_AFTER:
            async with victim(server, tmp_path) as heard, asyncio.timeout(60):
                await heard.readexactly(messages)
        async with victim(server, tmp_path):
            await server.until_confirmed(last, timeout_s=90)

    assert early == []
    # Some came twice: the kills were in the midst of a batch.
    assert len(written(tmp_path)) > MESSAGES
    for chat in range(CHATS):
        texts = list(dict.fromkeys(line[2] for line in written(tmp_path) if line[1] == str(100 + chat)))
        assert texts == [str(number) for number in range(chat, MESSAGES, CHATS)]
