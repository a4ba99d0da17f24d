"""``POST /v1/messages`` accepts a message; ``POST /v1/stop`` stops the turn of a chat."""

from __future__ import annotations

import asyncio
import os
from collections.abc import Coroutine, Sequence
from pathlib import Path
from typing import Annotated, Any, Literal, TypeVar

from fastapi import APIRouter, Query, Request
from pydantic import Field, model_validator
from starlette.responses import Response
from starlette.types import Receive, Scope

from channels.media import MediaFolder, safe_name
from channels.message import Attachment, Inbound
from gateway.config.settings import Settings
from gateway.errors import MailboxDown
from gateway.http.errors import HttpError, json_response, unavailable
from gateway.http.openapi import Body, Shape, check_right, needs
from gateway.service.chats import ChatService, Closing, Conflict
from gateway.service.client_message import MAX_KEY_CHARS, inbound, is_kept
from gateway.service.outcome import Outcome
from session.transcript.attachments import open_beneath
from session.turn.commands import DECIDING, parse

T = TypeVar("T")


class ClientLeft(Exception):
    """The client closed its connection; what was done for it is cancelled."""


async def cancel_on_disconnect(receive: Receive, work: Coroutine[Any, Any, T]) -> T:
    """Return what ``work`` does for a client whose request was read whole.

    Raises:
        ClientLeft: it left first.
    """
    doing = asyncio.ensure_future(work)
    leaving = asyncio.ensure_future(_left(receive))
    try:
        await asyncio.wait((doing, leaving), return_when=asyncio.FIRST_COMPLETED)
        if doing.done():
            return doing.result()
    finally:
        for task in (doing, leaving):
            task.cancel()
        await asyncio.gather(doing, leaving, return_exceptions=True)
    raise ClientLeft


async def _left(receive: Receive) -> None:
    while (await receive())["type"] != "http.disconnect":
        pass


MAX_WAIT_S = 3600.0
MAX_FILES = 20
Wait = Annotated[float | None, Query(ge=0, allow_inf_nan=False, description="seconds to wait for the answer")]


class AttachmentIn(Body):
    """A file in ``media/`` of the workspace, with the name to show."""

    ref: str = Field(
        pattern=r"^media/[0-9a-f]{2}/[0-9a-f]{64}\.[a-z0-9]{1,10}$", description="its path there"
    )
    name: str = Field(default="", max_length=255)
    kind: Literal["photo", "document", "voice", "audio", "video"] = "document"
    mime: str = Field(default="", max_length=127)
    size: int = Field(default=0, ge=0, description="from POST /v1/media; the size is measured")


class MessageIn(Body):
    """A message for ``web:<chat_id>`` or any ``key``; a repeat with the same ``id`` is ignored."""

    chat_id: str | None = Field(default=None, min_length=1, max_length=MAX_KEY_CHARS)
    key: str | None = Field(default=None, min_length=3, max_length=MAX_KEY_CHARS)
    text: str
    id: str | None = Field(default=None, min_length=1)
    attachments: list[AttachmentIn] = Field(default=[], max_length=MAX_FILES)

    @model_validator(mode="after")
    def _one_address(self) -> MessageIn:
        if (self.chat_id is None) == (self.key is None):
            raise ValueError("send either chat_id or key")
        if not self.text.strip() and not self.attachments:
            raise ValueError("text is empty, and there is no file")
        return self


class KeyIn(Body):
    """The key of a chat."""

    key: str = Field(min_length=3, max_length=MAX_KEY_CHARS)


class Accepted(Shape):
    """A stored message; from now on a crash does not lose it."""

    id: str
    key: str


class Answered(Accepted):
    """How a message ended: a notice says why there is no answer."""

    reply: str
    kind: Literal["reply", "notice"]
    files: list[str] = Field(default=[], description="local paths of its files")


class Stopped(Shape):
    """The chat whose answer was stopped."""

    key: str


def add_routes(router: APIRouter, chats: ChatService) -> None:
    """Add the routes of messages."""

    @router.post(
        "/v1/messages",
        status_code=202,
        summary="Send a message and wait for its answer",
        **needs("write", Accepted, 409, _200=Answered),
    )
    async def post_message(request: Request, body: MessageIn, wait: Wait = None) -> Response:
        return await hand_in(request, chats, body, wait)

    @router.post(
        "/v1/stop",
        status_code=202,
        summary="Stop the answer in progress in a chat",
        **needs("write", Stopped),
    )
    async def post_stop(body: KeyIn) -> Response:
        await chats.stop(body.key)
        return json_response({"key": body.key}, 202)


async def hand_in(request: Request, chats: ChatService, body: MessageIn, wait: float | None) -> Response:
    """Hand in a message; wait for its answer where ``wait`` says so."""
    check_words(request.scope, body.text)
    key = body.key if body.key is not None else f"web:{body.chat_id}"
    services = chats.application.services if ":" not in key else None
    kept = services is not None and await is_kept(services.store, key)
    enclosed = await _found(chats.application.settings, body.attachments)
    message = inbound(key, body.text, body.id, kept=kept, files=enclosed)
    names: dict[str, Any] = {"id": message.id, "key": message.key}
    try:
        if not wait:
            outcome = await chats.accept(message)
            outcome = outcome if wait is not None else None
        else:
            outcome = await _ask(request, chats, message, min(wait, MAX_WAIT_S))
    except Conflict:
        raise HttpError(
            409, f"the id {message.id} belongs to another message of this chat", hint="use a new id"
        ) from None
    except MailboxDown as error:
        raise unavailable(
            f"it is not certain that the message was stored: {error}",
            f'send it again with the "id" {message.id}',
        ) from None
    if outcome is None:
        return json_response(names, 202)
    files = {"files": outcome.files.split("\n")} if outcome.files else {}
    return json_response(names | {"reply": outcome.text, "kind": outcome.kind} | files)


def check_words(scope: Scope, text: str) -> None:
    """Refuse a decision about a tool call of whoever may only talk, who would allow its own.

    Raises:
        HttpError: 403.
    """
    command = parse(text)
    if command is not None and command.name in DECIDING:
        check_right(scope, "admin")


async def _found(settings: Settings, files: Sequence[AttachmentIn]) -> list[Attachment]:
    """Measure the files that go along; raises HttpError 400 where one is not there."""
    if not files:
        return []
    folder = await asyncio.to_thread(
        MediaFolder, settings.workspace, settings.media.max_mb, settings.media.timeout_s
    )
    found = []
    for file in files:
        try:
            await folder.bring(file.ref)
            size = await asyncio.to_thread(_size, settings.workspace, file.ref)
        except OSError:
            raise HttpError(
                400,
                f"there is no file {file.ref}",
                hint="upload it first: POST /v1/media; uploads are kept for an hour",
            ) from None
        # Invisible and control characters in a name would mislead whoever reads it.
        found.append(
            Attachment(kind=file.kind, name=safe_name(file.name), mime=file.mime, size=size, ref=file.ref)
        )
    return found


def _size(workspace: Path, ref: str) -> int:
    fd = open_beneath(workspace / "media", ref.removeprefix("media/"))
    try:
        return os.fstat(fd).st_size
    finally:
        os.close(fd)


async def _ask(request: Request, chats: ChatService, message: Inbound, within_s: float) -> Outcome | None:
    try:
        return await cancel_on_disconnect(request.receive, chats.ask(message, within_s=within_s))
    except (Closing, ClientLeft):
        return None
