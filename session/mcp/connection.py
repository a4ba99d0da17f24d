"""One connection to a server, of either era of the protocol: what it lists, and calls of its tools."""

from __future__ import annotations

import asyncio
import json
import logging
from collections.abc import AsyncIterator, Iterator, Mapping
from contextlib import asynccontextmanager, contextmanager, suppress
from dataclasses import dataclass, replace
from importlib.metadata import version
from typing import Any, Final

import anyio
import httpx2
from mcp import Client, MCPError
from mcp.client.subscriptions import SubscriptionLost
from mcp_types import (
    CONNECTION_CLOSED,
    AudioContent,
    CallToolResult,
    EmbeddedResource,
    Implementation,
    PaginatedRequestParams,
    ResourceLink,
    ServerNotification,
    TextContent,
    TextResourceContents,
    ToolListChangedNotification,
)
from mcp_types.version import MODERN_PROTOCOL_VERSIONS
from pydantic import ValidationError

from session.mcp.errors import CallFailed, CallLate, ServerFailed, ServerGone
from session.mcp.listing import TOO_LONG, ListedTool, Listing
from session.mcp.schema import misfit
from session.mcp.watch import Watch, joined

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

    try:
        async with opened(_client(streams, news), within_s) as client:
            yield Connection(client, watch, changed)
    except ServerFailed:
        raise
    except Exception as error:
        raise watch.fault or as_failure(error, watch) from error


@asynccontextmanager
async def opened(client: Client, within_s: float) -> AsyncIterator[Client]:
    """Enter a client within a time, and leave it whenever that may be."""
    async with asyncio.timeout(within_s) as limit, client:
        limit.reschedule(None)
        yield client


def _client(streams: Any, news: Any) -> Client:
    info = Implementation(name="chat-gateway", version=version("chat-gateway"))
    return Client(streams, client_info=info, message_handler=news, cache=None)


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
