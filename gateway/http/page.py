"""The page at ``/`` and its files below ``/page/``: parts of this package, which contact no other host."""

from __future__ import annotations

import gzip
import hashlib
from collections.abc import Callable, Coroutine, Iterator
from functools import cached_property
from importlib.resources import files
from importlib.resources.abc import Traversable

from fastapi import APIRouter, Request
from starlette.responses import Response

POLICY = "; ".join(
    (
        "default-src 'none'",
        "script-src 'self'",
        "style-src 'self'",
        "connect-src 'self'",
        "img-src 'self'",
        "base-uri 'none'",
        "form-action 'none'",
        "frame-ancestors 'none'",
        # No text becomes markup anywhere in the page: the browser itself refuses.
        "require-trusted-types-for 'script'",
        "trusted-types 'none'",
    )
)
TYPES = {
    "html": "text/html",
    "js": "text/javascript",
    "css": "text/css",
    "svg": "image/svg+xml",
}
PREFIX = "/page/"


class PageFile:
    """One file of the page: its bytes, packed once when a browser first asks for it so."""

    def __init__(self, name: str, content: bytes) -> None:
        self.name = name
        self.content = content
        self.media_type = TYPES[name.rpartition(".")[2]]

    @cached_property
    def packed(self) -> bytes:
        """The content as gzip, the same bytes each time."""
        return gzip.compress(self.content, 9, mtime=0)

    @cached_property
    def tag(self) -> str:
        """What stands for this content in ``ETag``; weak, for both forms have the same."""
        return f'W/"{hashlib.sha256(self.content).hexdigest()[:20]}"'

    @property
    def path(self) -> str:
        """Where a browser finds it."""
        return "/" if self.name == "index.html" else PREFIX + self.name


def page_files() -> Iterator[PageFile]:
    """Read every file of the page."""
    yield from _read(files("gateway.http") / "web", "")


def _read(folder: Traversable, prefix: str) -> Iterator[PageFile]:
    for found in sorted(folder.iterdir(), key=lambda each: each.name):
        if found.is_dir():
            yield from _read(found, f"{prefix}{found.name}/")
        elif found.name.rpartition(".")[2] in TYPES:
            yield PageFile(prefix + found.name, found.read_bytes())


def add_routes(router: APIRouter) -> None:
    """Add the routes of the page."""
    for file in page_files():
        router.add_api_route(file.path, _answer(file), methods=["GET", "HEAD"], include_in_schema=False)


def _answer(file: PageFile) -> Callable[[Request], Coroutine[None, None, Response]]:
    async def get_file(request: Request) -> Response:
        headers = {
            "Content-Security-Policy": POLICY,
            "Cache-Control": "no-cache",
            "ETag": file.tag,
            "Vary": "Accept-Encoding",
        }
        if file.tag in request.headers.get("if-none-match", ""):
            return Response(status_code=304, headers=headers)
        if "gzip" not in request.headers.get("accept-encoding", ""):
            return Response(file.content, media_type=file.media_type, headers=headers)
        headers["Content-Encoding"] = "gzip"
        return Response(file.packed, media_type=file.media_type, headers=headers)

    return get_file
