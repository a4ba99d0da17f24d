"""What a letter is sent as: the chunks of its text, then one for each file that may leave the workspace."""

from __future__ import annotations

import asyncio
import base64
import hashlib
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, Protocol

from channels.base import Channel, Rendered
from channels.message import Attachment, Outbound
from gateway.outbound.attachments import resolve

NONCE_CHARS = 25


class RateLimit(Protocol):
    """Who says when the next call to the platform may be made."""

    async def wait(self, chat_id: str, *, group: bool) -> None:
        """Return when this chat may be written to."""
        ...

    async def pause(self, chat_id: str | None, after_s: float) -> None:
        """Note that the platform wants no call for this chat (None: for any) for some seconds."""
        ...


def nonce(out_id: str, number: int) -> str:
    """Return the same 25 characters for the same chunk of the same letter, and others for any other."""
    digest = hashlib.sha256(f"{out_id}\n{number}".encode("utf-8", "surrogatepass")).digest()
    return base64.b32encode(digest).decode("ascii").lower()[:NONCE_CHARS]


def is_group(chat_id: str, meta: Mapping[str, Any] | None = None) -> bool:
    """Say whether several people read this chat: as its letter says, else by Telegram's negative ids."""
    said = (meta or {}).get("group")
    return said if isinstance(said, bool) else chat_id.startswith("-")


async def render(channel: Channel, text: str) -> list[Rendered]:
    """Split a text into what the platform takes at once, off the event loop: rendering may take its time."""
    return await asyncio.to_thread(channel.split, text)


async def chunks(
    channel: Channel, out: Outbound, *, workspace: Path, folders: Sequence[Path], max_bytes: int
) -> list[Rendered | Path]:
    """List what is to be sent, in order; the numbers stay the same whenever the letter comes again.

    A file that may not be sent, or is not there, is a line of text in the same place: whoever put the letter,
    only what lies below one of the folders leaves.
    """
    found: list[Rendered | Path] = list(await render(channel, out.text))
    for attachment in out.attachments:
        file = await asyncio.to_thread(resolve, attachment, workspace, folders, max_bytes)
        found.append(file if isinstance(file, Path) else await instead(channel, attachment, why=file))
    return found


async def instead(channel: Channel, attachment: Attachment, *, why: str) -> Rendered:
    """Say in the chat that a file could not be sent."""
    line = "\n".join(filter(None, (f"[{_shown(attachment)}: {why}]", attachment.caption)))
    return next(iter(await render(channel, line)), Rendered(line))


def _shown(attachment: Attachment) -> str:
    name = attachment.name or attachment.ref.rpartition("/")[2]
    return "".join(c for c in name if c.isprintable() and c not in "[]`*_~|<>")[:100] or "file"
