"""The message of a client as an Inbound, refused here where it would be parked for its names."""

from __future__ import annotations

from ulid import ULID

from channels.errors import Unreadable
from channels.message import MAX_ID_BYTES, Inbound, now_text, read_inbound
from gateway.errors import GatewayError
from session.key import split

MAX_KEY_CHARS = 4096


class NoAddress(GatewayError):
    """No letter can have this key or id; nothing was put."""


def inbound(key: str, text: str, message_id: str | None = None) -> Inbound:
    """Build the Inbound of a client's message; ``cli`` keys have ``cli:`` ids, all others ``web:`` ones.

    A text over 1 MiB is accepted: it is parked, and its chat is told, as on every channel.

    Raises:
        NoAddress: the key is not ``channel:chat_id``, or key or id is too long.
    """
    channel, chat_id = split(key)
    prefix = "cli:" if channel == "cli" else "web:"
    name = str(ULID()) if message_id is None else message_id.removeprefix(prefix)
    message = Inbound(
        v=1,
        id=prefix + name,
        key=key,
        channel=channel,
        chat_id=chat_id,
        text=text,
        received_at=now_text(),
    )
    hint = f"a key is channel:chat_id, as cli:direct, and an id at most {MAX_ID_BYTES - len(prefix)} bytes"
    if len(key) > MAX_KEY_CHARS:
        raise NoAddress(f"the key is over {MAX_KEY_CHARS} characters", hint=hint)
    if not chat_id:
        raise NoAddress("the key names no chat", hint=hint)
    try:
        read_inbound(message.model_copy(update={"text": "any"}).to_bytes())
    except Unreadable as error:
        raise NoAddress(str(error), hint=hint) from None
    return message
