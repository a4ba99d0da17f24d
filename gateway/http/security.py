"""Checks Host, Origin, token, rate and body before a route sees a request; the routes of the login."""

from __future__ import annotations

import asyncio
import contextlib
import hashlib
import hmac
import ipaddress
import math
from collections import Counter, deque
from collections.abc import Callable, Collection, Iterator, Sequence
from itertools import chain, islice
from typing import Final, Literal
from urllib.parse import urlsplit

import structlog
from fastapi import APIRouter, Request
from starlette.datastructures import Headers, MutableHeaders
from starlette.responses import Response
from starlette.types import ASGIApp, Message, Receive, Scope, Send

import durable
from durable import BoundedDict
from gateway.http.errors import HttpError, error_response, json_response, unavailable
from gateway.http.openapi import CALLER, EVERYBODY, OPERATOR, STILL, Body, Shape, caller_of, needs
from gateway.service.tokens import Caller, Right, Tokens, cookie_of

MAX_BYTES = 2 * 2**20
# What needs no token has no more to say than a token.
MAX_STRANGER_BYTES = 4 * 1024
WITHIN_S = 30.0
STRANGER_WITHIN_S = 10.0
# Sixty clients that each hold back the end of two mebibytes would cost 126 MB.
LARGE_BYTES = 64 * 1024
LARGE_AT_ONCE = 3


class Bodies:
    """Reads the bodies of one server; of those over 64 KiB three at a time, the others wait for them."""

    def __init__(self) -> None:
        self._large = asyncio.Semaphore(LARGE_AT_ONCE)

    async def read(self, scope: Scope, receive: Receive, *, stranger: bool) -> bytes:
        """Return the whole body; that of a ``stranger`` may have 4 KiB and take ten seconds.

        The server reads the rest of a refused one to its end: a connection that is reset hides the answer.

        Raises:
            HttpError: it is too large or too slow.
        """
        most, within_s = (MAX_STRANGER_BYTES, STRANGER_WITHIN_S) if stranger else (MAX_BYTES, WITHIN_S)
        parts: list[bytes] = []
        size, received, waits, seated = declared(scope), 0, False, False
        try:
            async with asyncio.timeout(within_s):
                while size <= most:
                    if size > LARGE_BYTES and not seated:
                        waits = True
                        await self._large.acquire()
                        waits, seated = False, True
                    message = await receive()
                    if message["type"] != "http.request":
                        raise HttpError(400, "the client disconnected")
                    parts.append(message.get("body", b""))
                    received += len(parts[-1])
                    size = max(size, received)
                    if size <= most and not message.get("more_body", False):
                        return b"".join(parts)
        except TimeoutError:
            if waits:
                raise unavailable(
                    "too many large uploads are in progress", "try again in a few seconds"
                ) from None
            raise HttpError(
                408,
                "the request body was not received in time",
                hint="try again",
                headers={"Connection": "close"},
            ) from None
        finally:
            if seated:
                self._large.release()
        limit = f"{most // 1024} KiB" if most < 2**20 else f"{most // 2**20} MiB"
        raise HttpError(413, f"the request body is over {limit}", hint="send a smaller body")


def declared(scope: Scope) -> int:
    """Return the length that the headers name; 0 where they name none."""
    for name, value in scope["headers"]:
        if name == b"content-length" and value.isdigit():
            return int(value)
    return 0


def read_again(body: bytes, receive: Receive) -> Receive:
    """Give out a body that was read, then what comes behind it."""
    given = False

    async def again() -> Message:
        nonlocal given
        if given:
            return await receive()
        given = True
        return {"type": "http.request", "body": body, "more_body": False}

    return again


log = structlog.get_logger("http")

WINDOW_S = 60.0
MAX_OF_ADDRESS = 10
MAX_IN_ALL = 100
MAX_ADDRESSES = 10_000


class LoginThrottle:
    """The wrong tokens of the last minute.

    An address with ten of them waits until the first is a minute old; once there are a hundred in all, one
    with any waits. An address without a wrong token never does, so that its right one is always taken.

    Args:
        clock: seconds, which only grow.
    """

    def __init__(self, clock: Callable[[], float] = durable.monotonic) -> None:
        self._clock = clock
        # The address that guessed longest ago is first.
        self._of: BoundedDict[str, deque[tuple[float, bytes]]] = BoundedDict(MAX_ADDRESSES)
        self._in_all: deque[float] = deque()

    def __len__(self) -> int:
        """Count the addresses that are remembered."""
        return len(self._of)

    def wait_s(self, address: str) -> float:
        """Say for how many seconds no token of this address is looked at; 0: it is."""
        now = self._clock()
        wrong = self._wrong(_network(address), now)
        if len(wrong) >= MAX_OF_ADDRESS:
            return wrong[0][0] + WINDOW_S - now
        if wrong and len(self._in_all) >= MAX_IN_ALL:
            return wrong[-1][0] + WINDOW_S - now
        return 0.0

    def note(self, address: str, *, once: bytes = b"") -> None:
        """Count a wrong token; one with the mark ``once`` counts a single time from its address."""
        now = self._clock()
        address = _network(address)
        wrong = self._wrong(address, now)
        if once and any(mark == once for _, mark in wrong):
            return
        wrong.append((now, once))
        self._in_all.append(now)
        self._of[address] = wrong
        if len(wrong) == MAX_OF_ADDRESS or len(self._in_all) == MAX_IN_ALL:
            log.warning("tokens.guessed", address=address, wrong=len(wrong), in_all=len(self._in_all))

    def _wrong(self, address: str, now: float) -> deque[tuple[float, bytes]]:
        """Return the wrong tokens of an address, after all that are too old were forgotten."""
        while self._in_all and self._in_all[0] <= now - WINDOW_S:
            self._in_all.popleft()
        wrong = self._of.get(address, deque())
        while wrong and wrong[0][0] <= now - WINDOW_S:
            wrong.popleft()
        if not wrong:
            self._of.pop(address, None)
        return wrong


def _network(address: str) -> str:
    """Return what counts as one address: of IPv6 the /64, all of which belong to one client."""
    try:
        found = ipaddress.ip_address(address.partition("%")[0])
    except ValueError:
        return address
    if found.version == 4:
        return str(found)
    mapped = found.ipv4_mapped
    return str(mapped) if mapped is not None else str(ipaddress.ip_network((found, 64), strict=False))


MAX_NAMES: Final = 10_000
# What may come at once where the bound is small: a page asks for several things when it is opened.
MIN_BURST: Final = 10
MAX_STREAMS: Final = 64
# Places that no stream takes, for health checks and other short requests.
RESERVED: Final = 16


class Rates:
    """Counts requests by the name of their token.

    Each name has a stock that fills evenly; a request takes one from it.

    Args:
        per_minute: how many requests a minute; 0: any number.
        clock: seconds, which only grow.
    """

    def __init__(self, per_minute: int, clock: Callable[[], float] = durable.monotonic) -> None:
        self._per_s = per_minute / 60
        self._most = max(per_minute / 10, min(per_minute, MIN_BURST))
        self._clock = clock
        # What is left of a stock, and when that was so.
        self._stocks: BoundedDict[str, tuple[float, float]] = BoundedDict(MAX_NAMES)

    def wait_s(self, name: str) -> float:
        """Take one request of ``name``; return 0, or after how many seconds the next one is taken."""
        if not self._per_s:
            return 0.0
        now = self._clock()
        left, at = self._stocks.get(name) or (self._most, now)
        left = min(self._most, left + (now - at) * self._per_s)
        if left < 1:
            self._stocks[name] = (left, now)
            return (1 - left) / self._per_s
        self._stocks[name] = (left - 1, now)
        return 0.0


class Streams:
    """Counts requests that may stay open for long, such as event streams, by the name of their token.

    Args:
        descriptors: how many this process may hold; streams take half of them at most.
    """

    def __init__(self, descriptors: int) -> None:
        self._most = max(8, min(10_000, descriptors // 2) - RESERVED)
        self._open: Counter[str] = Counter()

    def enter(self, name: str, *, bounded: bool) -> bool:
        """Count one more; False where there is no room, or a ``bounded`` token has ``MAX_STREAMS`` open."""
        if self._open.total() >= self._most or (bounded and self._open[name] >= MAX_STREAMS):
            return False
        self._open[name] += 1
        return True

    def leave(self, name: str) -> None:
        """Count one less."""
        self._open[name] -= 1
        if not self._open[name]:
            del self._open[name]


COOKIE = "chat_gateway"
COOKIE_AGE_S = 30 * 24 * 3600
# As many gateways of one host may have given a browser one.
MAX_COOKIES = 16
# Files, which may be larger than any other body.
STREAMED = frozenset({("POST", "/v1/media")})
# They may stay open for as long as their client likes.
STREAMS = frozenset({"/v1/events", "/v1/ws", "/v1/messages", "/v1/chat/completions"})
# Refusals without a token are logged at most once in so many seconds, with their number.
LOG_EVERY_S = 10.0
SAFE_METHODS = frozenset({"GET", "HEAD", "OPTIONS"})
OPEN_PATHS = frozenset({"/healthz", "/readyz", "/v1/login", "/v1/logout", "/"})
# The files of the page: it has to be there before anybody can log in.
OPEN_PREFIX = "/page/"
ENDED = "the gateway shut down before this was answered"
AGAIN = "send it again once the gateway runs; use the same id to avoid duplicates"
LOCAL_NAMES = frozenset({"localhost", "127.0.0.1", "[::1]"})
WILDCARDS = frozenset({"0.0.0.0", "[::]"})  # noqa: S104 - names that are refused, not bound
HOLDER = Caller(OPERATOR, "admin")
_WHICH = "use http.token of the configuration, or create one: chat-gateway tokens add"
HEADERS = {
    "x-content-type-options": "nosniff",
    "referrer-policy": "no-referrer",
    "x-frame-options": "DENY",
    "cross-origin-resource-policy": "same-origin",
    "cache-control": "no-store",
}


class Gate:
    """Decides over requests by their headers, and by the wrong tokens that came before.

    Args:
        host: the address that is bound.
        allowed_hosts: further names under which the server may be addressed.
        token: what every request must carry, with all rights; empty: no request needs a token.
        tokens: further ones with a name and a right, which count where ``token`` is set.
        rates: bounds the requests of each token.
    """

    def __init__(
        self,
        *,
        host: str,
        allowed_hosts: Collection[str] = (),
        token: str = "",
        tokens: Tokens | None = None,
        rates: Rates | None = None,
    ) -> None:
        bound = _bracketed(host.lower())
        self._extra = frozenset(_bracketed(name.lower()) for name in allowed_hosts)
        self._names = (LOCAL_NAMES | self._extra | {bound}) - (WILDCARDS - self._extra)
        self._token = token
        self._tokens = tokens
        self._cookie: str | None = None
        self._throttle = LoginThrottle()
        self._rates = rates if rates is not None else Rates(0)

    @property
    def asks_token(self) -> bool:
        """Whether a token is set at all."""
        return bool(self._token)

    def knows(self, token: str) -> Caller | None:
        """Return whose token it is; compared in a time that tells nothing, its length neither."""
        given = hashlib.sha256(token.encode("utf-8", "surrogatepass")).digest()
        if hmac.compare_digest(given, hashlib.sha256(self._token.encode()).digest()):
            return HOLDER
        return self._tokens.of_token(token) if self._tokens is not None else None

    def cookie_of(self, token: str) -> str:
        """Return the cookie of a token that was shown; a named token has enough chance in it without a key.

        Raises:
            StoreError: the workspace's key can be neither read nor made.
        """
        if token != self._token or self._tokens is None:
            return cookie_of(token)
        if self._cookie is None:
            self._cookie = cookie_of(token, self._tokens.cookie_key())
        return self._cookie

    def _knows_cookie(self, cookie: str) -> Caller | None:
        if hmac.compare_digest(cookie.encode(), self.cookie_of(self._token).encode()):
            return HOLDER
        return self._tokens.of_cookie(cookie) if self._tokens is not None else None

    def log_in(self, address: str, token: str) -> Caller:
        """Return whose token somebody at ``address`` shows; raises HttpError where it opens nothing."""
        if not self._token:
            return EVERYBODY
        self._check_throttle(address)
        if (caller := self.knows(token)) is not None:
            return caller
        self._throttle.note(address)
        self._check_throttle(address)
        raise HttpError(401, "the token is wrong", hint=_WHICH)

    def check(self, scope: Scope) -> None:
        """Refuse a request by its headers; from then on the scope of one that may go on says who asks.

        Raises:
            HttpError: 401, 403 or 429.
        """
        headers = Headers(scope=scope)
        hosts = headers.getlist("host")
        host = hosts[0].lower() if len(hosts) == 1 else ""
        if host not in self._extra and _name(host) not in self._names:
            raise HttpError(
                403, "this Host is not allowed", hint="use 127.0.0.1, or add the name to http.allowed_hosts"
            )
        self._check_origin(scope, headers.getlist("origin"), host)
        if self.needs_none(scope):
            return
        if self._token:
            found = self._shown(scope, headers)
            scope[CALLER] = found
            if found is not HOLDER and (tokens := self._tokens) is not None:
                scope[STILL] = lambda: tokens.holds(found)
        wait_s = math.ceil(self._rates.wait_s(scope[CALLER].name if self._token else ""))
        if wait_s:
            raise _wait("too many requests", wait_s, "or raise http.requests_per_minute")

    def carries_token(self, scope: Scope) -> bool:
        """Say whether a request shows a token, also on a path that needs none; yes where none is set."""
        if self._token:
            try:
                self._shown(scope, Headers(scope=scope))
            except HttpError:
                return False
        return True

    def _check_origin(self, scope: Scope, origins: Sequence[str], host: str) -> None:
        if not origins or (scope["type"] == "http" and scope["method"] in SAFE_METHODS):
            return
        if len(origins) != 1 or not self._may_come_from(origins[0], scope, host):
            raise HttpError(403, "this Origin is not allowed", hint="use the web console of this server")

    def _may_come_from(self, origin: str, scope: Scope, host: str) -> bool:
        try:
            parts = urlsplit(origin.lower())
            port = parts.port
        except ValueError:
            return False
        if (
            parts.scheme not in ("http", "https")
            or not parts.hostname
            or parts.path
            or parts.query
            or "@" in origin
        ):
            return False
        name = _bracketed(parts.hostname)
        if name in self._extra or parts.netloc in self._extra:
            return True
        scheme = {"ws": "http", "wss": "https"}.get(scope["scheme"], scope["scheme"])
        default = 443 if scheme == "https" else 80
        asked = (scheme, _name(host), _port(host) or default)
        return (parts.scheme, name, port or default) == asked

    def needs_none(self, scope: Scope) -> bool:
        """Whether a request is served without a token even where one is set."""
        path: str = scope["path"]
        return path in OPEN_PATHS or path.startswith(OPEN_PREFIX)

    def _shown(self, scope: Scope, headers: Headers) -> Caller:
        bearers = [token.strip() for token in map(_bearer_of, headers.getlist("authorization")) if token]
        cookies = list(islice(chain.from_iterable(map(_cookies_of, headers.getlist("cookie"))), MAX_COOKIES))
        address = address_of(scope)
        if bearers or cookies:
            self._check_throttle(address)
            for caller in [*map(self.knows, bearers), *map(self._knows_cookie, cookies)]:
                if caller is not None:
                    return caller
            # A browser or a program shows a former token again and again: that is one guess, not many.
            shown = (bearers or cookies)[-1]
            self._throttle.note(address, once=hashlib.sha256(shown.encode("utf-8", "replace")).digest())
        self._check_throttle(address)
        raise HttpError(
            401,
            "the token is missing or wrong",
            hint="send Authorization: Bearer <http.token>, or log in with POST /v1/login",
            headers={"WWW-Authenticate": "Bearer"},
        )

    def _check_throttle(self, address: str) -> None:
        if wait_s := math.ceil(self._throttle.wait_s(address)):
            raise _wait("too many wrong tokens", wait_s, "with the right one")


def _wait(error: str, wait_s: int, how: str) -> HttpError:
    comma = "," if how.startswith("or ") else ""
    return HttpError(
        429, error, hint=f"try again in {wait_s} s{comma} {how}", headers={"Retry-After": str(wait_s)}
    )


class Guard:
    """The ASGI layer around all routes: refuses, reads the body up to its limit, adds safe headers.

    Args:
        streams: bounds the requests that stay open.
    """

    def __init__(self, app: ASGIApp, gate: Gate, streams: Streams) -> None:
        self._app = app
        self._gate = gate
        self._streams = streams
        self._bodies = Bodies()
        self._refused, self._logged_at = 0, -math.inf

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Pass the request on, or answer it with why not."""
        if scope["type"] not in ("http", "websocket"):
            await self._app(scope, receive, send)
            return

        began = False

        async def guarded(message: Message) -> None:
            nonlocal began
            began = began or message["type"] == "http.response.start"
            if message["type"] in ("http.response.start", "websocket.http.response.start"):
                headers = MutableHeaders(scope=message)
                for name, value in HEADERS.items():
                    headers.setdefault(name, value)
            await send(message)

        try:
            self._gate.check(scope)
            if scope["type"] == "http" and not self._is_streamed(scope):
                body = await self._bodies.read(scope, receive, stranger=self._gate.needs_none(scope))
                receive = read_again(body, receive)
            with self._counted(scope):
                await self._app(scope, receive, guarded)
        except HttpError as refusal:
            if refusal.status in (401, 403):
                self._log(refusal)
            answer = error_response(scope, refusal.status, refusal.error, refusal.hint, refusal.headers)
            await answer(scope, receive, guarded)
        except asyncio.CancelledError:
            # Only the end of the gateway cancels one: the server would answer 500, which nobody tries again.
            if scope["type"] == "http" and not began:
                answer = error_response(scope, 503, ENDED, AGAIN)
                await answer(scope, receive, guarded)
            raise

    @contextlib.contextmanager
    def _counted(self, scope: Scope) -> Iterator[None]:
        """Count a request that may stay open; raises HttpError where too many are."""
        if scope["path"] not in STREAMS:
            yield
            return
        caller = caller_of(scope)
        bounded = caller not in (HOLDER, EVERYBODY)
        if not self._streams.enter(caller.name, bounded=bounded):
            whose = f"the token {caller.name} has {MAX_STREAMS}" if bounded else "this gateway has too many"
            hint = "close one, or try again in 5 s"
            raise HttpError(429, f"{whose} streams open", hint=hint, headers={"Retry-After": "5"})
        try:
            yield
        finally:
            self._streams.leave(caller.name)

    def _log(self, refusal: HttpError) -> None:
        """Log a refusal, at most once in ten seconds: strangers must not fill the disk."""
        self._refused += 1
        now = durable.monotonic()
        if now - self._logged_at >= LOG_EVERY_S:
            log.info("request.refused", status=refusal.status, reason=refusal.error, count=self._refused)
            self._refused, self._logged_at = 0, now

    def _is_streamed(self, scope: Scope) -> bool:
        """Say whether the route itself reads the body as it comes, within limits of its own."""
        return (scope["method"], scope["path"]) in STREAMED and caller_of(scope).may("write")


def address_of(scope: Scope) -> str:
    """Return the address of a client, as a proxy on this machine names it; empty where nobody knows."""
    client = scope.get("client")
    return str(client[0]) if client else ""


def _bracketed(host: str) -> str:
    return f"[{host}]" if ":" in host and not host.startswith("[") and host.count(":") > 1 else host


def _name(host: str) -> str:
    """Return the host of ``host:port``; IPv6 addresses keep their brackets."""
    if host.startswith("["):
        name, bracket, rest = host.partition("]")
        return name + bracket if not rest or _is_port(rest) else ""
    name, colon, port = host.partition(":")
    return name if not colon or _is_port(f":{port}") else ""


def _port(host: str) -> int | None:
    rest = host.rpartition("]")[2] if host.startswith("[") else host
    port = rest.rpartition(":")[2] if ":" in rest else ""
    return int(port) if port else None


def _is_port(text: str) -> bool:
    return text.startswith(":") and text[1:].isdecimal() and text.isascii() and len(text) <= 6


def _bearer_of(header: str) -> str:
    scheme, _, token = header.partition(" ")
    return token if scheme.lower() == "bearer" else ""


def cookie_name(host: str) -> str:
    """Return what the cookie is called at a ``host:port``: all ports of a host share a browser's cookies."""
    port = _port(host)
    return COOKIE if port is None else f"{COOKIE}_{port}"


def _cookies_of(header: str) -> Iterator[str]:
    """Yield the values of our cookies, whatever others stand beside them: some are no cookies by the book."""
    for pair in header.split(";"):
        name, _, value = pair.strip().partition("=")
        if value and (name == COOKIE or name.startswith(f"{COOKIE}_")):
            yield value.strip('"')


class LoginIn(Body):
    """The token to log in with."""

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


def add_login_routes(router: APIRouter, gate: Gate) -> None:
    """Add the route of the login."""

    @router.post("/v1/login", summary="Exchange a token for a cookie", **needs(None, LoginOut))
    async def post_login(request: Request, body: LoginIn) -> Response:
        caller = gate.log_in(address_of(request.scope), body.token)
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

    @router.post("/v1/logout", summary="Delete the cookie", **needs(None, LogoutOut))
    async def post_logout(request: Request) -> Response:
        response = json_response({"ok": True})
        # Also for a cookie whose token was revoked: whoever shows none has none to lose.
        for name in {COOKIE, cookie_name(request.headers["host"])}:
            response.delete_cookie(
                name, path="/", httponly=True, samesite="strict", secure=request.url.scheme == "https"
            )
        return response

    @router.get("/v1/token", summary="Show the name and the right of the token", **needs("read", TokenOut))
    async def get_token(request: Request) -> Response:
        caller = caller_of(request.scope)
        return json_response({"name": caller.name, "right": caller.right})
