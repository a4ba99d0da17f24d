"""``POST /v1/media``: a file ahead of the message that it goes along with; ``DELETE`` takes it back."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from typing import Annotated, Final, Literal

import structlog
from fastapi import APIRouter, Header, Path, Query, Request
from starlette.responses import Response

from channels.base import File, FileKind
from channels.errors import ChannelError
from channels.media import FileRefused, MediaFolder
from gateway.config.settings import Settings
from gateway.http.body import declared
from gateway.http.errors import HttpError, json_response, unavailable
from gateway.http.messages import MAX_FILES, has_surrogate
from gateway.http.shape import Shape, needs
from gateway.service.chats import ChatService

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


def routes(chats: ChatService) -> APIRouter:
    """Build the routes of files that come ahead."""
    router = APIRouter(prefix="/v1/media")
    uploads = _Uploads(chats.application.settings)
    terms = needs("write", 408, 413)
    body = {"application/octet-stream": {"schema": {"type": "string", "format": "binary"}}}
    terms["openapi_extra"]["requestBody"] = {"required": True, "content": body}

    @router.post(
        "",
        status_code=201,
        summary="Upload a file for a message",
        response_model=UploadOut,
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
        "/{name:path}",
        summary="Delete an upload that no message uses yet",
        response_model=TakenBackOut,
        **needs("write", 404),
    )
    async def delete(
        name: Annotated[str, Path(pattern=r"^[0-9a-f]{2}/[0-9a-f]{64}\.[a-z0-9]{1,10}$")],
    ) -> Response:
        if not await uploads.take_back(f"media/{name}"):
            raise HttpError(
                404, "no unused upload has this name", hint="files that a message uses stay with it"
            )
        return json_response({"ref": f"media/{name}"})

    return router


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
        body = _Body(request)
        saved = await folder.hold(File(_kind(mime), name, mime, None, body.pieces))
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


class _Body:
    """The body of a request, as it comes."""

    def __init__(self, request: Request) -> None:
        self._request = request
        self._size = 0
        self._ended = False

    async def pieces(self) -> AsyncIterator[bytes]:
        """Yield it piece by piece.

        Raises:
            ChannelError: the client left, or the body is empty.
        """
        while not self._ended:
            yield await self._next()
        if not self._size:
            raise ChannelError("it is empty")

    async def _next(self) -> bytes:
        message = await self._request.receive()
        if message["type"] != "http.request":
            self._ended = True
            raise ChannelError("the client disconnected")
        # Behind the last piece only the client's leaving comes, for which nobody is to wait.
        self._ended = not message.get("more_body", False)
        piece: bytes = message.get("body", b"")
        self._size += len(piece)
        return piece


def _kind(mime: str) -> FileKind:
    match mime.partition("/")[0].strip().lower():
        case "image":
            return "photo"
        case "audio":
            return "audio"
        case "video":
            return "video"
        case _:
            return "document"
