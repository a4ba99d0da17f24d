"""The page at ``/``: three files of this package, which contact no other host."""

from __future__ import annotations

from collections.abc import Callable, Coroutine
from importlib.resources import files

from fastapi import APIRouter
from starlette.responses import Response

POLICY = "; ".join(
    (
        "default-src 'none'",
        "script-src 'self'",
        "style-src 'self'",
        "connect-src 'self'",
        "img-src 'self' data:",
        "base-uri 'none'",
        "form-action 'none'",
        "frame-ancestors 'none'",
    )
)
_TYPES = {
    "index.html": "text/html",
    "app.js": "text/javascript",
    "style.css": "text/css",
}


def routes() -> APIRouter:
    """Build the routes of the page."""
    router = APIRouter(include_in_schema=False)
    folder = files("gateway.http") / "web"
    for name, media_type in _TYPES.items():
        path = "/" if name == "index.html" else f"/{name}"
        router.add_api_route(path, _file((folder / name).read_bytes(), media_type), methods=["GET"])
    return router


def _file(content: bytes, media_type: str) -> Callable[[], Coroutine[None, None, Response]]:
    async def get_file() -> Response:
        headers = {"Content-Security-Policy": POLICY, "Cache-Control": "no-cache"}
        return Response(content, media_type=media_type, headers=headers)

    return get_file
