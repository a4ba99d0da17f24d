"""Asks a public web server for a page: every address is checked, and the one checked is the one asked."""

from __future__ import annotations

import asyncio
import ipaddress
import re
import socket
import ssl
import zlib
from collections.abc import AsyncIterator, Awaitable, Callable, Sequence
from contextlib import suppress
from dataclasses import dataclass
from http import HTTPStatus
from typing import Any, Final

import httpcore
import httpx

from durable import causes
from session.disk.threads import start_thread
from session.errors import ToolError

PORTS: Final = {"http": 80, "https": 443}
ALLOWED_PORTS: Final = (80, 443, 8080, 8443)
MAX_URL_CHARS: Final = 4096

# The last is a public address by which a provider tells its virtual machines about themselves.
_V4_CLOSED_NAMES = """
0.0.0.0/8 10.0.0.0/8 100.64.0.0/10 127.0.0.0/8 169.254.0.0/16 172.16.0.0/12 192.0.0.0/24 192.0.2.0/24
192.88.99.0/24 192.168.0.0/16 198.18.0.0/15 198.51.100.0/24 203.0.113.0/24 224.0.0.0/3 168.63.129.16/32
"""
_V4_CLOSED = tuple(map(ipaddress.IPv4Network, _V4_CLOSED_NAMES.split()))
_V6_OPEN = ipaddress.IPv6Network("2000::/3")
# Among them what carries an address of version 4 within: whoever unpacks it reaches that.
_V6_CLOSED = tuple(
    map(ipaddress.IPv6Network, ("2001::/23", "2001:db8::/32", "2002::/16", "3fff::/20", "2620:4f:8000::/48"))
)
_MAPPED = ipaddress.IPv6Network("::ffff:0:0/96")
# Networks without version 4 reach all of it so.
_TRANSLATED = ipaddress.IPv6Network("64:ff9b::/96")
_NUMBER = re.compile(r"(?:\d+|0x[0-9a-f]*)\.?", re.IGNORECASE)


@dataclass(frozen=True, slots=True)
class Target:
    """One address of the web, checked but for where its name leads; ``host`` is a name or an address."""

    url: httpx.URL
    host: str
    port: int

    @property
    def shown(self) -> str:
        """The address without its query and fragment, which may hold what is nobody's business."""
        return str(self.url.copy_with(query=None, fragment=None))


def target_of(text: str) -> Target:
    """Read an address.

    Raises:
        ToolError: it is none, or one that may not be asked for.
    """
    if len(text) > MAX_URL_CHARS:
        raise ToolError(f"the address is over {MAX_URL_CHARS} characters")
    if "\\" in text or any(not c.isprintable() or c.isspace() for c in text.strip()):
        raise ToolError("the address contains characters that are not allowed")
    try:
        url = httpx.URL(text.strip())
        host = url.raw_host.decode("ascii").lower()
    except (httpx.InvalidURL, UnicodeError, ValueError) as error:
        raise ToolError("this is not a web address") from error
    if url.scheme not in PORTS:
        raise ToolError("only http:// and https:// can be read")
    if url.userinfo:
        raise ToolError("addresses with a user name or password are not allowed")
    if not host or "%" in host:
        raise ToolError("the address has no host")
    port = url.port or PORTS[url.scheme]
    if port not in ALLOWED_PORTS:
        raise ToolError(f"port {port} is not allowed; only {', '.join(map(str, ALLOWED_PORTS))} are")
    _check_name(host)
    return Target(url.copy_with(fragment=None), host, port)


def followed(target: Target, location: str) -> Target:
    """Return where a redirect leads, checked as any other address.

    Raises:
        ToolError: it may not be followed.
    """
    try:
        joined = str(target.url.join(location))
    except (httpx.InvalidURL, ValueError) as error:
        raise ToolError(f"{target.host} redirects to an invalid address") from error
    there = target_of(joined)
    if target.url.scheme == "https" and there.url.scheme != "https":
        raise ToolError(f"{target.host} redirects from https to http, which is not followed")
    return there


def is_public(address: str) -> bool:
    """Say whether an address is one of the public internet: not private, local, reserved or for many."""
    try:
        ip = ipaddress.ip_address(address)
    except ValueError:
        return False
    if isinstance(ip, ipaddress.IPv6Address):
        if ip in _MAPPED or ip in _TRANSLATED:
            ip = ipaddress.IPv4Address(int(ip) & 0xFFFFFFFF)
        else:
            return ip in _V6_OPEN and not any(ip in closed for closed in _V6_CLOSED) and ip.scope_id is None
    return not any(ip in closed for closed in _V4_CLOSED)


def refused_host(host: str) -> ToolError:
    """Say that a host is not of the public internet; never which address it has."""
    return ToolError(f"{host} is not on the public internet, so it is not allowed")


def _check_name(host: str) -> None:
    """Refuse what can be no public name; addresses that are written in odd ways, too."""
    try:
        ipaddress.ip_address(host)
    except ValueError:
        pass
    else:
        if not is_public(host):
            raise refused_host(host)
        return
    labels = host.removesuffix(".").split(".")
    # The system reads 2130706433, 0x7f.1 and 0177.0.0.1 as addresses.
    if ":" in host or _NUMBER.fullmatch(labels[-1]) or len(labels) < 2:
        raise refused_host(host)


MAX_REDIRECTS: Final = 5
# Of the addresses of a name, how many are tried.
MAX_TRIED: Final = 3
# Before the final head of an answer: responses such as 103 Early Hints, and bytes in all.
MAX_INTERIM: Final = 20
MAX_HEAD_BYTES: Final = 64 * 1024
USER_AGENT: Final = "chat-gateway (reads single pages for a person in a chat)"

_REDIRECTS = (301, 302, 303, 307, 308)
_HEADERS = {
    "User-Agent": USER_AGENT,
    "Accept": "text/html, application/xhtml+xml, text/*;q=0.9, application/json;q=0.9, application/xml;q=0.8",
    "Accept-Encoding": "gzip",
}
_HEAD_END = re.compile(rb"\n\r?\n")
_INTERIM = re.compile(rb"\s*HTTP/1\.[01] 1\d\d")
_TYPE = re.compile(r"(application|audio|font|image|model|multipart|video)/[a-z0-9.+-]{1,40}")
_TEXTS = ("application/json", "application/xml", "application/xhtml+xml", "application/javascript")


@dataclass(frozen=True, slots=True)
class Page:
    """What a server answered: ``data`` are the first bytes, unpacked; ``cut`` says that there were more.

    ``target`` is where it came from in the end, ``kind`` its media type, ``charset`` as the server named it.
    """

    target: Target
    kind: str
    charset: str
    data: bytes
    cut: bool


# Finds the addresses of a name, best first; raises OSError where there are none.
Resolver = Callable[[str, int], Awaitable[Sequence[str]]]


def direct(context: ssl.SSLContext) -> httpx.AsyncBaseTransport:
    """Connect to the address that a request names; no proxy, nothing kept open, no second try."""
    transport = httpx.AsyncHTTPTransport(verify=context, trust_env=False, retries=0)
    # httpx has no parameter for the network of its pool.
    transport._pool = httpcore.AsyncConnectionPool(
        ssl_context=context, max_keepalive_connections=0, network_backend=_Network()
    )
    return transport


class _Network(httpcore.AnyIOBackend):
    """The network of a pool, whose connections bound what comes before the final head of an answer."""

    async def connect_tcp(self, *args: Any, **kwargs: Any) -> httpcore.AsyncNetworkStream:
        return _Bounded(await super().connect_tcp(*args, **kwargs))


class _Bounded(httpcore.AsyncNetworkStream):
    """A connection for one request; other work goes on between two reads of it.

    The client reads interim responses (103 Early Hints) without end, and without giving way.
    """

    def __init__(self, stream: httpcore.AsyncNetworkStream) -> None:
        self._stream = stream
        self._head: bytearray | None = bytearray()
        self._read_bytes = self._interim = 0

    async def read(self, max_bytes: int, timeout: float | None = None) -> bytes:
        await asyncio.sleep(0)
        data = await self._stream.read(max_bytes, timeout)
        if self._head is not None:
            self._head += data
            self._read_bytes += len(data)
            self._pass_interim()
        return data

    def _pass_interim(self) -> None:
        """Take off the heads that are whole.

        Raises:
            ReadError: too much came, and no final head.
        """
        head = self._head
        while head is not None and (end := _HEAD_END.search(head)):
            if not _INTERIM.match(head):
                head = self._head = None
                return
            del head[: end.end()]
            self._interim += 1
            if self._interim > MAX_INTERIM:
                break
        if self._interim > MAX_INTERIM or self._read_bytes > MAX_HEAD_BYTES:
            raise httpcore.ReadError("too much data before the headers of the answer")

    async def write(self, buffer: bytes, timeout: float | None = None) -> None:
        await self._stream.write(buffer, timeout)

    async def aclose(self) -> None:
        await self._stream.aclose()

    async def start_tls(self, *args: Any, **kwargs: Any) -> httpcore.AsyncNetworkStream:
        return _Bounded(await self._stream.start_tls(*args, **kwargs))

    def get_extra_info(self, info: str) -> Any:
        return self._stream.get_extra_info(info)


class Fetcher:
    """Fetches single pages; keeps nothing from one to the next.

    It reads ``max_bytes`` of a page, unpacked. ``connect`` makes the transport of one page, whose requests
    name an address, and in ``Host`` the name.
    """

    def __init__(
        self,
        *,
        max_bytes: int,
        resolve: Resolver | None = None,
        connect: Callable[[ssl.SSLContext], httpx.AsyncBaseTransport] = direct,
    ) -> None:
        self._max_bytes = max_bytes
        self._resolve: Resolver = resolve or Lookups()
        self._connect = connect
        self._context: ssl.SSLContext | None = None

    async def fetch(self, address: str) -> Page:
        """Read a page, redirects followed; whoever calls bounds the time.

        Raises:
            ToolError: it may not be read, cannot be, or is no text; the words are for the model.
        """
        target = target_of(address)
        if self._context is None:
            # The certificates take longer to read than the loop may wait.
            self._context = await asyncio.to_thread(httpx.create_ssl_context, trust_env=False)
        async with self._connect(self._context) as transport:
            for _ in range(MAX_REDIRECTS + 1):
                found = await self._ask(transport, target)
                if isinstance(found, Page):
                    return found
                target = found
        raise ToolError(f"over {MAX_REDIRECTS} redirects, the last to {target.host}")

    async def _ask(self, transport: httpx.AsyncBaseTransport, target: Target) -> Page | Target:
        addresses = await self._public(target)
        for number, ip in enumerate(addresses, 1):
            try:
                response = await transport.handle_async_request(_request(target, ip))
            except httpx.HTTPError as error:
                if isinstance(error, httpx.ConnectError) and number < len(addresses):
                    continue
                raise ToolError(f"{target.host}: {_why(error)}") from error
            try:
                return await self._read(target, response)
            except httpx.HTTPError as error:
                raise ToolError(f"{target.host}: {_why(error)}") from error
            finally:
                await response.aclose()
        raise ToolError(f"{target.host} cannot be found")

    async def _public(self, target: Target) -> Sequence[str]:
        """Return the addresses of the host; one that is not public among them refuses the host."""
        try:
            addresses = await self._resolve(target.host, target.port)
        except (OSError, UnicodeError) as error:
            raise ToolError(f"{target.host} cannot be found") from error
        if not all(map(is_public, addresses)):
            raise refused_host(target.host)
        return list(dict.fromkeys(addresses))[:MAX_TRIED]

    async def _read(self, target: Target, response: httpx.Response) -> Page | Target:
        location = response.headers.get("location")
        if response.status_code in _REDIRECTS and location:
            return followed(target, location)
        if not response.is_success:
            raise ToolError(f"{target.host} answered {_status(response.status_code)}")
        kind, _, more = response.headers.get("content-type", "").partition(";")
        kind = kind.strip().lower()
        _check_kind(target, kind)
        data = bytearray()
        async for part in _unpacked(response, self._max_bytes + 1):
            data += part
            if len(data) > self._max_bytes:
                break
        cut = len(data) > self._max_bytes
        if b"\0" in data[:1024] and not data.startswith((b"\xff\xfe", b"\xfe\xff")):
            raise ToolError(f"{target.host} did not answer with text")
        return Page(target, kind, _charset(more), bytes(data[: self._max_bytes]), cut)


def _request(target: Target, ip: str) -> httpx.Request:
    """Ask the address itself: a name that is looked up again could lead elsewhere by now."""
    url = target.url.copy_with(host=ip, port=target.url.port)
    host = target.url.netloc.decode("ascii")
    extensions = {"sni_hostname": target.host.removesuffix(".")}
    return httpx.Request("GET", url, headers={"Host": host, **_HEADERS}, extensions=extensions)


async def _unpacked(response: httpx.Response, most: int) -> AsyncIterator[bytes]:
    """Yield what the body holds, at most ``most`` bytes at once: what is packed may hold a thousandfold.

    Raises:
        ToolError: it is packed in a way that was not asked for, or damaged.
    """
    coding = response.headers.get("content-encoding", "identity").strip().lower()
    if coding not in ("", "identity", "gzip", "x-gzip"):
        raise ToolError("the page has an unsupported compression")
    unpack = zlib.decompressobj(zlib.MAX_WBITS | 16) if "gzip" in coding else None
    raw = 0
    async for part in response.aiter_raw():
        raw += len(part)
        try:
            yield part if unpack is None else unpack.decompress(part, most)
        except zlib.error as error:
            raise ToolError("the page is compressed and damaged") from error
        # Packed nothings would go on without a byte of text.
        if raw >= most or (unpack is not None and unpack.eof):
            return


def _check_kind(target: Target, kind: str) -> None:
    if kind == "application/pdf":
        raise ToolError(f"{target.host} answered with a PDF; only text can be read")
    text = kind.startswith("text/") or kind in _TEXTS or kind.endswith(("+json", "+xml"))
    if kind and not text:
        # Only what is a type is repeated: an error is not quoted.
        told = kind if _TYPE.fullmatch(kind) else "something"
        raise ToolError(f"{target.host} answered with {told}; only text can be read")


def _status(code: int) -> str:
    """Say a status in the words of the standard, never in the server's own."""
    with suppress(ValueError):
        return f"{code} {HTTPStatus(code).phrase}"
    return str(code)


def _charset(parameters: str) -> str:
    for parameter in parameters.split(";"):
        name, _, value = parameter.partition("=")
        if name.strip().lower() == "charset":
            return value.strip().strip("\"'")[:40]
    return ""


def _why(error: httpx.HTTPError) -> str:
    """Say what went wrong without a word of the other side's."""
    if any(isinstance(cause, ssl.SSLCertVerificationError) for cause in causes(error)):
        return "its certificate is not valid"
    if isinstance(error, httpx.TimeoutException):
        return "it does not answer in time"
    if isinstance(error, httpx.ConnectError):
        return "it cannot be reached"
    return "its answer is not HTTP, or was interrupted"


MAX_LOOKUPS: Final = 4
WAIT_S: Final = 5.0


class Lookups:
    """The system's own lookups, so many at once; one that nobody waits for any more keeps its place.

    The event loop's are done by a few threads for the whole process: two names that hang would hold up all
    its connections. No lookup can be ended: a thread here is a daemon, for the end of the process.
    """

    def __init__(self, *, most: int = MAX_LOOKUPS, wait_s: float = WAIT_S) -> None:
        """Look up ``most`` names at once; a further one waits ``wait_s`` for its turn."""
        self._places = asyncio.Semaphore(most)
        self._wait_s = wait_s

    async def __call__(self, host: str, port: int) -> Sequence[str]:
        """Return the addresses that the system has for a name, best first.

        Raises:
            OSError: there are none.
            UnicodeError: it is no name.
            ToolError: all threads are taken by names that do not come.
        """
        try:
            async with asyncio.timeout(self._wait_s):
                await self._places.acquire()
        except TimeoutError as error:
            raise _none_free() from error
        try:
            job = start_thread(
                lambda: socket.getaddrinfo(host, port, type=socket.SOCK_STREAM), name="web-lookup"
            )
        except RuntimeError as error:
            self._places.release()
            raise _none_free() from error
        job.add_done_callback(lambda _: self._places.release())
        return [str(row[4][0]) for row in await asyncio.shield(job)]


def _none_free() -> ToolError:
    return ToolError("names cannot be looked up now; try again later")
