"""Errors as OpenAI's clients read them, on the routes that they ask."""

from __future__ import annotations

from typing import Any, Final

import orjson
from starlette.types import ASGIApp, Message, Receive, Scope, Send

PATHS: Final = ("/v1/chat/completions", "/v1/models")
_TYPES: Final = {
    401: ("authentication_error", "invalid_api_key"),
    403: ("permission_error", "insufficient_permissions"),
    404: ("invalid_request_error", "model_not_found"),
    409: ("conflict_error", "idempotency_conflict"),
    422: ("no_answer_error", "no_answer"),
    429: ("rate_limit_error", "rate_limit_exceeded"),
}


def error_body(status: int, error: str, hint: str) -> dict[str, Any]:
    """Say what is wrong in the form of OpenAI's API; the hint stands beside its fields."""
    fallback = ("server_error", "server_error") if status >= 500 else ("invalid_request_error", None)
    kind, code = _TYPES.get(status, fallback)
    message = f"{error} (try: {hint})" if hint else error
    return {"error": {"message": message, "type": kind, "param": None, "code": code, "hint": hint}}


class OpenAIErrors:
    """The ASGI layer that puts every error of these routes into that form, whoever refused."""

    def __init__(self, app: ASGIApp) -> None:
        self._app = app

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Pass the request on."""
        if scope["type"] != "http" or not _is_openai(scope["path"]):
            await self._app(scope, receive, send)
            return
        held: Message | None = None
        parts: list[bytes] = []

        async def formed(message: Message) -> None:
            nonlocal held
            if message["type"] == "http.response.start" and message["status"] >= 400:
                held = message
            elif held is None:
                await send(message)
            else:
                parts.append(message.get("body", b""))
                if not message.get("more_body", False):
                    body = _formed(held["status"], b"".join(parts))
                    headers = [(name, value) for name, value in held["headers"] if name != b"content-length"]
                    headers.append((b"content-length", str(len(body)).encode()))
                    await send({**held, "headers": headers})
                    await send({"type": "http.response.body", "body": body})

        await self._app(scope, receive, formed)


def _is_openai(path: str) -> bool:
    return path in PATHS or path.startswith("/v1/models/")


def _formed(status: int, body: bytes) -> bytes:
    try:
        found = orjson.loads(body)
        return orjson.dumps(error_body(status, found["error"], found["hint"]))
    except (orjson.JSONDecodeError, KeyError, TypeError):
        return body
