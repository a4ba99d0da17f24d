"""Which files of ``media/`` letters name that wait in a queue or are parked."""

from __future__ import annotations

from typing import Final

from gateway.errors import MailboxError
from gateway.queue.embedded.mailbox import EmbeddedMailbox
from gateway.queue.mailbox import Mailbox
from session.errors import StoreError
from session.store.unnamed import NAME, AwaitedFiles

# Bodies are our own JSON, or another program's, which may write the slashes with a backslash before.
_SLASH: Final = b"\\/"


async def awaited_files(mailbox: Mailbox) -> AwaitedFiles:
    """Look at the letters, once the queue is up; of a broker only the parked ones can be read.

    Raises:
        StoreError: the queue does not answer; nothing may be concluded.
    """
    await mailbox.ready()
    try:
        if isinstance(mailbox, EmbeddedMailbox):
            # While the disk refuses, messages are held that are not in the queue yet.
            complete = mailbox.health().up
            return AwaitedFiles(_named(await mailbox.bodies_with(b"media")), complete)
    except MailboxError as error:
        raise _unseen(error) from error
    return AwaitedFiles(await parked_files(mailbox))


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
    return StoreError(f"the letters cannot be looked at: {error}", hint=error.hint)


def _named(bodies: list[bytes]) -> frozenset[str]:
    texts = (body.replace(_SLASH, b"/").decode("utf-8", "replace") for body in bodies)
    return frozenset(match[0] for text in texts for match in NAME.finditer(text))
