"""Names every request, so that an answer, its error and what the log says of it can be brought together."""

from __future__ import annotations

import re

import structlog
from starlette.types import ASGIApp, Message, Receive, Scope, Send

import durable

log = structlog.get_logger("http")

HEADER = b"x-request-id"
_STARTS = frozenset({"http.response.start", "websocket.accept", "websocket.http.response.start"})
_GIVEN = re.compile(rb"[A-Za-z0-9][A-Za-z0-9._:-]{0,127}")


class RequestIds:
    """The outermost ASGI layer: ``X-Request-Id`` as given, or a new one, in the answer and in the log."""

    def __init__(self, app: ASGIApp) -> None:
        self._app = app

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Pass the request on under its name."""
        if scope["type"] not in ("http", "websocket"):
            await self._app(scope, receive, send)
            return
        name = _given(scope) or durable.new_id().encode()
        began = durable.monotonic()

        async def named(message: Message) -> None:
            if message["type"] in _STARTS:
                message["headers"] = [*message.get("headers", ()), (HEADER, name)]
            if message["type"] == "http.response.start":
                took_ms = round((durable.monotonic() - began) * 1000, 1)
                # Not the query: it may name a person.
                log.debug(
                    "request.answered",
                    method=scope["method"],
                    path=scope["path"],
                    status=message["status"],
                    took_ms=took_ms,
                )
            await send(message)

        with structlog.contextvars.bound_contextvars(request_id=name.decode()):
            await self._app(scope, receive, named)


def _given(scope: Scope) -> bytes | None:
    """Return the one that the client gave; None where it gave none, several, or what is no name."""
    given = [value for key, value in scope["headers"] if key == HEADER]
    return given[0] if len(given) == 1 and _GIVEN.fullmatch(given[0]) else None
