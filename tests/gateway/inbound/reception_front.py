"""A reception with a real queue behind it, and arrivals for it."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Coroutine
from contextlib import asynccontextmanager
from datetime import UTC, datetime
from pathlib import Path
from typing import Any, TypeVar

from structlog.testing import capture_logs

from channels.base import Arrival, File
from channels.media import MediaFolder
from channels.message import Inbound, Outbound, Sender, read_inbound, read_outbound
from channels.tables import Platform
from gateway.inbound.pipeline import Intake, Reception
from gateway.queue.embedded.mailbox import EmbeddedMailbox
from gateway.queue.mailbox import INBOUND
from tests.contracts.posts import collect
from tests.gateway.embedded_place import opened
from tests.support.until import until

T = TypeVar("T")
ADA, BOB, BOT, GROUP = "100", "200", "300", "-5"
NOON = datetime(2026, 5, 1, 12, tzinfo=UTC)
OPEN = Platform(allow_from=(ADA,), group_allow=(GROUP,), groups="all")


class Front:
    """A reception with a real queue behind it."""

    def __init__(self, mailbox: EmbeddedMailbox, workspace: Path, table: Platform, **more: Any) -> None:
        self.mailbox = mailbox
        self.state = workspace / "state"
        self.now = NOON
        self.reception = Reception(
            name="telegram",
            table=table,
            intake=Intake(mailbox),
            mailbox=mailbox,
            state=self.state,
            media=MediaFolder(workspace, max_mb=1, timeout_s=5.0),
            clock=lambda: self.now,
            **({"is_admin": None} | more),
        )

    async def accept(self, arrival: Arrival) -> bool:
        async with asyncio.timeout(20):
            return await self.reception.accept(arrival)

    async def bodies(self, box: str) -> list[bytes]:
        """Take all that is in a box."""
        depths = await self.mailbox.depths()
        if box not in depths or not depths[box].count:
            return []
        async with self.mailbox.take(box) as letters:
            found = await collect(letters, depths[box].count)
            for letter in found:
                await self.mailbox.settle(letter)
        return [letter.body for letter in found]

    async def inbound(self) -> list[Inbound]:
        return [read_inbound(body)[0] for body in await self.bodies(INBOUND)]

    async def told(self) -> list[Outbound]:
        return [read_outbound(body) for body in await self.bodies("outbound.telegram")]


@asynccontextmanager
async def front(workspace: Path, table: Platform = OPEN, **more: Any) -> AsyncIterator[Front]:
    async with opened(workspace / "queue") as mailbox:
        yield Front(mailbox, workspace, table, **more)


def arrival(who: str = ADA, **more: Any) -> Arrival:
    fields: dict[str, Any] = {
        "id": "telegram:9:1",
        "chat_id": who,
        "text": "hello",
        "platform_id": "71",
        "sender": Sender(id=who, name="Ada", username="ada"),
    }
    return Arrival(**(fields | more))


def in_group(who: str = BOB, **more: Any) -> Arrival:
    return arrival(who, **({"chat_id": f"{GROUP}:topic:3", "group": True, "group_ids": (GROUP,)} | more))


def file(*pieces: bytes, error: Exception | None = None, **more: Any) -> File:
    async def fetch() -> AsyncIterator[bytes]:
        for piece in pieces:
            yield piece
        if error is not None:
            raise error

    return File(**({"kind": "photo", "name": "", "mime": "", "size": None, "fetch": fetch} | more))


async def begun_to_wait(accepting: Coroutine[Any, Any, T]) -> asyncio.Task[T]:
    """Begin what cannot be done now; return when it has said in the log that it waits."""
    with capture_logs() as logs:
        task = asyncio.create_task(accepting)
        await until(lambda: bool(logs))
    assert logs[0]["event"] == "arrival.waits"
    assert not task.done()
    return task
