"""``POST /v1/login``: a token once, a cookie from then on, which scripts cannot read; ``GET /v1/token``."""

from __future__ import annotations

from typing import Literal

from fastapi import APIRouter, Request
from pydantic import BaseModel, ConfigDict
from starlette.responses import Response

from gateway.http.errors import HttpError, json_response
from gateway.http.security import COOKIE, COOKIE_AGE_S, Gate, Refusal, address_of, cookie_name
from gateway.http.shape import Shape, caller_of, needs
from gateway.service.tokens import Right


class LoginIn(BaseModel):
    """The token to log in with."""

    model_config = ConfigDict(extra="forbid", strict=True)

    token: str


class TokenOut(Shape):
    """Name and right of the token; no name if the gateway needs no token."""

    name: str
    right: Right


class LoginOut(TokenOut):
    """Name and right of the token that was exchanged."""

    ok: Literal[True]


class LogoutOut(Shape):
    """The cookie is deleted."""

    ok: Literal[True]


def routes(gate: Gate) -> APIRouter:
    """Build the route of the login."""
    router = APIRouter(prefix="/v1")

    @router.post("/login", summary="Exchange a token for a cookie", response_model=LoginOut, **needs(None))
    async def post_login(request: Request, body: LoginIn) -> Response:
        caller = gate.log_in(address_of(request.scope), body.token)
        if isinstance(caller, Refusal):
            raise HttpError(caller.status, caller.error, hint=caller.hint, headers=dict(caller.headers))
        response = json_response({"ok": True, "name": caller.name, "right": caller.right})
        if gate.asks_token:
            response.set_cookie(
                cookie_name(request.headers["host"]),
                gate.cookie_of(body.token),
                max_age=COOKIE_AGE_S,
                path="/",
                httponly=True,
                samesite="strict",
                secure=request.url.scheme == "https",
            )
        return response

    @router.post(
        "/logout",
        summary="Delete the cookie",
        response_model=LogoutOut,
        **needs(None),
    )
    async def post_logout(request: Request) -> Response:
        response = json_response({"ok": True})
        # Also for a cookie whose token was revoked: whoever shows none has none to lose.
        for name in {COOKIE, cookie_name(request.headers["host"])}:
            response.delete_cookie(
                name, path="/", httponly=True, samesite="strict", secure=request.url.scheme == "https"
            )
        return response

    @router.get(
        "/token",
        summary="Show the name and the right of the token",
        response_model=TokenOut,
        **needs("read"),
    )
    async def get_token(request: Request) -> Response:
        caller = caller_of(request.scope)
        return json_response({"name": caller.name, "right": caller.right})

    return router
