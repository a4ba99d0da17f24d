"""The message of a client as an Inbound, refused here where it would be parked for its names."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

import durable
from channels.message import (
    MAX_ID_BYTES,
    MAX_KEY_BYTES,
    Attachment,
    Inbound,
    address_fault,
    key_fault,
    now_text,
)
from gateway.errors import GatewayError
from session.disk.state import locked, read_state, write_state
from session.transcript.key import SUBAGENTS, SessionKey, split

if TYPE_CHECKING:
    from pathlib import Path

    from gateway.config.settings import Settings
    from session.store.store import Store

MAX_KEY_CHARS = 4096
# Those that no configuration names.
MAX_CHANNELS = 100


class NoAddress(GatewayError):
    """No letter can have this key or id; nothing was put."""


class TooManyChannels(GatewayError):
    """A message names one channel too many that the configuration does not know; nothing was put."""


class ForeignChannels:
    """The channels that clients name and the configuration does not: each has a queue for ever.

    Args:
        path: the file that keeps their names.
        settings: what is configured.
    """

    def __init__(self, path: Path, settings: Settings) -> None:
        self._path = path
        platforms = dict(settings.channels) | (settings.channels.model_extra or {})
        enabled = (name for name, table in platforms.items() if getattr(table, "enabled", False))
        self._known = {"cli", "web", "cron", "", *enabled}

    def check(self, channel: str) -> None:
        """Count a channel that is new.

        Raises:
            TooManyChannels: there are ``MAX_CHANNELS`` already.
            StoreError: the disk refused.
        """
        if channel in self._known:
            return
        with locked(self._path.with_suffix(".lock")):
            names = read_state(self._path).get("names")
            names = names if isinstance(names, list) else []
            if channel not in names:
                if len(names) >= MAX_CHANNELS:
                    raise TooManyChannels(
                        f"clients have already used {MAX_CHANNELS} channel names that are not configured",
                        hint=f"use web:NAME; if most of them are unused, delete state/{self._path.name}",
                    )
                write_state(self._path, {"names": [*names, channel]})
        self._known.add(channel)


async def is_kept(store: Store, key: str) -> bool:
    """Say whether a key without a colon, such as ``heartbeat``, is that of a session here."""
    view = None if ":" in key else await store.look(SessionKey(key))
    return view is not None and view.path.exists()


def inbound(
    key: str,
    text: str,
    message_id: str | None = None,
    *,
    kept: bool = False,
    files: Sequence[Attachment] = (),
    agent: str = "",
) -> Inbound:
    """Build the Inbound of a client's message; ``cli`` keys have ``cli:`` ids, all others ``web:`` ones.

    A text over 1 MiB is accepted: it is parked, and its chat is told, as on every channel.

    Args:
        key: ``channel:chat_id``; without a colon where ``kept`` says that such a session is here.
        text: what is asked.
        message_id: its id, with or without prefix; None takes a new one.
        kept: what ``is_kept`` says of the key.
        files: what goes along, stored already.
        agent: who shall answer in the chat from here on; empty: whoever does.

    Raises:
        NoAddress: the key is not ``channel:chat_id``, or key or id is too long.
    """
    channel, chat_id = split(key)
    if channel == SUBAGENTS:
        raise NoAddress(
            f"{key} is a subagent, which accepts no messages", hint="write to the chat that started it"
        )
    if kept and not channel:
        channel = "cli"
    prefix = "cli:" if channel == "cli" else "web:"
    name = durable.new_id() if message_id is None else message_id.removeprefix(prefix)
    message = Inbound(
        v=1,
        id=prefix + name,
        key=key,
        channel=channel,
        chat_id=chat_id,
        text=text,
        attachments=list(files),
        agent=agent,
        received_at=now_text(),
    )
    hint = (
        f"a key is channel:chat_id, such as cli:direct, of at most {MAX_KEY_BYTES} bytes; "
        f"an id at most {MAX_ID_BYTES - len(prefix)} bytes"
    )
    if not (kept and ":" not in key) and (fault := key_fault(key)):
        raise NoAddress(fault, hint=hint)
    if fault := address_fault(message):
        raise NoAddress(fault, hint=hint)
    return message
