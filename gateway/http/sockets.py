"""``WS /v1/ws``: what happens in a chat, as ``GET /v1/events`` shows it, over a WebSocket."""

from __future__ import annotations

import asyncio
import contextlib
from contextlib import aclosing
from typing import Annotated

import structlog
from fastapi import APIRouter, Query, WebSocket
from starlette.websockets import WebSocketDisconnect

from gateway.errors import GatewayError
from gateway.http.errors import HttpError, error_response
from gateway.http.events import read_last
from gateway.http.shape import check_right, still_let_in
from gateway.service.chats import ChatService
from gateway.service.client_message import MAX_KEY_CHARS
from gateway.turns.events import of_told
from session.errors import SessionError

log = structlog.get_logger("http")

CLOSE_S = 1.0
# Codes of RFC 6455: the daemon ends; the client sends what nobody reads; it may not, or cannot, go on; the
# store refuses, which tells the client to come back.
RESTART, UNREAD, TOO_SLOW, REVOKED, REFUSED = 1012, 1003, 1008, 1008, 1011


def routes(chats: ChatService) -> APIRouter:
    """Build the route of the WebSocket."""
    router = APIRouter()

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
            refused = error_response(error.status, error.error, error.hint, error.headers)
            await websocket.send_denial_response(refused)
            return
        except (GatewayError, SessionError) as error:
            await websocket.send_denial_response(error_response(503, str(error), error.hint))
            return
        await websocket.accept()
        await _show(websocket, chats, key, last, drafts=draft in ("1", "true"))

    return router


async def _last_of(chats: ChatService, key: str, last_id: str) -> int | None:
    """Read the seq, or the id, of the last reply or notice that a client has.

    Raises:
        HttpError: 400, it is neither.
    """
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
    """Send until the client leaves, is too slow, or the daemon ends."""
    showing = asyncio.ensure_future(_send_events(websocket, chats, key, last, drafts=drafts))
    leaving = asyncio.ensure_future(_left(websocket))
    try:
        await asyncio.wait((showing, leaving), return_when=asyncio.FIRST_COMPLETED)
        code, reason = leaving.result() if leaving.done() else showing.result()
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


async def _left(websocket: WebSocket) -> tuple[int, str]:
    """Wait for the client to leave, or to send what nobody would read."""
    message = await websocket.receive()
    if message["type"] == "websocket.disconnect":
        return 0, ""
    return UNREAD, "this socket only sends events: use POST /v1/messages"
