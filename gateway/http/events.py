"""``GET /v1/events`` and ``WS /v1/ws``: the events of a chat, which a client can resume."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncIterator, Callable
from contextlib import aclosing
from functools import partial
from typing import Annotated

import structlog
from fastapi import APIRouter, Header, Query, Request, WebSocket
from starlette.responses import Response, StreamingResponse
from starlette.types import Message, Send
from starlette.websockets import WebSocketDisconnect

from gateway.dispatch.events import of_told
from gateway.errors import GatewayError
from gateway.http.errors import HttpError, error_response
from gateway.http.openapi import check_right, needs, still_let_in
from gateway.service.chats import SLOW_S, ChatService
from gateway.service.client_message import MAX_KEY_CHARS
from session.errors import SessionError

log = structlog.get_logger("http")


class EventStream(StreamingResponse):
    """A stream whose client must keep reading: one that takes nothing for 20 s is cut off."""

    media_type = "text/event-stream"
    slow_s = SLOW_S

    async def stream_response(self, send: Send) -> None:
        """Send until the source ends or the client is too slow."""

        async def in_time(message: Message) -> None:
            async with asyncio.timeout(self.slow_s):
                await send(message)

        try:
            await super().stream_response(in_time)
        except TimeoutError:
            log.info("events.client_cut", after_s=self.slow_s)


def add_routes(router: APIRouter, chats: ChatService) -> None:
    """Add the routes of events."""
    _add_events(router, chats)
    _add_socket(router, chats)


def _add_events(router: APIRouter, chats: ChatService) -> None:
    @router.get(
        "/v1/events",
        summary="Follow a chat: its events as server-sent events",
        response_class=EventStream,
        **needs("read"),
    )
    async def get_events(
        request: Request,
        key: Annotated[str, Query(min_length=3, max_length=MAX_KEY_CHARS)],
        last_event_id: Annotated[
            str | None, Header(description="seq of the last reply or notice received")
        ] = None,
        draft: Annotated[
            bool, Query(description="start with the text so far of an unfinished answer")
        ] = False,
    ) -> Response:
        last = read_last(last_event_id or "", "Last-Event-ID")
        # A transcript that cannot be read is an error of the request, which a begun stream could not tell.
        await chats.record.last_seq(key)
        frames = _frames(chats, key, last, drafts=draft, still=partial(still_let_in, request.scope))
        return EventStream(frames, headers={"X-Accel-Buffering": "no"})


def read_last(text: str, name: str) -> int | None:
    """Read the number of the last reply or notice that a client has; None where it says none.

    Raises:
        HttpError: 400, it is no number.
    """
    if not text:
        return None
    if not (text.isascii() and text.isdecimal() and len(text) < 16):
        raise HttpError(400, f"{name} is not the seq of an event", hint="leave it out to start now")
    return int(text)


async def _frames(
    chats: ChatService, key: str, last: int | None, *, drafts: bool, still: Callable[[], bool]
) -> AsyncIterator[bytes]:
    yield b"retry: 1000\n: listening\n\n"
    try:
        async with aclosing(chats.stream(key, last, drafts=drafts)) as stream:
            async for event, resume in stream:
                if not still():
                    return
                if event is None:
                    # An id alone is no event, and still what a client comes back with that has no reply yet.
                    yield b"id: %d\n\n" % resume if resume is not None else b": still here\n\n"
                    continue
                head = b"id: %d\n" % resume if resume is not None else b""
                yield head + b"data: " + event.to_bytes() + b"\n\n"
    except SessionError as error:
        # The stream has begun: its client is told when it comes back.
        log.warning("request.failed", error=str(error), hint=error.hint)


CLOSE_S = 1.0
# Codes of RFC 6455: the daemon ends; the client sends what nobody reads; it may not, or cannot, go on; the
# store refuses, which tells the client to come back.
RESTART, UNREAD, TOO_SLOW, REVOKED, REFUSED = 1012, 1003, 1008, 1008, 1011


def _add_socket(router: APIRouter, chats: ChatService) -> None:
    @router.websocket("/v1/ws")
    async def ws(
        websocket: WebSocket,
        key: Annotated[str, Query()] = "",
        last_id: Annotated[str, Query()] = "",
        draft: Annotated[str, Query()] = "",
    ) -> None:
        try:
            check_right(websocket.scope, "read")
            if not 3 <= len(key) <= MAX_KEY_CHARS:
                raise HttpError(400, "key is missing, or too long", hint="send ?key=channel:chat_id")
            # A transcript that cannot be read is an error of the request, which a begun stream cannot tell.
            await chats.record.last_seq(key)
            last = await _last_of(chats, key, last_id)
        except HttpError as error:
            refused = error_response(websocket.scope, error.status, error.error, error.hint, error.headers)
            await websocket.send_denial_response(refused)
            return
        except (GatewayError, SessionError) as error:
            await websocket.send_denial_response(error_response(websocket.scope, 503, str(error), error.hint))
            return
        await websocket.accept()
        await _show(websocket, chats, key, last, drafts=draft in ("1", "true"))


async def _last_of(chats: ChatService, key: str, last_id: str) -> int | None:
    """Read the seq, or the id, of the last reply or notice that a client has; raises HttpError 400."""
    if "#" not in last_id:
        return read_last(last_id, "last_id")
    for told in await chats.record.told(key, 0):
        if of_told(key, told).id == last_id:
            return told.seq
    raise HttpError(
        400, "last_id is not the id of a reply or notice of this chat", hint="send its seq, or leave it out"
    )


async def _show(
    websocket: WebSocket, chats: ChatService, key: str, last: int | None, *, drafts: bool
) -> None:
    showing = asyncio.ensure_future(_send_events(websocket, chats, key, last, drafts=drafts))
    leaving = asyncio.ensure_future(websocket.receive())
    try:
        await asyncio.wait((showing, leaving), return_when=asyncio.FIRST_COMPLETED)
        if not leaving.done():
            code, reason = showing.result()
        elif leaving.result()["type"] == "websocket.disconnect":
            code, reason = 0, ""
        else:
            code, reason = UNREAD, "this socket only sends events: use POST /v1/messages"
    except SessionError as error:
        log.warning("request.failed", error=str(error), hint=error.hint)
        code, reason = REFUSED, "it could not be stored"
    finally:
        for task in (showing, leaving):
            task.cancel()
        await asyncio.gather(showing, leaving, return_exceptions=True)
    if code:
        # One that takes nothing does not take this either: its connection is cut behind it.
        with contextlib.suppress(TimeoutError, WebSocketDisconnect):
            async with asyncio.timeout(CLOSE_S):
                await websocket.close(code, reason)


async def _send_events(
    websocket: WebSocket, chats: ChatService, key: str, last: int | None, *, drafts: bool
) -> tuple[int, str]:
    async with aclosing(chats.stream(key, last, drafts=drafts)) as stream:
        async for event, _ in stream:
            if not still_let_in(websocket.scope):
                return REVOKED, "the token was revoked"
            # Pings, which the server sends by itself, take the place of heartbeats.
            if event is None:
                continue
            try:
                async with asyncio.timeout(chats.slow_s):
                    await websocket.send_text(event.to_bytes().decode())
            except TimeoutError:
                log.info("events.client_cut", after_s=chats.slow_s)
                return TOO_SLOW, "too slow"
            except WebSocketDisconnect:
                return 0, ""
    return RESTART, "the gateway is shutting down"
