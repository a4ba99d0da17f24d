"""Which files of ``media/`` letters name that wait in a queue or are parked."""

from __future__ import annotations

import asyncio
from typing import Final, Protocol, runtime_checkable

import structlog

from gateway.errors import MailboxError
from gateway.queue.embedded.mailbox import EmbeddedMailbox
from gateway.queue.mailbox import Mailbox
from session.errors import StoreError
from session.store.media import NAME, AwaitedFiles

# Bodies are our own JSON, or another program's, which may write the slashes with a backslash before.
_SLASH: Final = b"\\/"
# A letter that the broker has sent is counted by neither side until it has arrived here.
_ON_ITS_WAY_S: Final = 10.0
log = structlog.get_logger("media")


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
