"""Files that go along with a message: ``--file PATH``, and ``!file PATH`` in a conversation."""

from __future__ import annotations

import asyncio
import mimetypes
from collections.abc import AsyncIterator
from pathlib import Path

from channels.message import Attachment
from gateway.config.settings import Settings
from gateway.errors import GatewayError

WORD = "!file"
_BLOCK_BYTES = 2**20


def split(text: str) -> tuple[list[str], str]:
    """Take the lines ``!file PATH`` off the head of a message; return the paths, and the text left."""
    paths = []
    lines = text.split("\n")
    while lines and (lines[0] == WORD or lines[0].startswith(f"{WORD} ")):
        paths.append(lines.pop(0).removeprefix(WORD).strip())
    return paths, "\n".join(lines)


async def enclose(settings: Settings, path: Path) -> Attachment:
    """Store a file in ``media/``, as every channel does.

    Raises:
        GatewayError: there is none, it cannot be read, is empty, or larger than ``media.max_mb``.
    """
    # Only who sends a file waits for this import.
    from channels.base import File, FileKind
    from channels.media import FileRefused, MediaFolder

    path, size = await asyncio.to_thread(_found, path)
    if size > settings.media.max_mb * 2**20:
        raise GatewayError(
            f"{path} has {size / 2**20:.1f} MB; the limit is media.max_mb = {settings.media.max_mb}",
            hint="send part of it, or raise media.max_mb",
        )
    mime = mimetypes.guess_type(path.name)[0] or ""

    async def fetch() -> AsyncIterator[bytes]:
        with await asyncio.to_thread(path.open, "rb") as file:
            while block := await asyncio.to_thread(file.read, _BLOCK_BYTES):
                yield block

    kind: FileKind = "photo" if mime.startswith("image/") else "document"
    folder = MediaFolder(settings.workspace, settings.media.max_mb, settings.media.timeout_s)
    saved = await folder.save(File(kind, path.name, mime, size, fetch))
    if isinstance(saved, FileRefused):
        raise GatewayError(f"{path}: {saved.text.strip('[]')}", hint="chat-gateway doctor")
    return saved


def _found(path: Path) -> tuple[Path, int]:
    path = path.expanduser()
    if not path.is_file():
        what = "is not a file" if path.exists() else "does not exist"
        raise GatewayError(f"{path} {what}", hint="enter the path of a file; Tab completes it")
    try:
        with path.open("rb") as file:
            if not file.read(1):
                raise GatewayError(f"{path} is empty", hint="choose another file")
        return path, path.stat().st_size
    except OSError as error:
        raise GatewayError(
            f"{path} cannot be read: {error.strerror}", hint="check its permissions"
        ) from error
