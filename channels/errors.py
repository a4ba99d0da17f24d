"""The errors of the channels package.

::

    ChannelError
    ├── NewerFile      a file in ``state/`` was written by a newer version; exit code 78
    ├── Unreadable     a body that is no Inbound or Outbound; ``told`` where its chat can be told
    ├── ChannelDown    the platform cannot be reached; nothing was sent
    │   └── CredentialsRefused    its token is wrong, or may not do what is asked
    ├── SendLater      rate-limited; wait ``after_s`` seconds
    ├── SendNever      refused for good; parked
    │   ├── ChatMoved     the chat has another id now, ``to``
    │   └── MessageGone   the message to be edited is not there any more
    └── SendUnknown    it may or may not have been sent
"""

from __future__ import annotations

from dataclasses import dataclass

from durable import HintedError, NewerVersion


class ChannelError(HintedError):
    """Base of this package's errors."""


@dataclass(frozen=True, slots=True)
class Address:
    """The four fields by which the chat of a bad letter can still be told."""

    id: str
    key: str
    channel: str
    chat_id: str


class Unreadable(ChannelError):
    """A queue body that is not what the contract asks for; ``address`` where its chat can be told."""

    def __init__(self, message: str, *, address: Address | None = None, hint: str = "") -> None:
        super().__init__(message, hint=hint)
        self.address = address


class NewerFile(NewerVersion, ChannelError):
    """A file of ours carries a version that this program does not know; nothing was written."""


class ChannelDown(ChannelError):
    """The platform cannot be reached; nothing was sent."""


class CredentialsRefused(ChannelDown):
    """The platform refuses the token; trying again soon is of no use."""


class SendLater(ChannelError):
    """Rate-limited; ``after_s`` seconds must pass before a retry."""

    def __init__(self, message: str, *, after_s: float, hint: str = "") -> None:
        super().__init__(message, hint=hint)
        self.after_s = after_s


class SendNever(ChannelError):
    """The platform refused it for good."""


class ChatMoved(SendNever):
    """The chat goes on under the id ``to``."""

    def __init__(self, message: str, *, to: str, hint: str = "") -> None:
        super().__init__(message, hint=hint)
        self.to = to


class MessageGone(SendNever):
    """The message that was to be edited was deleted, or can no longer be edited."""


class SendUnknown(ChannelError):
    """The connection broke after the request was written: it may or may not have been sent."""
