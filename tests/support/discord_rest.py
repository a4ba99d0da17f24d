"""What stands before every route of the local Discord: the log of calls, faults, rate limits, the token.

A fault stands until it was used up; it is an object of its own, so that a test can wait for it::

    fault = server.fail("POST", "/channels/*/messages", status=429, retry_after=0.3)
    server.fail("GET", "/channels/123/messages", status=502, html=True, times=2)
    server.fail("POST", "/channels/*/messages", drop="after")       # processed, then the connection breaks
    server.fail("*", "/gateway/bot", hang="before", times=None)     # no answer, for ever
    server.fail("POST", "/channels/*/messages", status=403, code=50007, text="Cannot send messages")
    await server.until(lambda: fault.used)
"""

from __future__ import annotations

import asyncio
import hashlib
import re
import time
from collections import deque
from collections.abc import Awaitable, Callable
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Literal

import orjson
from aiohttp import web

if TYPE_CHECKING:
    from tests.support.discord_server import DiscordServer

HTML = (
    "<!DOCTYPE html><html><head><title>discord.com | {0}</title></head><body><h1>Error {0}</h1></body></html>"
)
# The platform's own limits, as far as they are known: requests, seconds. None is every route together.
REAL_LIMITS: dict[str | None, tuple[int, float]] = {
    None: (50, 1.0),
    "POST /channels/{channel_id}/messages": (5, 5.0),
    "PATCH /channels/{channel_id}/messages/{message_id}": (5, 5.0),
    "DELETE /channels/{channel_id}/messages/{message_id}": (5, 1.0),
    "GET /channels/{channel_id}/messages": (5, 5.0),
    "POST /channels/{channel_id}/typing": (5, 5.0),
    "PUT /applications/{application_id}/commands": (2, 20.0),
    "POST /webhooks/{application_id}/{token}": (5, 5.0),
}
# Routes that need no token and are outside the global limit.
OPEN = ("/interactions/", "/webhooks/", "/attachments/")
Handler = Callable[[web.Request], Awaitable[web.StreamResponse]]


@dataclass(eq=False)
class Fault:
    """What the next requests of a route get, ``times`` of them (None: all); see the module's docstring."""

    method: str
    route: re.Pattern[str]
    status: int = 0
    retry_after: float = 0.0
    # Whether the 429 is a global one.
    everywhere: bool = False
    # Without it a 429 looks like a ban.
    via: bool = True
    html: bool = False
    code: int = 0
    text: str = ""
    drop: Literal["", "before", "after"] = ""
    hang: Literal["", "before", "after"] = ""
    # How long the answer takes.
    late_s: float = 0.0
    times: int | None = 1
    used: int = 0

    def meets(self, method: str, path: str) -> bool:
        left = self.times is None or self.used < self.times
        return left and self.method in ("*", method) and bool(self.route.fullmatch(path))


def pattern(route: str) -> re.Pattern[str]:
    """The expression of a route in which ``*`` and ``{name}`` stand for one part of the path."""
    parts = re.split(r"\*|\{\w+\}", route)
    return re.compile("[^/]+".join(re.escape(part) for part in parts))


@dataclass(frozen=True)
class Call:
    """One request, as it arrived; ``route`` is the template, ``path`` what was asked, ``at`` monotonic."""

    method: str
    route: str
    path: str
    query: dict[str, str]
    at: float


@dataclass(frozen=True)
class Sent:
    """A message of the bot that was accepted; ``files`` are (name, type, bytes)."""

    id: str
    channel_id: str
    text: str
    nonce: str | int | None
    reference: str | None
    files: list[tuple[str, str, bytes]]
    allowed_mentions: dict[str, Any] | None
    # Either "channel" or "interaction".
    via: str
    at: float


@dataclass(frozen=True)
class Edited:
    """An edit of the bot that was accepted."""

    message_id: str
    channel_id: str
    text: str
    at: float


class Refused(Exception):
    """An answer that is an error."""

    def __init__(self, status: int, code: int, text: str, errors: dict[str, Any] | None = None) -> None:
        super().__init__(text)
        self.status = status
        self.body: dict[str, Any] = {"message": text, "code": code}
        if errors:
            self.body["errors"] = errors


def invalid(name: str, code: str, text: str) -> Refused:
    errors = {name: {"_errors": [{"code": code, "message": text}]}}
    return Refused(400, 50035, "Invalid Form Body", errors)


def json(body: Any, status: int = 200) -> web.Response:
    return web.Response(body=orjson.dumps(body), status=status, content_type="application/json")


@dataclass
class Buckets:
    """Counts requests per route and major parameter, and over all routes."""

    limits: dict[str | None, tuple[int, float]]
    _taken: dict[str, deque[float]] = field(default_factory=dict)

    def take(self, call: Call, major: str) -> tuple[dict[str, str], float, bool]:
        """Return the headers, the seconds to wait (0: go on), and whether that is the global limit."""
        name = f"{call.method} {call.route}"
        if None in self.limits and not call.route.startswith(OPEN):
            wait, _, _ = self._count("global", *self.limits[None])
            if wait:
                return {"X-RateLimit-Global": "true", "X-RateLimit-Scope": "global"}, wait, True
        if name not in self.limits:
            return {}, 0.0, False
        limit, per_s = self.limits[name]
        wait, left, reset = self._count(f"{name} {major}", limit, per_s)
        headers = {
            "X-RateLimit-Limit": str(limit),
            "X-RateLimit-Remaining": str(left),
            "X-RateLimit-Reset": f"{time.time() + reset:.3f}",
            "X-RateLimit-Reset-After": f"{reset:.3f}",
            "X-RateLimit-Bucket": hashlib.sha256(name.encode()).hexdigest()[:32],
        }
        return headers | ({"X-RateLimit-Scope": "user"} if wait else {}), wait, False

    def _count(self, key: str, limit: int, per_s: float) -> tuple[float, int, float]:
        now, taken = time.monotonic(), self._taken.setdefault(key, deque())
        # A window opens with its first request and ends as a whole.
        if taken and now - taken[0] >= per_s:
            taken.clear()
        reset = per_s - (now - taken[0]) if taken else per_s
        if len(taken) >= limit:
            return reset, 0, reset
        taken.append(now)
        return 0.0, limit - len(taken), reset


class Rest:
    """What stands before every route."""

    def __init__(self, server: DiscordServer) -> None:
        self._server = server
        self.released = asyncio.Event()

    @web.middleware
    async def middleware(self, request: web.Request, handler: Handler) -> web.StreamResponse:
        """Note the call, then apply faults, limits and the check of the token."""
        resource = request.match_info.route.resource
        template = (resource.canonical if resource else request.path).removeprefix("/api/v10")
        if template in ("/gateway/", "/resume"):
            return await handler(request)
        path = request.path.removeprefix("/api/v10")
        call = Call(request.method, template, path, dict(request.query), time.monotonic())
        self._server.calls.append(call)
        self._server.notify()
        fault = next((one for one in self._server.faults if one.meets(call.method, path)), None)
        if fault is not None:
            fault.used += 1
            self._server.notify()
            if await self._broken(request, "before", fault):
                return web.Response(status=500)
            if fault.status:
                return self._faulty(fault)
        response = await self._answer(request, handler, call)
        if fault is not None:
            await asyncio.sleep(fault.late_s)
            await self._broken(request, "after", fault)
        return response

    async def _broken(self, request: web.Request, when: str, fault: Fault) -> bool:
        """Hang or cut the connection, if the fault says so at this point."""
        if when not in (fault.hang, fault.drop):
            return False
        if fault.hang:
            await self.released.wait()
        if request.transport is not None:
            request.transport.abort()
        return True

    def _faulty(self, fault: Fault) -> web.Response:
        headers = {"Via": "1.1 google"} if fault.via else {}
        if fault.status == 429:
            headers["Retry-After"] = str(max(1, round(fault.retry_after)))
        if fault.html:
            page = HTML.format(fault.status)
            return web.Response(status=fault.status, text=page, content_type="text/html", headers=headers)
        if fault.status == 429:
            return self._limited(fault.retry_after, fault.everywhere, headers)
        text = fault.text or {401: "401: Unauthorized", 403: "Missing Access"}.get(fault.status, "Unknown")
        response = json({"message": text, "code": fault.code}, fault.status)
        response.headers.update(headers)
        return response

    def _limited(self, wait: float, everywhere: bool, headers: dict[str, str]) -> web.Response:
        body = {"message": "You are being rate limited.", "retry_after": wait, "global": everywhere}
        response = json(body, 429)
        response.headers.update({"Via": "1.1 google", "Retry-After": str(max(1, round(wait)))} | headers)
        return response

    async def _answer(self, request: web.Request, handler: Handler, call: Call) -> web.StreamResponse:
        parts = request.match_info
        major = parts.get("channel_id") or parts.get("guild_id") or parts.get("token") or ""
        headers, wait, everywhere = self._server.buckets.take(call, major)
        if wait:
            return self._limited(wait, everywhere, headers)
        try:
            known = request.headers.get("Authorization") == f"Bot {self._server.token}"
            if not known and not call.route.startswith(OPEN):
                raise Refused(401, 0, "401: Unauthorized")
            response = await handler(request)
        except Refused as error:
            response = json(error.body, error.status)
        except web.HTTPNotFound:
            response = json({"message": "404: Not Found", "code": 0}, 404)
        response.headers.update(headers)
        response.headers["Via"] = "1.1 google"
        return response
