"""The short way of a usual completion, which waits for nothing that only finds out what was meant.

FastAPI looks for the route, for each of its parameters and for what an error would say: half a millisecond
before the message is stored, at each request. A request that is in order needs none of it. Any other goes
FastAPI's way, where the errors are told and the document is made.
"""

from __future__ import annotations

import json
from collections.abc import Awaitable, Callable
from typing import Final, NamedTuple, NoReturn

from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import BaseRoute, Match, NoMatchFound
from starlette.types import ASGIApp, Receive, Scope, Send

from gateway.http.body import read_again
from gateway.http.completion_shapes import CompletionIn
from gateway.http.shape import caller_of
from gateway.service.client_message import MAX_KEY_CHARS

PATH: Final = "/v1/chat/completions"
MAX_KEY_HEADER_CHARS: Final = 190
_TRIED: Final = "chat_gateway.tried"
_JSON: Final = frozenset({b"application/json", b"application/json; charset=utf-8"})


class CompletionHeaders(NamedTuple):
    """What the headers say: the chat, as two kinds of clients name it, and the message's id."""

    x_chat_id: str | None = None
    x_openwebui_chat_id: str | None = None
    idempotency_key: str | None = None


_LONGEST: Final = {
    b"x-chat-id": ("x_chat_id", MAX_KEY_CHARS),
    b"x-openwebui-chat-id": ("x_openwebui_chat_id", MAX_KEY_CHARS),
    b"idempotency-key": ("idempotency_key", MAX_KEY_HEADER_CHARS),
}
Answer = Callable[[Request, CompletionIn, CompletionHeaders], Awaitable[Response]]


class CompletionRoute(BaseRoute):
    """Takes the requests that are in order, ahead of all other routes.

    Args:
        answer: makes the response; what it raises is told as that of any route.
        otherwise: the router, which is asked again for a request that is not in order.
    """

    def __init__(self, answer: Answer, otherwise: ASGIApp) -> None:
        self._answer = answer
        self._otherwise = otherwise

    def matches(self, scope: Scope) -> tuple[Match, Scope]:
        """Take a completion once."""
        ours = scope["type"] == "http" and scope["path"] == PATH and scope["method"] == "POST"
        return (Match.FULL if ours and _TRIED not in scope else Match.NONE), {}

    def url_path_for(self, name: str, /, **path_params: object) -> NoReturn:
        """Have no name: the route of the document has it."""
        raise NoMatchFound(name, path_params)

    async def handle(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Answer, or hand the request on."""
        request = Request(scope, receive)
        body = await request.body()
        asked = _read(scope, body)
        if asked is None:
            scope[_TRIED] = True
            await self._otherwise(scope, read_again(body, receive), send)
            return
        response = await self._answer(request, *asked)
        await response(scope, receive, send)


def _read(scope: Scope, body: bytes) -> tuple[CompletionIn, CompletionHeaders] | None:
    """Read a request; None where anything about it is to be looked at, or to be refused."""
    if not caller_of(scope).may("write"):
        return None
    found: dict[str, str] = {}
    types: list[bytes] = []
    for name, value in scope["headers"]:
        if name == b"content-type":
            types.append(value)
        elif name in _LONGEST:
            field, most = _LONGEST[name]
            if field in found or not 0 < len(value) <= most:
                return None
            found[field] = value.decode("latin-1")
    if len(types) != 1 or types[0] not in _JSON:
        return None
    try:
        return CompletionIn.model_validate(json.loads(body)), CompletionHeaders(**found)
    except (ValueError, RecursionError):
        return None
