"""``GET /v1/events``: what happens in a chat, as server-sent events that can be resumed."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable
from contextlib import aclosing
from functools import partial
from typing import Annotated

import structlog
from fastapi import APIRouter, Header, Query, Request
from starlette.responses import Response, StreamingResponse
from starlette.types import Message, Send

from gateway.http.errors import HttpError
from gateway.http.shape import needs, still_let_in
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


def routes(chats: ChatService) -> APIRouter:
    """Build the route of events."""
    router = APIRouter(prefix="/v1")

    @router.get(
        "/events",
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

    return router


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
