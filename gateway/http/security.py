"""Who may ask: checks Host, Origin, token and size of every request before a route sees it."""

from __future__ import annotations

import hashlib
import hmac
import math
from collections.abc import Collection
from dataclasses import dataclass
from http.cookies import CookieError, SimpleCookie
from urllib.parse import urlsplit

import structlog
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from gateway.http.body import BadBody, Bodies
from gateway.http.connections import LET_IN
from gateway.http.errors import error_response
from gateway.http.guesses import Guesses

log = structlog.get_logger("http")

COOKIE = "chat_gateway"
COOKIE_AGE_S = 30 * 24 * 3600
SAFE_METHODS = frozenset({"GET", "HEAD", "OPTIONS"})
OPEN_PATHS = frozenset({"/healthz", "/readyz", "/v1/login", "/"})
# The files of the page: it has to be there before anybody can log in.
OPEN_PREFIX = "/page/"
LOCAL_NAMES = frozenset({"localhost", "127.0.0.1", "[::1]"})
WILDCARDS = frozenset({"0.0.0.0", "[::]"})  # noqa: S104 - names that are refused, not bound
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
        token: what every request must carry; empty: none.
        guesses: counts the wrong tokens.
    """

    def __init__(
        self,
        *,
        host: str,
        allowed_hosts: Collection[str] = (),
        token: str = "",
        guesses: Guesses | None = None,
    ) -> None:
        bound = _bracketed(host.lower())
        self._extra = frozenset(_bracketed(name.lower()) for name in allowed_hosts)
        self._names = (LOCAL_NAMES | self._extra | {bound}) - (WILDCARDS - self._extra)
        self._token = token.encode()
        self._guesses = guesses if guesses is not None else Guesses()

    @property
    def cookie(self) -> str:
        """The value that stands for the token in a browser, from which the token cannot be found."""
        return hmac.new(self._token, b"chat-gateway console", hashlib.sha256).hexdigest()

    @property
    def asks_token(self) -> bool:
        """Whether a token is set at all."""
        return bool(self._token)

    def knows(self, token: str) -> bool:
        """Compare a token with ours, in a time that tells nothing, its length neither."""
        given = hashlib.sha256(token.encode("utf-8", "surrogatepass")).digest()
        return hmac.compare_digest(given, hashlib.sha256(self._token).digest())

    def refuse_login(self, address: str, token: str) -> Refusal | None:
        """Return why somebody at ``address`` is not let in with this token; None where it is ours."""
        if (wait := self._wait(address)) is not None:
            return wait
        if self.knows(token):
            return None
        self._guesses.note(address)
        return self._wait(address) or Refusal(
            401, "the token is wrong", "it is http.token of the configuration"
        )

    def refuse(self, scope: Scope) -> Refusal | None:
        """Return why this request is refused; None where it may go on."""
        headers = _Headers(scope)
        return (
            self._wrong_host(headers) or self._wrong_origin(scope, headers) or self._no_token(scope, headers)
        )

    def carries_token(self, scope: Scope) -> bool:
        """Say whether a request shows the token, also on a path that needs none; yes where none is set."""
        return self._no_token({**scope, "path": ""}, _Headers(scope)) is None

    def _wrong_host(self, headers: _Headers) -> Refusal | None:
        hosts = headers.all("host")
        if len(hosts) == 1:
            host = hosts[0].lower()
            if host in self._extra or _name(host) in self._names:
                return None
        return Refusal(403, "this Host is not served", "use 127.0.0.1, or add the name to http.allowed_hosts")

    def _wrong_origin(self, scope: Scope, headers: _Headers) -> Refusal | None:
        origins = headers.all("origin")
        if not origins or (scope["type"] == "http" and scope["method"] in SAFE_METHODS):
            return None
        if len(origins) == 1 and self._may_come_from(origins[0], scope, headers.all("host")[0]):
            return None
        return Refusal(
            403, "this Origin may not change anything here", "use the page that this server itself serves"
        )

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
        if not self._token or self.needs_none(scope):
            return None
        bearers = [token.strip() for token in map(_bearer_of, headers.all("authorization")) if token]
        cookies = [cookie for cookie in map(_cookie_of, headers.all("cookie")) if cookie]
        address = address_of(scope)
        if bearers or cookies:
            if (wait := self._wait(address)) is not None:
                return wait
            ours = self.cookie.encode()
            if any(self.knows(token) for token in bearers) or any(
                hmac.compare_digest(cookie.encode(), ours) for cookie in cookies
            ):
                return None
            # A browser sends the cookie of a former token again and again: that is one guess, not many.
            mark = hashlib.sha256(cookies[-1].encode()).digest() if cookies and not bearers else b""
            self._guesses.note(address, once=mark)
        return self._wait(address) or Refusal(
            401,
            "the token is missing or wrong",
            "send Authorization: Bearer <http.token>, or log in by POST /v1/login",
            (("WWW-Authenticate", "Bearer"),),
        )

    def _wait(self, address: str) -> Refusal | None:
        wait_s = math.ceil(self._guesses.wait_s(address))
        if not wait_s:
            return None
        hint = f"come again in {wait_s} s with http.token of the configuration"
        return Refusal(429, "too many wrong tokens", hint, (("Retry-After", str(wait_s)),))


class Guard:
    """The ASGI layer around all routes: refuses, reads the body up to its limit, adds safe headers."""

    def __init__(self, app: ASGIApp, gate: Gate) -> None:
        self._app = app
        self._gate = gate
        self._bodies = Bodies()

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Pass the request on, or answer it with why not."""
        if scope["type"] not in ("http", "websocket"):
            await self._app(scope, receive, send)
            return

        async def guarded(message: Message) -> None:
            if message["type"] == "http.response.start":
                message["headers"] = [*message.get("headers", ()), *_added(message.get("headers", ()))]
            await send(message)

        refusal = self._gate.refuse(scope)
        if refusal is None and scope["type"] == "http":
            body = await self._body(scope, receive)
            if isinstance(body, Refusal):
                refusal = body
            else:
                receive = _replay(body, receive)
        if refusal is None:
            await self._app(scope, receive, guarded)
            return
        # Who guesses tokens is told of once, by the count of the guesses: the log is no place for each.
        if refusal.status != 429:
            log.info("request.refused", status=refusal.status, reason=refusal.error)
        if scope["type"] == "websocket":
            await send({"type": "websocket.close", "code": 1008, "reason": refusal.error})
            return
        answer = error_response(refusal.status, refusal.error, refusal.hint, dict(refusal.headers))
        await answer(scope, receive, guarded)

    async def _body(self, scope: Scope, receive: Receive) -> bytes | Refusal:
        """Read the body; the connection counts as let in once nothing more is asked of it.

        That is before the body where a token was shown, and behind it where none is set: half a body that
        anybody may send gives way to others.
        """
        let_in = scope.get("extensions", {}).get(LET_IN, _nothing)
        stranger = self._gate.needs_none(scope)
        if self._gate.asks_token and not stranger:
            let_in()
        body = await self._bodies.read(scope, receive, stranger=stranger)
        if isinstance(body, BadBody):
            headers = {"Connection": "close"} | ({"Retry-After": "5"} if body.status == 503 else {})
            return Refusal(body.status, body.error, body.hint, tuple(headers.items()))
        if not stranger:
            let_in()
        return body


def _nothing() -> None:
    """Stand in where there is no connection to tell."""


def _replay(body: bytes, receive: Receive) -> Receive:
    given = False

    async def again() -> Message:
        nonlocal given
        if given:
            return await receive()
        given = True
        return {"type": "http.request", "body": body, "more_body": False}

    return again


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


def _cookie_of(header: str) -> str:
    try:
        found = SimpleCookie(header).get(COOKIE)
    except CookieError:
        return ""
    return found.value if found is not None else ""
