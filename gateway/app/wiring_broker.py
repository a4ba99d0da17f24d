"""Opens the broker that the configuration names, and reads from it what other parts need to know."""

from __future__ import annotations

import asyncio
import re
from collections.abc import Collection
from pathlib import Path
from typing import Final, Protocol, runtime_checkable

import structlog

from channels.errors import ChannelError
from channels.message import Inbound
from channels.storage import change_rows, read_rows
from gateway.config.settings import Settings
from gateway.dispatch.replies import target
from gateway.errors import MailboxError
from gateway.queue.embedded.mailbox import EmbeddedMailbox
from gateway.queue.mailbox import Mailbox
from session.errors import StoreError
from session.store.media import NAME, AwaitedFiles
from session.transcript.key import SUBAGENTS


def open_mailbox(
    settings: Settings,
    *,
    reports: bool = True,
    follows: bool = False,
    takes: Collection[int] | None = None,
) -> Mailbox:
    """Choose the mailbox that ``broker.url`` names.

    ``follows``: it takes no inbound letters, and puts them into whatever partitions there are.

    ``takes``: the partitions of RabbitMQ whose letters it takes; None: all.

    ``reports``: the log says when its broker is away; else it is for the caller to say, from its health.
    """
    if settings.broker.embedded:
        return EmbeddedMailbox(settings.workspace / "state")
    # A start with the embedded queue is quicker without the AMQP client.
    from gateway.queue.rabbitmq.access import TlsFiles
    from gateway.queue.rabbitmq.broker import RabbitMailbox

    broker = settings.broker
    return RabbitMailbox(
        broker.url,
        name=broker.name,
        partitions=broker.partitions,
        queue_type=broker.queue_type,
        heartbeat_s=broker.heartbeat_s,
        reports=reports,
        follows=follows,
        takes=takes,
        tls=TlsFiles(broker.ca_file, broker.cert_file, broker.key_file),
    )


log = structlog.get_logger("replied")

_NAME = re.compile(r"[a-z][a-z0-9_]{0,31}")


class RepliedChannels:
    """The channels to which replies went, in the order of their names."""

    def __init__(self, state: Path) -> None:
        self._state = state
        self._noted: set[str] = set()

    def names(self) -> list[str]:
        """List the channels, by name; none where they cannot be read."""
        try:
            with read_rows(self._state) as file:
                return [name for (name,) in file.execute("SELECT channel FROM replied ORDER BY channel")]
        except ChannelError as error:
            log.warning("channels.unread", error=str(error))
            return []

    def news(self, inbound: Inbound) -> str | None:
        """Return the channel to which the answer of a letter goes, once; None where it is noted already."""
        channel = target(inbound)[1]
        if channel in self._noted or channel == SUBAGENTS or not _NAME.fullmatch(channel):
            return None
        # Before the write, so that letters that end meanwhile do not write it again.
        self._noted.add(channel)
        return channel

    async def note(self, channel: str) -> None:
        """Take note of a channel that ``news`` returned."""
        statement = "INSERT OR IGNORE INTO replied VALUES (?)"
        work = lambda file: file.execute(statement, (channel,)).rowcount  # noqa: E731
        try:
            await asyncio.to_thread(change_rows, self._state, work)
        # The reply itself is safe; only who asks for unserved replies misses it, until the next one.
        except ChannelError as error:
            self._noted.discard(channel)
            log.warning("channel.unnoted", channel=channel, error=str(error))


# Bodies are our own JSON, or another program's, which may write the slashes with a backslash before.
_SLASH: Final = b"\\/"
# A letter that the broker has sent is counted by neither side until it has arrived here.
_ON_ITS_WAY_S: Final = 10.0


@runtime_checkable
class Drains(Protocol):
    """A mailbox that cannot show its letters, but may know that there are none."""

    async def is_drained(self) -> bool:
        """Say whether no inbound letter waits or is worked on, in any process."""
        ...


async def awaited_files(mailbox: Mailbox, *, on_its_way_s: float = _ON_ITS_WAY_S) -> AwaitedFiles:
    """Look at the letters, once the queue is up.

    Of a broker's letters only the parked ones can be read. That no other letter is there is certain where no
    other process takes letters, and this one sees none twice, ``on_its_way_s`` seconds apart.

    Raises:
        StoreError: the queue does not answer; nothing may be concluded.
    """
    await mailbox.ready()
    try:
        if isinstance(mailbox, EmbeddedMailbox):
            # While the disk refuses, messages are held that are not in the queue yet.
            complete = mailbox.health().up
            return AwaitedFiles(_named(await mailbox.bodies_with(b"media")), complete)
        complete = isinstance(mailbox, Drains) and await _stays_drained(mailbox, on_its_way_s)
        return AwaitedFiles(_named([each.body for each in await mailbox.parked()]), complete)
    except MailboxError as error:
        raise _unseen(error) from error


async def parked_files(mailbox: Mailbox) -> frozenset[str]:
    """Name the files of the parked letters: one that is put back later must find them.

    Raises:
        StoreError: the queue does not answer; nothing may be concluded.
    """
    try:
        return _named([each.body for each in await mailbox.parked()])
    except MailboxError as error:
        raise _unseen(error) from error


def files_named(body: bytes) -> list[str]:
    """Name the files of one letter, in order of their names."""
    return sorted(_named([body]))


def _unseen(error: MailboxError) -> StoreError:
    return StoreError(f"the waiting messages cannot be read: {error}", hint=error.hint)


async def _stays_drained(mailbox: Drains, on_its_way_s: float) -> bool:
    if not await mailbox.is_drained():
        return False
    await asyncio.sleep(on_its_way_s)
    return await mailbox.is_drained()


async def awaited_at_once(mailbox: Mailbox) -> AwaitedFiles:
    """Look at the letters for a person who waits: a queue that is away is not waited for.

    Raises:
        StoreError: the queue does not answer; nothing may be concluded.
    """
    if not mailbox.health().up:
        raise StoreError(
            "the waiting messages cannot be read: the queue does not answer", hint="try again later"
        )
    return await awaited_files(mailbox, on_its_way_s=0.0)


def _named(bodies: list[bytes]) -> frozenset[str]:
    texts = (body.replace(_SLASH, b"/").decode("utf-8", "replace") for body in bodies)
    return frozenset(match[0] for text in texts for match in NAME.finditer(text))
