"""An export beside a process that writes: every file whole, and no turn held up."""

from __future__ import annotations

import asyncio
import io
import json
import tarfile
from datetime import UTC, datetime
from pathlib import Path

from session.disk.threads import start_thread
from session.kept.export import write
from session.kept.subject import Conversation, Subject
from session.store.store import Store
from session.transcript.key import SessionKey
from session.transcript.line import make_line
from tests.support.guarantee import guarantee

pytestmark = guarantee(
    "privacy",
    "An export holds all data of a chat or person, complete even during writes, and nothing of others.",
)

ADA = SessionKey("telegram:1")
SUBJECT = Subject(ADA, False, (Conversation(ADA, "telegram_1"),), ("chats/telegram_1",), (), {})


async def test_what_is_written_meanwhile_is_in_it_whole_or_not_at_all(tmp_path: Path) -> None:
    """Another process of the workspace owns the key, and goes on with its turns."""
    store, other = Store(tmp_path, zone=UTC), Store(tmp_path, zone=UTC)
    done, often = asyncio.Event(), asyncio.Event()

    async def talk() -> int:
        count = 0
        while not done.is_set():
            async with store.open(ADA) as session:
                line = make_line("user", f"{count} " * 5_000, "2026-01-01T09:00:00", message_id=str(count))
                await session.append([line])
                if count % 20 == 19:
                    await session.end()
            count += 1
            if count > 5:
                often.set()
        return count

    def export() -> bytes:
        out = io.BytesIO()
        write(out, SUBJECT, other.layout, at=datetime.now(UTC))
        return out.getvalue()

    talking = asyncio.ensure_future(talk())
    exports = [await start_thread(export, name="export") for _ in range(5)]
    # On a busy machine all of these were quicker than a few turns.
    await often.wait()
    exports.append(await start_thread(export, name="export"))
    done.set()
    assert await talking > 5

    for data in exports:
        with tarfile.open(fileobj=io.BytesIO(data)) as tar:
            for member in tar:
                file = tar.extractfile(member)
                assert file is not None
                if member.name.endswith((".jsonl", ".log")):
                    lines = file.read().split(b"\n")
                    assert lines.pop() == b"", member.name
                    assert all(json.loads(line) for line in lines), member.name
    async with store.open(ADA) as session:
        assert session.journal is not None
    await store.aclose()
    await other.aclose()


async def test_a_link_out_of_the_workspace_is_not_followed(tmp_path: Path) -> None:
    """What a tool linked to is not of the chat."""
    (tmp_path / "elsewhere").write_text("secret")
    folder = tmp_path / "place" / "files" / "chats" / "telegram_1"
    folder.mkdir(parents=True)
    (folder / "own.txt").write_text("own")
    (folder / "link.txt").symlink_to(tmp_path / "elsewhere")
    (folder / "up").symlink_to(tmp_path)
    store, out = Store(tmp_path / "place", zone=UTC), io.BytesIO()

    parts = write(out, SUBJECT, store.layout, at=datetime.now(UTC))

    assert [part.source for part in parts] == ["files/chats/telegram_1/own.txt"]
    assert b"secret" not in out.getvalue()
    await store.aclose()
