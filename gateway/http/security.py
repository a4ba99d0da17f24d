"""Who may ask: checks Host, Origin, token and size of every request before a route sees it."""

from __future__ import annotations

import hashlib
import hmac
import math
from collections.abc import Collection, Iterator
from dataclasses import dataclass
from itertools import chain, islice
from urllib.parse import urlsplit

import structlog
from starlette.types import ASGIApp, Message, Receive, Scope, Send

import durable
from gateway.http.body import BadBody, Bodies, read_again
from gateway.http.errors import error_response
from gateway.http.guesses import Guesses
from gateway.http.rates import MAX_STREAMS, Rates, Streams
from gateway.http.shape import CALLER, EVERYBODY, OPERATOR, STILL, caller_of
from gateway.service.tokens import Caller, Tokens, cookie_of

log = structlog.get_logger("http")

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
LOCAL_NAMES = frozenset({"localhost", "127.0.0.1", "[::1]"})
WILDCARDS = frozenset({"0.0.0.0", "[::]"})  # noqa: S104 - names that are refused, not bound
HOLDER = Caller(OPERATOR, "admin")
_WHICH = "use http.token of the configuration, or create one: chat-gateway tokens add"
HEADERS = [
    (b"x-content-type-options", b"nosniff"),
    (b"referrer-policy", b"no-referrer"),
    (b"x-frame-options", b"DENY"),
    (b"cross-origin-resource-policy", b"same-origin"),
]


@dataclass(frozen=True, slots=True)
class Refusal:
    """Why a request goes no further."""

    status: int
    error: str
    hint: str
    headers: tuple[tuple[str, str], ...] = ()


class Gate:
    """Decides over requests by their headers, and by the wrong tokens that came before.

    Args:
        host: the address that is bound.
        allowed_hosts: further names under which the server may be addressed.
        token: what every request must carry, with all rights; empty: no request needs a token.
        tokens: further ones with a name and a right, which count where ``token`` is set.
        guesses: counts the wrong tokens.
        rates: bounds the requests of each token.
    """

    def __init__(
        self,
        *,
        host: str,
        allowed_hosts: Collection[str] = (),
        token: str = "",
        tokens: Tokens | None = None,
        guesses: Guesses | None = None,
        rates: Rates | None = None,
    ) -> None:
        bound = _bracketed(host.lower())
        self._extra = frozenset(_bracketed(name.lower()) for name in allowed_hosts)
        self._names = (LOCAL_NAMES | self._extra | {bound}) - (WILDCARDS - self._extra)
        self._token = token
        self._tokens = tokens
        self._cookie: str | None = None
        self._guesses = guesses if guesses is not None else Guesses()
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

    def log_in(self, address: str, token: str) -> Caller | Refusal:
        """Return whose token somebody at ``address`` shows, or why nobody is let in with it."""
        if not self._token:
            return EVERYBODY
        if (wait := self._wait(address)) is not None:
            return wait
        if (caller := self.knows(token)) is not None:
            return caller
        self._guesses.note(address)
        return self._wait(address) or Refusal(401, "the token is wrong", _WHICH)

    def refuse(self, scope: Scope) -> Refusal | None:
        """Return why this request is refused; None where it may go on, and the scope says then who asks."""
        headers = _Headers(scope)
        return (
            self._wrong_host(headers) or self._wrong_origin(scope, headers) or self._no_token(scope, headers)
        )

    def carries_token(self, scope: Scope) -> bool:
        """Say whether a request shows a token, also on a path that needs none; yes where none is set."""
        return not self._token or isinstance(self._shown(scope, _Headers(scope)), Caller)

    def _wrong_host(self, headers: _Headers) -> Refusal | None:
        hosts = headers.all("host")
        if len(hosts) == 1:
            host = hosts[0].lower()
            if host in self._extra or _name(host) in self._names:
                return None
        return Refusal(
            403, "this Host is not allowed", "use 127.0.0.1, or add the name to http.allowed_hosts"
        )

    def _wrong_origin(self, scope: Scope, headers: _Headers) -> Refusal | None:
        origins = headers.all("origin")
        if not origins or (scope["type"] == "http" and scope["method"] in SAFE_METHODS):
            return None
        if len(origins) == 1 and self._may_come_from(origins[0], scope, headers.all("host")[0]):
            return None
        return Refusal(403, "this Origin is not allowed", "use the web console of this server")

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
        asked = (scheme, _name(host.lower()), _port(host) or default)
        return (parts.scheme, name, port or default) == asked

    def needs_none(self, scope: Scope) -> bool:
        """Whether a request is served without a token even where one is set."""
        path: str = scope["path"]
        return path in OPEN_PATHS or path.startswith(OPEN_PREFIX)

    def _no_token(self, scope: Scope, headers: _Headers) -> Refusal | None:
        if self.needs_none(scope):
            return None
        if self._token:
            found = self._shown(scope, headers)
            if isinstance(found, Refusal):
                return found
            scope[CALLER] = found
            if found is not HOLDER and (tokens := self._tokens) is not None:
                scope[STILL] = lambda: tokens.holds(found)
        return self._too_many(scope[CALLER].name if self._token else "")

    def _shown(self, scope: Scope, headers: _Headers) -> Caller | Refusal:
        """Find out whose token a request shows."""
        bearers = [token.strip() for token in map(_bearer_of, headers.all("authorization")) if token]
        cookies = list(islice(chain.from_iterable(map(_cookies_of, headers.all("cookie"))), MAX_COOKIES))
        address = address_of(scope)
        if bearers or cookies:
            if (wait := self._wait(address)) is not None:
                return wait
            callers = [*map(self.knows, bearers), *map(self._knows_cookie, cookies)]
            for caller in callers:
                if caller is not None:
                    return caller
            # A browser or a program shows a former token again and again: that is one guess, not many.
            shown = (bearers or cookies)[-1]
            self._guesses.note(address, once=hashlib.sha256(shown.encode("utf-8", "replace")).digest())
        return self._wait(address) or Refusal(
            401,
            "the token is missing or wrong",
            "send Authorization: Bearer <http.token>, or log in with POST /v1/login",
            (("WWW-Authenticate", "Bearer"),),
        )

    def _too_many(self, name: str) -> Refusal | None:
        wait_s = math.ceil(self._rates.wait_s(name))
        if not wait_s:
            return None
        hint = f"try again in {wait_s} s, or raise http.requests_per_minute"
        return Refusal(429, "too many requests", hint, (("Retry-After", str(wait_s)),))

    def _wait(self, address: str) -> Refusal | None:
        wait_s = math.ceil(self._guesses.wait_s(address))
        if not wait_s:
            return None
        hint = f"try again in {wait_s} s with the right one"
        return Refusal(429, "too many wrong tokens", hint, (("Retry-After", str(wait_s)),))


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

        async def guarded(message: Message) -> None:
            if message["type"] in ("http.response.start", "websocket.http.response.start"):
                message["headers"] = [*message.get("headers", ()), *_added(message.get("headers", ()))]
            await send(message)

        refusal = self._gate.refuse(scope)
        if refusal is None and scope["type"] == "http" and not self._is_streamed(scope):
            body = await self._body(scope, receive)
            if isinstance(body, Refusal):
                refusal = body
            else:
                receive = read_again(body, receive)
        if refusal is None:
            refusal = await self._pass_on(scope, receive, guarded)
        if refusal is None:
            return
        if refusal.status in (401, 403):
            self._log(refusal)
        answer = error_response(refusal.status, refusal.error, refusal.hint, dict(refusal.headers))
        await answer(scope, receive, guarded)

    async def _pass_on(self, scope: Scope, receive: Receive, send: Send) -> Refusal | None:
        """Run the request; return a refusal where too many streams are open."""
        if scope["path"] not in STREAMS:
            await self._app(scope, receive, send)
            return None
        caller = caller_of(scope)
        bounded = caller not in (HOLDER, EVERYBODY)
        if not self._streams.enter(caller.name, bounded=bounded):
            whose = f"the token {caller.name} has {MAX_STREAMS}" if bounded else "this gateway has too many"
            hint = "close one, or try again in 5 s"
            return Refusal(429, f"{whose} streams open", hint, (("Retry-After", "5"),))
        try:
            await self._app(scope, receive, send)
        finally:
            self._streams.leave(caller.name)
        return None

    def _log(self, refusal: Refusal) -> None:
        """Log a refusal, at most once in ten seconds: strangers must not fill the disk."""
        self._refused += 1
        now = durable.monotonic()
        if now - self._logged_at >= LOG_EVERY_S:
            log.info("request.refused", status=refusal.status, reason=refusal.error, count=self._refused)
            self._refused, self._logged_at = 0, now

    def _is_streamed(self, scope: Scope) -> bool:
        """Say whether the route itself reads the body as it comes, within limits of its own."""
        return (scope["method"], scope["path"]) in STREAMED and caller_of(scope).may("write")

    async def _body(self, scope: Scope, receive: Receive) -> bytes | Refusal:
        body = await self._bodies.read(scope, receive, stranger=self._gate.needs_none(scope))
        if isinstance(body, BadBody):
            more = {408: ("Connection", "close"), 503: ("Retry-After", "5")}.get(body.status)
            return Refusal(body.status, body.error, body.hint, (more,) if more else ())
        return body


class _Headers:
    def __init__(self, scope: Scope) -> None:
        self._raw: list[tuple[bytes, bytes]] = scope["headers"]

    def all(self, name: str) -> list[str]:
        """Return every value of a header, as text of one byte per character."""
        wanted = name.encode()
        return [value.decode("latin-1") for key, value in self._raw if key == wanted]


def _added(present: Collection[tuple[bytes, bytes]]) -> list[tuple[bytes, bytes]]:
    names = {name.lower() for name, _ in present}
    added = [(name, value) for name, value in HEADERS if name not in names]
    if b"cache-control" not in names:
        added.append((b"cache-control", b"no-store"))
    return added


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
