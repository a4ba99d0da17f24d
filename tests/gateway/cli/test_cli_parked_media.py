"""What deletes conversations leaves the files that parked letters name; all others of theirs go."""

from __future__ import annotations

import asyncio
import os
from contextlib import AsyncExitStack
from datetime import UTC, datetime, timedelta
from pathlib import Path

import pytest

from channels.message import Attachment, Inbound
from gateway.app.daemons import DaemonRegistry
from gateway.queue.embedded.mailbox import EmbeddedMailbox
from gateway.queue.mailbox import INBOUND, Mailbox, ParkedAs, Post
from gateway.queue.rabbitmq.broker import RabbitMailbox
from session.store.store import Store
from session.transcript.key import SessionKey
from session.transcript.transcript import make_line
from tests.gateway.cli_place import Ran, command
from tests.gateway.embedded_place import serving
from tests.gateway.http_place import open_place
from tests.support.broker import Broker

KEY = SessionKey("telegram:1")
# A letter of the chat itself would go with it.
OTHER = "telegram:9"
AWAITED, OURS = (f"media/{digit * 2}/{digit * 64}.jpg" for digit in "ab")
AGE = timedelta(days=50)
RETENTION = {"CHAT_GATEWAY_SESSION__RETENTION_DAYS": "30"}


async def fill(workspace: Path) -> list[Path]:
    """Store a conversation whose line, long ago, named two files; a parked letter will name one of them."""
    at = datetime.now(UTC) - AGE
    store = Store(workspace, zone=UTC, clock=lambda: at)
    named = [
        {"kind": "photo", "name": "x", "mime": "image/jpeg", "size": 3, "ref": ref} for ref in (AWAITED, OURS)
    ]
    async with store.open(KEY) as session:
        await session.append([make_line("user", "look", at.isoformat(), message_id="m", attachments=named)])
        await session.append([make_line("assistant", "ok", at.isoformat(), final=True, message_id="m")])
    await store.aclose()
    paths = [workspace / ref for ref in (AWAITED, OURS)]
    for path in paths:
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(b"...")
        os.utime(path, ((at - AGE).timestamp(), (at - AGE).timestamp()))
    return paths


async def park(mailbox: Mailbox) -> None:
    """Set a letter of another chat aside that brought the first file, too."""
    letter = Inbound(v=1, id="m", key=OTHER, channel="telegram", chat_id="9", text="look")
    letter = letter.model_copy(update={"attachments": [Attachment(ref=AWAITED)]})
    await mailbox.put(Post(INBOUND, OTHER, "m", letter.to_bytes()))
    async with mailbox.take(INBOUND) as letters:
        await mailbox.park(await anext(letters), ParkedAs(OTHER, "failed", 3))


async def done(workspace: Path, *argv: str) -> Ran:
    return await asyncio.to_thread(Ran, workspace, "sessions", *argv)


@pytest.fixture(params=["clear", "prune"])
def deletes(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """Each verb that deletes what was said."""
    for name, value in RETENTION.items():
        monkeypatch.setenv(name, value)
    return ["clear", KEY, "--everything"] if request.param == "clear" else ["prune"]


@pytest.mark.parametrize("beside", [False, True], ids=["the queue", "a daemon"])
async def test_whoever_has_the_queue_says_which(tmp_path: Path, deletes: list[str], beside: bool) -> None:
    """Beside a daemon that one alone can look into the embedded queue."""
    files = await fill(tmp_path)
    async with serving(EmbeddedMailbox(tmp_path / "state")) as mailbox:
        await park(mailbox)

    async with AsyncExitStack() as stack:
        if beside:
            place = await stack.enter_async_context(open_place(tmp_path))
            stack.enter_context(DaemonRegistry(tmp_path).entry(url=place.server.url, role="all"))
        assert (await done(tmp_path, *deletes)).code == 0

    assert [path.exists() for path in files] == [True, False]
    assert beside or not list((tmp_path / "sessions").rglob("*.jsonl"))


async def test_of_a_broker_the_parked_letters_are_asked(
    tmp_path: Path, deletes: list[str], broker: Broker, broker_name: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    files = await fill(tmp_path)
    monkeypatch.setenv("CHAT_GATEWAY_BROKER__URL", broker.url)
    monkeypatch.setenv("CHAT_GATEWAY_BROKER__NAME", broker_name)
    monkeypatch.setenv("CHAT_GATEWAY_BROKER__PARTITIONS", "1")
    async with serving(RabbitMailbox(broker.url, name=broker_name, partitions=1)) as mailbox:
        await park(mailbox)

    assert (await done(tmp_path, *deletes)).code == 0

    assert [path.exists() for path in files] == [True, False]


async def test_where_nobody_can_say_nothing_is_deleted(tmp_path: Path, deletes: list[str]) -> None:
    """Done again later it still knows which files those were."""
    files = await fill(tmp_path)
    async with serving(EmbeddedMailbox(tmp_path / "state")) as mailbox:
        await park(mailbox)
        # Another process: within this one the state is its own.
        words = ("--workspace", str(tmp_path), "sessions", *deletes)
        refused = await asyncio.to_thread(command, *words, cwd=tmp_path, environ=RETENTION)

    assert refused.returncode == 73
    assert "try:" in refused.stderr
    assert [path.exists() for path in files] == [True, True]
    assert (await done(tmp_path, *deletes)).code == 0
    assert [path.exists() for path in files] == [True, False]
