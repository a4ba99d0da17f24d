"""A whole application with its HTTP server on a port of its own, in this process, and a client for it."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import httpx
import orjson

from gateway.app.application import Application
from gateway.app.wiring_session import SessionServices
from gateway.config.settings import Settings
from gateway.http.security import Gate
from gateway.http.server import HttpServer, build_app
from session.models.model import Answer, OnDelta, Prompt, Warms
from tests.gateway.described import Described


class Gated:
    """A plain model that answers when it is let; counts how often it was asked."""

    name = "gated"
    plain = True

    def __init__(self) -> None:
        self.asked: list[str] = []
        self.begun = asyncio.Event()
        self.let = asyncio.Event()

    async def ask(self, prompt: Prompt, on_delta: OnDelta | None = None) -> Answer:
        text = str(prompt.messages[-1]["content"])
        self.asked.append(text)
        self.begun.set()
        if on_delta is not None:
            on_delta("got ")
        await self.let.wait()
        return Answer(f"got {text}")


class Place:
    def __init__(self, application: Application, server: HttpServer, http: httpx.AsyncClient) -> None:
        self.application = application
        self.server = server
        self.http = http

    @property
    def services(self) -> SessionServices:
        assert self.application.services is not None
        return self.application.services

    async def warm(self) -> None:
        """Have a real model import what it needs, since that takes its time."""
        model = self.services.model
        assert isinstance(model, Warms)
        await model.warm()

    async def post(self, text: str, *, chat: str = "ada", **more: Any) -> httpx.Response:
        wait = more.pop("wait", None)
        params = {} if wait is None else {"wait": str(wait)}
        body = {"chat_id": chat, "text": text, **more}
        return await self.http.post("/v1/messages", json=body, params=params)

    @asynccontextmanager
    async def stream(self, key: str, last: int | None = None) -> AsyncIterator[Stream]:
        headers = {} if last is None else {"Last-Event-ID": str(last)}
        async with self.http.stream("GET", "/v1/events", params={"key": key}, headers=headers) as answer:
            assert answer.status_code == 200
            stream = Stream(answer)
            await stream.opened()
            yield stream

    def gate(self) -> Gated:
        """Have all further turns answered by a model that waits to be let."""
        model = self.services.turns.model = Gated()
        return model


class Stream:
    """The events of one open connection."""

    def __init__(self, answer: httpx.Response) -> None:
        self._lines = _lines(answer)

    async def opened(self) -> None:
        async for line in self._lines:
            if line.startswith(":"):
                return

    async def next(self, kind: str = "") -> tuple[dict[str, Any], str]:
        """Return the next event (of that kind) and its id."""
        async with asyncio.timeout(30):
            return await self._next(kind)

    async def _next(self, kind: str) -> tuple[dict[str, Any], str]:
        number = ""
        async for line in self._lines:
            field, _, value = line.partition(": ")
            if field == "id":
                number = value
            elif field == "data":
                event = orjson.loads(value)
                if kind in ("", event["kind"]):
                    return event, number
            elif not line:
                number = ""
        raise EOFError

    async def heartbeat(self) -> None:
        async for line in self._lines:
            if line.startswith(": "):
                return


async def _lines(answer: httpx.Response) -> AsyncIterator[str]:
    """Yield all lines, also those that are no part of an event."""
    begun = b""
    async for piece in answer.aiter_bytes():
        *ended, begun = (begun + piece).split(b"\n")
        for line in ended:
            yield line.decode()


# Every application has the same routes. A busy machine takes seconds to describe them, for which an open
# connection would be silent too long.
_DESCRIBED: list[Described] = []


def _described(server: HttpServer) -> Callable[[httpx.Response], Awaitable[None]]:
    """Hold every answer to the OpenAPI document."""
    if not _DESCRIBED:
        _DESCRIBED.append(Described(build_app(server.chats, Gate(host="127.0.0.1"))))
    return _DESCRIBED[0].check


@asynccontextmanager
async def open_place(
    workspace: Path,
    *,
    http: dict[str, Any] | None = None,
    limits: dict[str, Any] | None = None,
    kind: Callable[[Settings], Application] = Application,
    **tables: Any,
) -> AsyncIterator[Place]:
    """Open it, an application of this ``kind``; ``tables`` are further ones of the configuration."""
    settings = Settings.model_validate(
        {
            "workspace": workspace,
            "http": {"port": 0, **(http or {})},
            "limits": {"drain_s": 5, **(limits or {})},
            **tables,
        }
    )
    application = kind(settings)
    server = HttpServer(application)
    server.bind()
    hooks = {"response": [_described(server)]}
    async with (
        application.open(serve=server.serve),
        httpx.AsyncClient(base_url=server.url, timeout=60, trust_env=False, event_hooks=hooks) as client,
    ):
        yield Place(application, server, client)
