"""``POST /v1/login``: the token once, a cookie that scripts cannot read from then on."""

from __future__ import annotations

from fastapi import APIRouter, Request
from pydantic import BaseModel, ConfigDict
from starlette.responses import Response

from gateway.http.errors import HttpError, json_response
from gateway.http.security import COOKIE, COOKIE_AGE_S, Gate, address_of


class LoginIn(BaseModel):
    """What a person types into the page."""

    model_config = ConfigDict(extra="forbid", strict=True)

    token: str


def routes(gate: Gate) -> APIRouter:
    """Build the route of the login."""
    router = APIRouter(prefix="/v1")

    @router.post("/login", summary="Exchange the token for a cookie")
    async def post_login(request: Request, body: LoginIn) -> Response:
        if gate.asks_token:
            refusal = gate.refuse_login(address_of(request.scope), body.token)
            if refusal is not None:
                raise HttpError(
                    refusal.status, refusal.error, hint=refusal.hint, headers=dict(refusal.headers)
                )
        response = json_response({"ok": True})
        if gate.asks_token:
            response.set_cookie(
                COOKIE,
                gate.cookie,
                max_age=COOKIE_AGE_S,
                path="/",
                httponly=True,
                samesite="strict",
                secure=request.url.scheme == "https",
            )
        return response

    return router
