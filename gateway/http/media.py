"""``/v1/media``: files of messages, uploaded before the message and downloaded after it."""

from __future__ import annotations

import asyncio
import os
from collections.abc import AsyncIterator
from pathlib import Path as FilePath
from pathlib import PurePosixPath
from typing import Annotated, BinaryIO, Final, Literal
from urllib.parse import quote

import structlog
from fastapi import APIRouter, Header, Path, Query, Request
from starlette.responses import Response, StreamingResponse
from starlette.types import Receive, Scope, Send

from channels.base import File, FileKind
from channels.errors import ChannelError
from channels.media import FileRefused, MediaFolder
from gateway.config.settings import Settings
from gateway.http.errors import HttpError, json_response, unavailable
from gateway.http.messages import MAX_FILES
from gateway.http.openapi import Shape, has_surrogate, needs
from gateway.http.security import declared
from gateway.service.chats import ChatService
from session.transcript.attachments import open_beneath, sniffed

log = structlog.get_logger("http")

AT_ONCE: Final = 8
SWEEP_S: Final = 600.0
_SHRINK: Final = "send a part of it, or raise media.max_mb"


class UploadOut(Shape):
    """The file, for ``attachments`` of ``POST /v1/messages``; ``ref`` is its path once it is sent."""

    ref: str
    kind: Literal["photo", "document", "voice", "audio", "video"]
    name: str
    mime: str
    size: int


class TakenBackOut(Shape):
    """The deleted file."""

    ref: str


def media_folder(settings: Settings) -> MediaFolder:
    """Open the folder of files; what waited too long for a message goes. It works on the disk."""
    return MediaFolder(settings.workspace, settings.media.max_mb, settings.media.timeout_s)


def add_routes(router: APIRouter, chats: ChatService) -> None:
    """Add the routes of files."""
    _add_uploads(router, chats)
    _add_downloads(router, chats)


def _add_uploads(router: APIRouter, chats: ChatService) -> None:
    uploads = _Uploads(chats.application.settings)
    terms = needs("write", UploadOut, 408, 413)
    body = {"application/octet-stream": {"schema": {"type": "string", "format": "binary"}}}
    terms["openapi_extra"]["requestBody"] = {"required": True, "content": body}

    @router.post(
        "/v1/media",
        status_code=201,
        summary="Upload a file for a message",
        **terms,
    )
    async def post_media(
        request: Request,
        name: Annotated[str, Query(max_length=255, description="name to show")] = "",
        content_type: Annotated[str, Header(max_length=127)] = "",
    ) -> Response:
        if has_surrogate(name):
            raise HttpError(400, "name: a text contains half of a surrogate pair")
        return json_response(await uploads.take(request, name, content_type), 201)

    @router.delete(
        "/v1/media/{name:path}",
        summary="Delete an upload that no message uses yet",
        **needs("write", TakenBackOut, 404),
    )
    async def delete(
        name: Annotated[str, Path(pattern=r"^[0-9a-f]{2}/[0-9a-f]{64}\.[a-z0-9]{1,10}$")],
    ) -> Response:
        if not await uploads.take_back(f"media/{name}"):
            raise HttpError(
                404, "no unused upload has this name", hint="files that a message uses stay with it"
            )
        return json_response({"ref": f"media/{name}"})


async def keep_swept(settings: Settings) -> None:
    """Remove what no message named within its hour, now and every ten minutes, until cancelled."""
    while True:
        try:
            await asyncio.to_thread(media_folder, settings)
        except OSError as error:
            # What stays for longer does no harm: it is looked at again.
            log.warning("media.not_swept", error=str(error))
        await asyncio.sleep(SWEEP_S)


class _Uploads:
    """Takes files within their limits, so many at once, and so many that wait for a message."""

    def __init__(self, settings: Settings) -> None:
        self._settings = settings
        self._max_bytes = settings.media.max_mb * 2**20
        self._open = 0

    async def take(self, request: Request, name: str, mime: str) -> dict[str, object]:
        """Keep the body of a request until a message names it.

        The server reads to its end what a client still sends while it is refused: a connection that is reset
        hides the answer.

        Raises:
            HttpError: 400, it is empty; 413, it is too large; 408, it took too long; 503, come again.
        """
        if declared(request.scope) > self._max_bytes:
            raise self._too_large()
        if self._open >= AT_ONCE:
            raise unavailable("too many uploads are in progress", "try again in a few seconds")
        self._open += 1
        try:
            return await self._take(request, name, mime)
        finally:
            self._open -= 1

    async def _take(self, request: Request, name: str, mime: str) -> dict[str, object]:
        folder = await asyncio.to_thread(media_folder, self._settings)
        if await asyncio.to_thread(folder.held_bytes) > MAX_FILES * self._max_bytes:
            raise unavailable(
                "too many uploads wait for their messages", "send their messages, or wait for an hour"
            )
        saved = await folder.hold(File(_kind(mime), name, mime, None, lambda: _body_of(request)))
        if not isinstance(saved, FileRefused):
            return saved.model_dump(include=set(UploadOut.model_fields))
        if saved.cause == "large":
            raise self._too_large()
        if saved.cause == "late":
            raise HttpError(
                408, "the file was not received in time", hint="send it again, or raise media.timeout_s"
            )
        if saved.cause == "disk":
            raise unavailable("the file could not be saved", "check the disk: chat-gateway doctor")
        raise HttpError(
            400, "the file is empty, or the client disconnected", hint="send its bytes as the request body"
        )

    async def take_back(self, ref: str) -> bool:
        """Remove a file that waits for a message; say whether there was one."""
        folder = await asyncio.to_thread(media_folder, self._settings)
        return await folder.let_go(ref)

    def _too_large(self) -> HttpError:
        return HttpError(413, f"the file is over {self._settings.media.max_mb} MiB", hint=_SHRINK)


async def _body_of(request: Request) -> AsyncIterator[bytes]:
    """Yield a body piece by piece; raises ChannelError where it is empty, or the client left."""
    size, more = 0, True
    # Behind the last piece only the client's leaving comes, for which nobody is to wait.
    while more:
        message = await request.receive()
        if message["type"] != "http.request":
            raise ChannelError("the client disconnected")
        more = message.get("more_body", False)
        piece: bytes = message.get("body", b"")
        size += len(piece)
        yield piece
    if not size:
        raise ChannelError("it is empty")


def _kind(mime: str) -> FileKind:
    kinds: dict[str, FileKind] = {"image": "photo", "audio": "audio", "video": "video"}
    return kinds.get(mime.partition("/")[0].strip().lower(), "document")


OTHER = "application/octet-stream"
PICTURES = ("image/png", "image/jpeg", "image/gif", "image/webp")
# Whatever somebody sent is data here: it runs no script and is no page, even when it is opened by itself.
CONFINED = "default-src 'none'; sandbox"
# So much of a file is in memory while it is sent.
PIECE_BYTES = 256 * 1024


def _add_downloads(router: APIRouter, chats: ChatService) -> None:
    terms = needs("read", None, 404)
    content = {kind: {"schema": {"type": "string", "format": "binary"}} for kind in (OTHER, *PICTURES)}
    terms["responses"][200] = {"description": "The file", "content": content}

    @router.get(
        "/v1/media/{name:path}",
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
        super().__init__(_pieces(file, size, first), headers=headers, media_type=_shown_type(first))
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


def _shown_type(data: bytes) -> str:
    """Say by its first bytes whether a file is a picture that browsers show; its name may say anything."""
    found = sniffed(data)
    return found if found in PICTURES else OTHER


def _headers(name: str, data: bytes) -> dict[str, str]:
    way = "attachment" if _shown_type(data) == OTHER else "inline"
    saved = quote(PurePosixPath(name).name, safe="", errors="replace")
    return {
        "Content-Disposition": f"{way}; filename*=UTF-8''{saved}",
        "Content-Security-Policy": CONFINED,
        "Cache-Control": "private, max-age=3600",
    }
