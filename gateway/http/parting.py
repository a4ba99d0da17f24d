"""The last words to clients whose request the end of the daemon cuts off."""

from __future__ import annotations

import asyncio

from starlette.types import ASGIApp, Message, Receive, Scope, Send

from gateway.http.errors import RETRY_AFTER_S, error_response

ENDED = "the gateway shut down before this was answered"
AGAIN = "send it again once the gateway runs; use the same id to avoid duplicates"


class Parting:
    """Answers 503 where a request is cancelled before its answer began; nobody but the end cancels one."""

    def __init__(self, app: ASGIApp) -> None:
        self._app = app

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Pass the request on."""
        began = False

        async def noted(message: Message) -> None:
            nonlocal began
            began = began or message["type"] == "http.response.start"
            await send(message)

        try:
            await self._app(scope, receive, noted)
        except asyncio.CancelledError:
            # The server would call this a fault of ours, 500, which clients do not try again.
            if scope["type"] == "http" and not began:
                answer = error_response(503, ENDED, AGAIN, {"Retry-After": str(RETRY_AFTER_S)})
                await answer(scope, receive, send)
            raise
