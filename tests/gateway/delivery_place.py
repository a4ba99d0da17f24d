"""A delivery over a real queue and send log to a platform in memory, as tests open, break and reopen it."""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncIterator, Callable, Sequence
from contextlib import asynccontextmanager
from pathlib import Path

from channels.message import Attachment, Outbound
from channels.testing import FakeChannel, FakePlatform
from gateway.outbound.preview import LivePreviews
from gateway.outbound.send_log import SendLog
from gateway.outbound.sender import OutboundSender
from gateway.queue.embedded.mailbox import EmbeddedMailbox
from gateway.queue.mailbox import Mailbox, Parked, Post, outbound
from tests.gateway.embedded_place import opened

DEADLINE_S = 30.0
BOX = outbound("fake")


class FreeLimiter:
    """Lets everything pass, and notes what it was asked."""

    def __init__(self) -> None:
        self.waits: list[tuple[str, bool]] = []
        self.pauses: list[tuple[str | None, float]] = []

    async def wait(self, chat_id: str, *, group: bool) -> None:
        self.waits.append((chat_id, group))

    async def pause(self, chat_id: str | None, after_s: float) -> None:
        self.pauses.append((chat_id, after_s))


class Naps:
    """Sleeps that take no time, noted."""

    def __init__(self) -> None:
        self.taken: list[float] = []
        self.changed = asyncio.Event()

    async def __call__(self, seconds: float) -> None:
        self.taken.append(seconds)
        self.changed.set()
        await asyncio.sleep(0)


class Place:
    """What one delivery works with; the platform and the folder outlive it."""

    def __init__(self, folder: Path, **channel: object) -> None:
        self.folder = folder
        self.state = folder / "state"
        self.platform = FakePlatform("ada")
        self.channel = FakeChannel(self.platform, **channel)  # type: ignore[arg-type]
        self.limiter = FreeLimiter()
        self.naps = Naps()
        self.delivery: OutboundSender
        self.may_leave: list[Path] = [folder]
        self.now: Callable[[], float] = time.perf_counter

    async def folders(self, out: Outbound) -> Sequence[Path]:
        return self.may_leave

    @asynccontextmanager
    async def mailbox(self) -> AsyncIterator[EmbeddedMailbox]:
        """Open the queue of this folder."""
        async with opened(self.folder / "state") as mailbox:
            yield mailbox

    @asynccontextmanager
    async def delivering(
        self, mailbox: Mailbox, *, previews: Callable[[SendLog], LivePreviews] | None = None
    ) -> AsyncIterator[SendLog]:
        """Deliver while the context is open."""
        async with SendLog(self.state, "fake") as send_log, asyncio.TaskGroup() as group:
            self.delivery = OutboundSender(
                channel=self.channel,
                mailbox=mailbox,
                send_log=send_log,
                limiter=self.limiter,
                workspace=self.folder,
                state=self.folder / "state",
                group=group,
                previews=previews(send_log) if previews is not None else None,
                max_file_mb=1,
                sleep=self.naps,
                now=self.now,
                folders=self.folders,
            )
            running = group.create_task(self.delivery.run(), name="delivery")
            await self.delivery.attached.wait()
            try:
                yield send_log
            finally:
                running.cancel()

    @asynccontextmanager
    async def open(self) -> AsyncIterator[EmbeddedMailbox]:
        """Open queue and delivery together."""
        async with self.mailbox() as mailbox, self.delivering(mailbox):
            yield mailbox

    async def delivered(self, *outs: Outbound, parked: int = 0) -> list[Parked]:
        """Deliver these letters, until nothing waits and so many are set aside; return those."""
        async with self.open() as mailbox:
            await self.put(mailbox, *outs)
            await until_empty(mailbox, parked=parked)
            return await mailbox.parked()

    def channel_texts(self, text: str) -> list[str]:
        """List the chunks of a text."""
        return [rendered.plain for rendered in self.channel.split(text)]

    async def put(self, mailbox: Mailbox, *outs: Outbound) -> None:
        """Put letters one after the other."""
        for out in outs:
            await mailbox.put(Post(BOX, out.key, out.id, out.to_bytes()))


def reply(
    number: int | str,
    text: str,
    *,
    chat: str = "ada",
    kind: str = "reply",
    files: Sequence[Attachment] = (),
) -> Outbound:
    """Make the answer to message ``number`` of a chat."""
    asked = f"fake:{number}"
    return Outbound(
        id=f"{asked}#reply" if kind == "reply" else f"{asked}#notice.busy",
        key=f"fake:{chat}",
        channel="fake",
        chat_id=chat,
        text=text,
        in_reply_to=asked,
        reply_to=f"p{number}",
        kind=kind,  # type: ignore[arg-type]
        attachments=list(files),
    )


async def until_empty(mailbox: Mailbox, *, parked: int = 0) -> None:
    """Return once nothing waits for the platform; ``parked`` letters are set aside by then."""
    async with asyncio.timeout(DEADLINE_S):
        while True:
            depths = await mailbox.depths()
            waiting = depths[BOX].count if BOX in depths else 0
            if waiting == 0 and depths["parked"].count == parked:
                return
            # A loop without a pause starves the send log's thread of the lock.
            await asyncio.sleep(0.005)


async def cancelled(task: asyncio.Task[None]) -> None:
    """Return once the delivery that this task holds open has been told to end."""
    for _ in range(10):
        await asyncio.sleep(0)
    assert not task.done()
