"""A connection to a server, over its stdio or HTTP: what it lists, and calls of its tools, within bounds."""

from __future__ import annotations

import asyncio
import json
import logging
import re
import ssl
from collections import Counter
from collections.abc import AsyncIterator, Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import asynccontextmanager, contextmanager, suppress
from dataclasses import dataclass, replace
from importlib.metadata import version
from pathlib import Path
from typing import Any, Final
from urllib.parse import parse_qsl, urlsplit

import anyio
import httpx2
from anyio.abc import ObjectReceiveStream, ObjectSendStream
from mcp import Client, MCPError
from mcp.client.streamable_http import streamable_http_client
from mcp.client.subscriptions import SubscriptionLost
from mcp.shared.message import SessionMessage
from mcp_types import (
    CONNECTION_CLOSED,
    AudioContent,
    CallToolResult,
    EmbeddedResource,
    Implementation,
    JSONRPCError,
    JSONRPCNotification,
    JSONRPCRequest,
    JSONRPCResponse,
    PaginatedRequestParams,
    ResourceLink,
    ServerNotification,
    TextContent,
    TextResourceContents,
    ToolListChangedNotification,
    jsonrpc_message_adapter,
)
from mcp_types.version import MODERN_PROTOCOL_VERSIONS
from pydantic import ValidationError

import durable
from session.mcp.listing import TOO_LONG, ListedTool, Listing, bounded, read_listing
from session.mcp.process import HIDDEN, MAX_LINE_BYTES, Launch, ServerProcess, running
from session.mcp.schema import misfit
from session.mcp.spec import CallFailed, CallLate, Flooded, ServerFailed, ServerGone, ServerSpec

# What nobody asked for: so many messages within so many seconds are a flood.
MAX_UNASKED: Final = 1_000
WINDOW_S: Final = 10.0
# Of what a server tells by itself the rest is of no use here, and costs time to look at.
PASSED: Final = frozenset(
    {
        "notifications/cancelled",
        "notifications/subscriptions/acknowledged",
        "notifications/tools/list_changed",
    }
)
# What is shorter stands in ordinary words, too.
MIN_SECRET_CHARS: Final = 8
_LIST = "tools/list"
_ANSWERS = (JSONRPCResponse, JSONRPCError)


class Watch:
    """What is known of one connection besides what its session knows.

    ``ended`` is set once the other side is gone, ``fault`` says why; ``listing`` is the newest page of tools.
    ``status`` is how HTTP answered last, 0 without any. ``secrets`` is what the server was given to know us
    by, values of headers, of its address and of its environment: it may say them back.
    """

    def __init__(
        self, *, clock: Callable[[], float] = durable.monotonic, secrets: Iterable[str] = ()
    ) -> None:
        self.ended = asyncio.Event()
        self.fault: ServerFailed | None = None
        self.listing = Listing()
        self.status = 0
        self._clock = clock
        self._asked: dict[object, str] = {}
        self._unasked = 0
        self._since = clock()
        words = {word for value in secrets for word in value.split() if len(word) >= MIN_SECRET_CHARS}
        # Of two, one of which begins the other, none may leave its rest standing.
        self._secrets = sorted(words, key=len, reverse=True)

    def hide(self, text: str) -> str:
        """Return words of the server without the secrets that it was given."""
        for secret in self._secrets:
            text = text.replace(secret, HIDDEN)
        return text

    def end(self, fault: ServerFailed) -> None:
        """Note that the other side is gone; the first reason stands."""
        if self.fault is None:
            self.fault = fault
        self.ended.set()

    def sent(self, message: object) -> None:
        """Note a message that goes out."""
        if isinstance(message, JSONRPCRequest):
            self._asked[message.id] = message.method

    def takes(self, message: object) -> bool:
        """Say whether a message that came in is for the session.

        Raises:
            Flooded: too much came that nobody asked for.
        """
        if isinstance(message, _ANSWERS):
            method = self._asked.pop(message.id, None)
            if method is None:
                self.unasked()
            elif method == _LIST and isinstance(message, JSONRPCResponse):
                self._read(message.result)
            return method is not None
        self.unasked()
        return not isinstance(message, JSONRPCNotification) or message.method in PASSED

    def unasked(self) -> None:
        """Count something that nobody asked for.

        Raises:
            Flooded: it is too much.
        """
        now = self._clock()
        if now - self._since > WINDOW_S:
            self._since, self._unasked = now, 0
        self._unasked += 1
        if self._unasked > MAX_UNASKED:
            raise Flooded(f"it sent over {MAX_UNASKED} unsolicited messages within {WINDOW_S:g} s")

    def _read(self, result: dict[str, Any]) -> None:
        """Keep what is sound of a list, and show the session no more of it.

        The session refuses a whole list for one bad row, and would search every result by the patterns of
        the schemas that a server gives for them, which it may have made to last for ever.
        """
        rows = result.get("tools")
        self.listing = read_listing(rows if isinstance(rows, list) else [])
        result["tools"] = [
            {"name": tool.name, "inputSchema": _plain(tool.parameters)} for tool in self.listing.tools
        ]


def _plain(schema: Mapping[str, Any]) -> dict[str, Any]:
    """Return what the session looks at of the arguments' schema, as each of its eras takes it."""
    rules = schema["properties"].items()
    return {"type": "object", "properties": {name: rule for name, rule in rules if isinstance(rule, dict)}}


def joined(pages: Sequence[Listing]) -> Listing:
    """Return the pages of a list as one, within the bounds of one, by the names of the tools."""
    tools = [tool for page in pages for tool in page.tools]
    times = Counter(tool.name for tool in tools)
    twice = sorted(name for name, count in times.items() if count > 1)
    problems = [problem for page in pages for problem in page.problems]
    problems += [f"{name}: listed more than once" for name in twice]
    # What is left out goes by the server's order.
    listing = bounded((tool for tool in tools if times[tool.name] == 1), problems)
    is_full = listing.is_full or any(page.is_full for page in pages)
    return Listing(sorted(listing.tools, key=lambda tool: tool.name), listing.problems, is_full)


CONNECT_S = 10.0
# How long nothing may come beyond the time that a call has.
BEYOND_S = 30.0
Streams = tuple[Any, Any]


@asynccontextmanager
async def over_process(process: ServerProcess, watch: Watch) -> AsyncIterator[Streams]:
    """Carry messages as lines; once the process is gone, ``watch`` says so and the session sees an end."""
    to_session, incoming = anyio.create_memory_object_stream[SessionMessage | Exception](0)
    outgoing, from_session = anyio.create_memory_object_stream[SessionMessage](0)
    async with anyio.create_task_group() as group:
        group.start_soon(_read, process, watch, to_session)
        group.start_soon(_write, process, watch, from_session, to_session)
        try:
            yield incoming, outgoing
        finally:
            group.cancel_scope.cancel()


async def _read(
    process: ServerProcess, watch: Watch, to_session: ObjectSendStream[SessionMessage | Exception]
) -> None:
    async with to_session:
        try:
            async for line in process.lines():
                try:
                    message = jsonrpc_message_adapter.validate_json(line, by_name=False)
                except ValueError:
                    watch.unasked()
                    continue
                if watch.takes(message):
                    await to_session.send(SessionMessage(message))
            watch.end(ServerGone(await process.farewell()))
        except ServerFailed as fault:
            watch.end(fault)
        except (anyio.BrokenResourceError, anyio.ClosedResourceError):
            watch.end(ServerGone("its session ended"))


async def _write(
    process: ServerProcess,
    watch: Watch,
    from_session: ObjectReceiveStream[SessionMessage],
    to_session: ObjectSendStream[SessionMessage | Exception],
) -> None:
    async with from_session:
        try:
            async for item in from_session:
                watch.sent(item.message)
                text = item.message.model_dump_json(by_alias=True, exclude_unset=True)
                await process.write(text.encode() + b"\n")
        except ServerGone as fault:
            watch.end(fault)
            # Whoever waits for an answer is told that none will come.
            await to_session.aclose()


@asynccontextmanager
async def over_http(
    url: str, headers: Mapping[str, str], watch: Watch, *, timeout_s: float
) -> AsyncIterator[Streams]:
    """Carry messages by HTTP requests to one address, which no redirect leaves."""
    limits = httpx2.Timeout(CONNECT_S, read=timeout_s + BEYOND_S)
    # A compressed answer may be endless however few bytes come.
    own = {**headers, "accept-encoding": "identity"}
    # Reading the certificates of this machine takes longer than the loop may stand still.
    transport = _Bounded(watch, await asyncio.to_thread(httpx2.create_ssl_context))
    async with (
        httpx2.AsyncClient(headers=own, timeout=limits, transport=transport) as client,
        streamable_http_client(url, http_client=client, max_sse_event_size=MAX_LINE_BYTES) as (
            incoming,
            outgoing,
        ),
    ):
        yield _Incoming(incoming, watch), _Outgoing(outgoing, watch)


class _Bounded(httpx2.AsyncHTTPTransport):
    """Notes how the server answers, and lets no answer grow without bounds."""

    def __init__(self, watch: Watch, trusted: ssl.SSLContext) -> None:
        super().__init__(verify=trusted)
        self._watch = watch

    async def handle_async_request(self, request: httpx2.Request) -> httpx2.Response:
        response = await super().handle_async_request(request)
        self._watch.status = response.status_code
        if response.headers.get("content-encoding", "identity") != "identity":
            await response.aclose()
            raise httpx2.DecodingError("compressed, although the request did not allow it", request=request)
        if not response.headers.get("content-type", "").lower().startswith("text/event-stream"):
            assert isinstance(response.stream, httpx2.AsyncByteStream)
            response.stream = _Counted(response.stream)
        return response


class _Counted(httpx2.AsyncByteStream):
    def __init__(self, inner: httpx2.AsyncByteStream) -> None:
        self._inner = inner

    async def __aiter__(self) -> AsyncIterator[bytes]:
        left = MAX_LINE_BYTES
        async for chunk in self._inner:
            left -= len(chunk)
            if left < 0:
                raise httpx2.StreamError(f"an answer of over {MAX_LINE_BYTES // 2**20} MB")
            yield chunk

    async def aclose(self) -> None:
        await self._inner.aclose()


class _Incoming(ObjectReceiveStream[Any]):
    """What comes in, without what the session has no use for; a flood ends it."""

    def __init__(self, inner: Any, watch: Watch) -> None:
        self._inner = inner
        self._watch = watch

    @property
    def last_context(self) -> Any:
        return self._inner.last_context

    async def receive(self) -> Any:
        while True:
            item = await self._inner.receive()
            try:
                if isinstance(item, Exception):
                    self._watch.unasked()
                elif self._watch.takes(item.message):
                    return item
            except Flooded as fault:
                self._watch.end(fault)
                raise anyio.EndOfStream from fault

    async def aclose(self) -> None:
        await self._inner.aclose()


class _Outgoing(ObjectSendStream[SessionMessage]):
    """What goes out."""

    def __init__(self, inner: Any, watch: Watch) -> None:
        self._inner = inner
        self._watch = watch

    async def send(self, item: SessionMessage) -> None:
        self._watch.sent(item.message)
        await self._inner.send(item)

    async def aclose(self) -> None:
        await self._inner.aclose()


MAX_PAGES: Final = 20
MAX_SAID_CHARS: Final = 2_000
LISTEN_AGAIN_S: Final = 60.0

# What they say holds words of servers and of conversations; what matters of it is told by us.
for _name in ("mcp", "client", "httpx2", "httpcore2"):
    logging.getLogger(_name).setLevel(logging.CRITICAL)


@dataclass(frozen=True, slots=True)
class Answer:
    """What a call brought: its text, with what is no text named in brackets, and whether it is an error."""

    text: str
    is_error: bool = False


class Connection:
    """A connection that is up; ``changed`` is set whenever the server says that its tools are others."""

    def __init__(self, client: Client, watch: Watch, changed: asyncio.Event) -> None:
        self.changed = changed
        self.ended = watch.ended
        self._client = client
        self._watch = watch
        self._listing = asyncio.Lock()

    @property
    def protocol(self) -> str:
        """The version of the protocol that both speak."""
        return self._client.protocol_version

    async def list(self) -> Listing:
        """Ask for the tools, page by page, until the list is full.

        Raises:
            ServerFailed: the list is none.
        """
        pages: list[Listing] = []
        cursor: str | None = None
        async with self._listing:
            while True:
                with self._as_failure():
                    page = await self._client.session.list_tools(params=PaginatedRequestParams(cursor=cursor))
                # The session leaves out those that it could not call.
                kept = {tool.name for tool in page.tools}
                said = self._watch.listing
                pages.append(replace(said, tools=[tool for tool in said.tools if tool.name in kept]))
                cursor, listing = page.next_cursor, joined(pages)
                if cursor is None:
                    return listing
                if listing.is_full:
                    return replace(listing, problems=[*listing.problems, f"further pages: {TOO_LONG}"])
                if len(pages) == MAX_PAGES:
                    raise ServerFailed(f"its list of tools has over {MAX_PAGES} pages")

    async def call(self, tool: ListedTool, arguments: Mapping[str, Any], *, timeout_s: float) -> Answer:
        """Call a tool, once; a caller that is cancelled has the server told so, where its era knows how.

        Raises:
            CallLate: no answer came in time; the server was told to stop.
            ServerGone: the connection ended; whether the call was carried out nobody knows.
            CallFailed: the server refused it, or its answer cannot be used.
        """
        try:
            async with asyncio.timeout(timeout_s):
                result = await self._client.call_tool(tool.name, dict(arguments))
        except TimeoutError:
            raise CallLate(f"it did not answer within {timeout_s:g} s") from None
        except MCPError as error:
            if error.code == CONNECTION_CLOSED:
                # Nothing is sent to it any more, whoever notices first.
                self._watch.ended.set()
                raise ServerGone(self._why(error)) from error
            raise CallFailed(f"it refused the call: {self._why(error)}") from error
        except (ValidationError, RuntimeError) as error:
            raise CallFailed("its answer does not follow the protocol") from error
        return _answer(tool, result)

    async def listen(self) -> None:
        """Wait for news of the tools in the newer era, where a server is asked for them; for ever."""
        task = asyncio.current_task()
        assert task is not None
        # An error on the way out may have taken the place of a cancellation.
        while self.protocol in MODERN_PROTOCOL_VERSIONS and not task.cancelling():
            with suppress(MCPError, SubscriptionLost, ValidationError, RuntimeError):
                async with self._client.listen(tools_list_changed=True) as news:
                    async for _ in news:
                        self.changed.set()
            if not task.cancelling():
                await asyncio.sleep(LISTEN_AGAIN_S)

    def _why(self, error: MCPError, before: str = "") -> str:
        """Return what was said, and how HTTP answered where that was an error."""
        if self._watch.fault is not None:
            return str(self._watch.fault)
        text = f"{before}{said(self._watch.hide(str(error)))}"
        return f"{text} (HTTP {self._watch.status})" if self._watch.status >= 400 else text

    @contextmanager
    def _as_failure(self) -> Iterator[None]:
        try:
            yield
        except MCPError as error:
            raise ServerFailed(self._why(error, "it lists no tools: ")) from error
        except (ValidationError, RuntimeError) as error:
            raise ServerFailed("its list of tools does not follow the protocol") from error


@asynccontextmanager
async def connected(streams: Any, watch: Watch, *, within_s: float) -> AsyncIterator[Connection]:
    """Keep a connection while the context is open, over ``streams``, a context manager of ``Streams``.

    It is entered and left in one task, whose the scopes of the library are; calls may come from any.

    Raises:
        ServerFailed: it did not come about within ``within_s`` seconds, or broke.
    """
    changed = asyncio.Event()

    async def news(message: ServerNotification | Exception) -> None:
        if isinstance(message, ToolListChangedNotification):
            changed.set()

    info = Implementation(name="chat-gateway", version=version("chat-gateway"))
    client = Client(streams, client_info=info, message_handler=news, cache=None)
    try:
        async with asyncio.timeout(within_s) as limit, client:
            limit.reschedule(None)
            yield Connection(client, watch, changed)
    except ServerFailed:
        raise
    except Exception as error:
        raise watch.fault or as_failure(error, watch) from error


def as_failure(error: BaseException, watch: Watch) -> ServerFailed:
    """Say in words, without any of the library's own, why a connection came to an end."""
    leaf = error
    while isinstance(leaf, BaseExceptionGroup):
        leaf = leaf.exceptions[0]
    if isinstance(leaf, ServerFailed):
        return leaf
    if isinstance(leaf, TimeoutError):
        return ServerFailed("it did not answer the initialization in time")
    if isinstance(leaf, MCPError):
        status = f" (HTTP {watch.status})" if watch.status >= 400 else ""
        words = said(watch.hide(str(leaf)))
        return ServerFailed(f"it refused the connection: {words}{status}", hint=_cure(watch.status))
    if isinstance(leaf, httpx2.ConnectError | httpx2.ConnectTimeout):
        return ServerFailed("it cannot be reached", hint="start it, or correct url")
    if isinstance(leaf, httpx2.HTTPError | anyio.BrokenResourceError | anyio.ClosedResourceError):
        return ServerGone(f"its connection broke ({type(leaf).__name__})")
    if isinstance(leaf, ValidationError):
        return ServerFailed("its message does not follow the protocol")
    return ServerFailed(f"the connection failed ({type(leaf).__name__})")


def said(text: str) -> str:
    """Return words of a server for a line of ours."""
    plain = "".join(c if c.isprintable() else " " for c in text[:MAX_SAID_CHARS])
    return plain.strip() or "it gave no reason"


def _cure(status: int) -> str:
    return "check headers_file" if status in (401, 403) else "correct url" if status in (404, 405) else ""


def _answer(tool: ListedTool, result: CallToolResult) -> Answer:
    structured = result.structured_content
    if tool.output is not None and not result.is_error:
        try:
            fault = misfit(structured, tool.output)
        except ValueError as error:
            raise CallFailed(str(error)) from error
        if fault:
            raise CallFailed(f"its result does not fit its schema: {said(fault)}")
    text = "\n".join(_told(block) for block in result.content)
    if not text and structured is not None:
        text = json.dumps(structured, ensure_ascii=False)
    return Answer(text, bool(result.is_error))


def _told(block: object) -> str:
    """Return the text of a part of a result; of what is none, what it is."""
    if isinstance(block, TextContent):
        return block.text
    if isinstance(block, ResourceLink):
        return f"[resource {said(block.name)}: {said(str(block.uri))}]"
    if isinstance(block, EmbeddedResource):
        inner = block.resource
        if isinstance(inner, TextResourceContents):
            return inner.text
        return f"[resource {said(str(inner.uri))}, {said(inner.mime_type or 'unknown type')}: not shown]"
    kind = "sound" if isinstance(block, AudioContent) else "image"
    mime, size = getattr(block, "mime_type", ""), len(getattr(block, "data", "")) * 3 // 4
    return f"[{kind} {said(mime)}, {size} bytes: not shown]"


# A server may have to look for much before it answers; one of the older era is asked in the newer for 10 s.
START_S: Final = 30.0


@asynccontextmanager
async def opened(
    spec: ServerSpec, folder: Path, *, launch: Launch, clock: Callable[[], float]
) -> AsyncIterator[Connection]:
    """Keep a connection while the context is open; ``folder`` is where a process of our own works.

    Raises:
        ServerFailed: it cannot be opened, or broke.
    """
    headers = await asyncio.to_thread(read_headers, spec.headers_file) if spec.url else {}
    asked = [value for _, value in parse_qsl(urlsplit(spec.url).query)]
    watch = Watch(clock=clock, secrets=[*headers.values(), *asked, *spec.env.values()])
    if spec.url:
        over = over_http(spec.url, headers, watch, timeout_s=spec.timeout_s)
        async with connected(over, watch, within_s=START_S) as connection:
            yield connection
        return
    async with running(spec, folder, launch) as process:
        try:
            async with connected(over_process(process, watch), watch, within_s=START_S) as connection:
                yield connection
        except ServerFailed as fault:
            await process.explain(fault, spec)
            raise


MAX_BYTES: Final = 64 * 1024
_NAME = re.compile(r"[A-Za-z0-9!#$%&'*+.^_`|~-]+")


def read_headers(path: Path | None) -> dict[str, str]:
    """Read the file anew at each connection, so that a secret may be changed; none where there is none.

    Raises:
        ServerFailed: it cannot be read, or a line is no header; without a word of what stands there.
    """
    if path is None:
        return {}
    cure = "one header per line, as Name: value"
    try:
        # What a name leads to may have no end, as devices have none.
        with path.open("rb") as file:
            data = file.read(MAX_BYTES + 1)
    except OSError as error:
        raise ServerFailed(f"headers_file {path} cannot be read: {error.strerror}") from error
    if len(data) > MAX_BYTES:
        raise ServerFailed(f"headers_file {path} has over {MAX_BYTES} bytes", hint=cure)
    found: dict[str, str] = {}
    for number, line in enumerate(data.decode("utf-8-sig", "replace").splitlines(), 1):
        if not line.strip() or line.startswith("#"):
            continue
        name, colon, value = line.partition(":")
        if not colon or not _NAME.fullmatch(name) or not (value.isascii() and value.strip().isprintable()):
            raise ServerFailed(f"headers_file {path}, line {number}: not a header", hint=cure)
        found[name] = value.strip()
    return found
