"""What a letter is sent as: the pieces of its text, then one for each file that may leave the workspace."""

from __future__ import annotations

import asyncio
import base64
import hashlib
import stat
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, Protocol

from channels.base import Channel, Rendered
from channels.message import Attachment, Outbound
from session.transcript.agent import scopes_below

NONCE_CHARS = 25
# Never sent, whatever a reply names.
PRIVATE = "state"


class RateLimit(Protocol):
    """Who says when the next call to the platform may be made."""

    async def wait(self, chat_id: str, *, group: bool) -> None:
        """Return when this chat may be written to."""
        ...

    async def pause(self, chat_id: str | None, after_s: float) -> None:
        """Note that the platform wants no call for this chat (None: for any) for some seconds."""
        ...


def nonce(out_id: str, number: int) -> str:
    """Return the same 25 characters for the same piece of the same letter, and others for any other."""
    digest = hashlib.sha256(f"{out_id}\n{number}".encode("utf-8", "surrogatepass")).digest()
    return base64.b32encode(digest).decode("ascii").lower()[:NONCE_CHARS]


def is_group(chat_id: str, meta: Mapping[str, Any] | None = None) -> bool:
    """Say whether several people read this chat: as its letter says, else by Telegram's negative ids."""
    said = (meta or {}).get("group")
    return said if isinstance(said, bool) else chat_id.startswith("-")


async def render(channel: Channel, text: str) -> list[Rendered]:
    """Split a text into what the platform takes at once, off the event loop: rendering may take its time."""
    return await asyncio.to_thread(channel.split, text)


async def pieces(
    channel: Channel, out: Outbound, *, workspace: Path, folders: Sequence[Path], max_bytes: int
) -> list[Rendered | Path]:
    """List what is to be sent, in order; the numbers stay the same whenever the letter comes again.

    A file that may not be sent, or is not there, is a line of text in the same place: whoever put the letter,
    only what lies below one of the folders leaves.
    """
    found: list[Rendered | Path] = list(await render(channel, out.text))
    for attachment in out.attachments:
        file = await asyncio.to_thread(_resolve, attachment, workspace, folders, max_bytes)
        found.append(file if isinstance(file, Path) else await instead(channel, attachment, why=file))
    return found


async def instead(channel: Channel, attachment: Attachment, *, why: str) -> Rendered:
    """Say in the chat that a file could not be sent."""
    line = "\n".join(filter(None, (f"[{_shown(attachment)}: {why}]", attachment.caption)))
    return next(iter(await render(channel, line)), Rendered(line))


def _shown(attachment: Attachment) -> str:
    name = attachment.name or attachment.ref.rpartition("/")[2]
    return "".join(c for c in name if c.isprintable() and c not in "[]`*_~|<>")[:100] or "file"


def _owns(home: Path, folder: Path, path: Path) -> bool:
    """Say whether a file is one of a folder; the scope of all direct chats does not own those of others."""
    inside = (home / folder).resolve()
    if not inside.is_relative_to(home) or not path.is_relative_to(inside):
        return False
    top = path.relative_to(inside).parts[:1]
    return not any(name.casefold() in scopes_below(inside) for name in top)


def _resolve(attachment: Attachment, workspace: Path, folders: Sequence[Path], max_bytes: int) -> Path | str:
    """Return the file itself, or why it is not sent."""
    try:
        home = workspace.resolve()
        path = (home / attachment.ref).resolve(strict=True)
        if path.is_relative_to(home / PRIVATE) or not any(_owns(home, each, path) for each in folders):
            return "this file may not be sent"
        found = path.stat()
    except (OSError, ValueError, RuntimeError):
        return "this file no longer exists"
    if not stat.S_ISREG(found.st_mode):
        return "this is not a file"
    if found.st_size > max_bytes:
        return f"this file is too large to be sent ({found.st_size / 2**20:.1f} MB)"
    return path
