"""``/v1/media``: the files that came with messages, to be looked at or saved, never to be run."""

from __future__ import annotations

import asyncio
import os
from collections.abc import AsyncIterator
from pathlib import Path as FilePath
from pathlib import PurePosixPath
from typing import Annotated, BinaryIO
from urllib.parse import quote

from fastapi import APIRouter, Path
from starlette.responses import Response, StreamingResponse
from starlette.types import Receive, Scope, Send

from gateway.http.errors import HttpError
from gateway.http.shape import needs
from gateway.service.chats import ChatService
from session.transcript.attachments import open_beneath, sniffed

OTHER = "application/octet-stream"
PICTURES = ("image/png", "image/jpeg", "image/gif", "image/webp")
# Whatever somebody sent is data here: it runs no script and is no page, even when it is opened by itself.
CONFINED = "default-src 'none'; sandbox"
# So much of a file is in memory while it is sent.
PIECE_BYTES = 256 * 1024


def routes(chats: ChatService) -> APIRouter:
    """Build the route of files."""
    router = APIRouter(prefix="/v1/media")
    terms = needs("read", 404)
    content = {kind: {"schema": {"type": "string", "format": "binary"}} for kind in (OTHER, *PICTURES)}
    terms["responses"][200] = {"description": "The file", "content": content}

    @router.get(
        "/{name:path}",
        summary="Download a file of a message",
        response_class=Response,
        **terms,
    )
    async def get_media(
        name: Annotated[str, Path(min_length=1, max_length=1000, description="its ref without media/")],
    ) -> Response:
        folder = chats.application.settings.workspace / "media"

        # What the program puts there for itself begins with a dot: files that are yet to come whole.
        found = None if name.startswith(".") else await asyncio.to_thread(opened, folder, name)
        if found is None:
            raise HttpError(404, "there is no such file", hint="use the ref of an attachment")
        return FileInPieces(name, *found)

    return router


class FileInPieces(StreamingResponse):
    """Sends a file from its descriptor, a piece at a time, however many are fetched at once."""

    def __init__(self, name: str, file: BinaryIO, size: int, first: bytes) -> None:
        """Take over an open file, which is closed when it is sent, or cannot be.

        Args:
            name: its ref without ``media/``.
            file: it is read from behind ``first`` on.
            size: so many bytes are sent; what is written behind them meanwhile is left out.
            first: its first piece.
        """
        headers = {**_headers(name, first), "Content-Length": str(size)}
        super().__init__(_pieces(file, size, first), headers=headers, media_type=_kind(first))
        self._file = file

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Send it, then close it, also where whoever asked has left."""
        try:
            await super().__call__(scope, receive, send)
        finally:
            self._file.close()


async def _pieces(file: BinaryIO, size: int, piece: bytes) -> AsyncIterator[bytes]:
    left = size
    while piece:
        yield piece
        left -= len(piece)
        piece = await asyncio.to_thread(file.read, min(left, PIECE_BYTES)) if left else b""


def opened(folder: FilePath, name: str) -> tuple[BinaryIO, int, bytes] | None:
    """Open a file of ``folder``; return it, its size and its first piece; None where it cannot be read."""
    try:
        file = os.fdopen(open_beneath(folder, name), "rb")
    except (OSError, ValueError):
        return None
    try:
        size = os.fstat(file.fileno()).st_size
        return file, size, file.read(min(size, PIECE_BYTES))
    except OSError:
        file.close()
        return None


def _kind(data: bytes) -> str:
    """Say by its first bytes whether a file is a picture that browsers show; its name may say anything."""
    found = sniffed(data)
    return found if found in PICTURES else OTHER


def _headers(name: str, data: bytes) -> dict[str, str]:
    way = "attachment" if _kind(data) == OTHER else "inline"
    saved = quote(PurePosixPath(name).name, safe="", errors="replace")
    return {
        "Content-Disposition": f"{way}; filename*=UTF-8''{saved}",
        "Content-Security-Policy": CONFINED,
        "Cache-Control": "private, max-age=3600",
    }
