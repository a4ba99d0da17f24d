"""``/v1/media``: the files that came with messages, to be looked at or saved, never to be run."""

from __future__ import annotations

import asyncio
import os
from pathlib import PurePosixPath
from typing import Annotated
from urllib.parse import quote

from fastapi import APIRouter, Path
from starlette.responses import Response

from gateway.http.errors import HttpError
from gateway.http.shape import needs
from gateway.service.chats import ChatService
from session.transcript.attachments import open_beneath, sniffed

OTHER = "application/octet-stream"
PICTURES = ("image/png", "image/jpeg", "image/gif", "image/webp")
# Whatever somebody sent is data here: it runs no script and is no page, even when it is opened by itself.
CONFINED = "default-src 'none'; sandbox"


def routes(chats: ChatService) -> APIRouter:
    """Build the route of files."""
    router = APIRouter(prefix="/v1/media")
    terms = needs("read", 404)
    content = {kind: {"schema": {"type": "string", "format": "binary"}} for kind in (OTHER, *PICTURES)}
    terms["responses"][200] = {"description": "The file", "content": content}

    @router.get(
        "/{name:path}",
        summary="Fetch a file that came with a message",
        response_class=Response,
        **terms,
    )
    async def get_media(
        name: Annotated[str, Path(min_length=1, max_length=1000, description="its ref without media/")],
    ) -> Response:
        folder = chats.application.settings.workspace / "media"

        def read() -> bytes | None:
            try:
                with os.fdopen(open_beneath(folder, name), "rb") as file:
                    return file.read()
            except (OSError, ValueError):
                return None

        data = await asyncio.to_thread(read)
        if data is None:
            raise HttpError(404, "there is no such file", hint="the ref of an attachment names one")
        return Response(data, headers=_headers(name, data), media_type=_kind(data))

    return router


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
