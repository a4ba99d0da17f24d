"""What carries the messages of a session: a process's input and output, or HTTP, both within bounds."""

from __future__ import annotations

import asyncio
import ssl
from collections.abc import AsyncIterator, Mapping
from contextlib import asynccontextmanager
from typing import Any

import anyio
import httpx2
from anyio.abc import ObjectReceiveStream, ObjectSendStream
from mcp.client.streamable_http import streamable_http_client
from mcp.shared.message import SessionMessage
from mcp_types import jsonrpc_message_adapter

from session.mcp.errors import Flooded, ServerFailed, ServerGone
from session.mcp.process import MAX_LINE_BYTES, ServerProcess
from session.mcp.watch import Watch

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


class _Incoming:
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

    def __aiter__(self) -> _Incoming:
        return self

    async def __anext__(self) -> Any:
        try:
            return await self.receive()
        except anyio.EndOfStream:
            raise StopAsyncIteration from None

    async def aclose(self) -> None:
        await self._inner.aclose()

    async def __aenter__(self) -> _Incoming:
        return self

    async def __aexit__(self, *_: object) -> None:
        await self.aclose()


class _Outgoing:
    """What goes out."""

    def __init__(self, inner: Any, watch: Watch) -> None:
        self._inner = inner
        self._watch = watch

    async def send(self, item: SessionMessage) -> None:
        self._watch.sent(item.message)
        await self._inner.send(item)

    async def aclose(self) -> None:
        await self._inner.aclose()

    async def __aenter__(self) -> _Outgoing:
        return self

    async def __aexit__(self, *_: object) -> None:
        await self.aclose()
