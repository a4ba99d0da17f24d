"""The chat server of ``docs/write-a-channel.md`` in a few lines, with the faults of a real one."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

from aiohttp import web

from channels.testing import Break, Shown

TOKEN = "feathers"


class ParrotServer:
    """Keeps messages until a poll comes from behind them; recognises a nonce."""

    chat_id = "ada"

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.url = ""
        self._inbox: dict[int, str] = {}
        self._shown: dict[int, str] = {}
        self._nonces: dict[str, int] = {}
        self._number = 0
        self._changed = asyncio.Condition()
        self._break: Break | None = None

    async def write(self, text: str) -> None:
        async with self._changed:
            self._number += 1
            self._inbox[self._number] = text
            self._changed.notify_all()

    async def sent(self) -> list[Shown]:
        return [Shown(str(number), self.chat_id, text) for number, text in self._shown.items()]

    async def break_next(self, how: Break) -> None:
        self._break = how

    async def poll(self, request: web.Request) -> web.Response:
        after = int(request.query["after"])
        async with self._changed:
            self._inbox = {number: text for number, text in self._inbox.items() if number > after}
            await self._changed.wait_for(lambda: self._inbox)
        person = {"id": "1", "name": "Ada"}
        return web.json_response(
            [
                {"id": number, "chat": self.chat_id, "text": text, "from": person, "group": False}
                for number, text in self._inbox.items()
            ]
        )

    async def post(self, request: web.Request) -> web.Response:
        message = await request.json()
        broken = self._broken(request)
        if broken is not None:
            return broken
        lost, self._break = self._break == "unknown", None
        number = self._nonces.get(message["nonce"])
        if number is None:
            self._number += 1
            number = self._nonces[message["nonce"]] = self._number
            self._shown[number] = message["text"]
        if lost and request.transport is not None:
            request.transport.close()
        return web.json_response({"id": number})

    async def put(self, request: web.Request) -> web.Response:
        number = int(request.match_info["number"])
        if self._break == "gone":
            self._break = None
            del self._shown[number]
        if number not in self._shown:
            return web.Response(status=404)
        self._shown[number] = (await request.json())["text"]
        return web.json_response({})

    async def typing(self, request: web.Request) -> web.Response:
        return web.json_response({})

    def _broken(self, request: web.Request) -> web.Response | None:
        how = self._break
        if how in (None, "unknown"):
            return None
        self._break = None
        headers = {"Retry-After": "1"} if how == "later" else {}
        return web.Response(status={"down": 503, "later": 429, "never": 403}[str(how)], headers=headers)


@web.middleware
async def _known(request: web.Request, handler: Any) -> web.StreamResponse:
    if request.headers.get("Authorization") != f"Bearer {TOKEN}":
        return web.Response(status=401)
    answer: web.StreamResponse = await handler(request)
    return answer


@asynccontextmanager
async def parrot_server(folder: Path) -> AsyncIterator[ParrotServer]:
    """Serve on a free port while the context is open."""
    server = ParrotServer(folder)
    app = web.Application(middlewares=[_known])
    app.add_routes(
        [
            web.get("/messages", server.poll),
            web.post("/messages", server.post),
            web.put("/messages/{number}", server.put),
            web.post("/typing", server.typing),
        ]
    )
    runner = web.AppRunner(app, shutdown_timeout=0.1)
    await runner.setup()
    site = web.TCPSite(runner, "127.0.0.1", 0)
    await site.start()
    server.url = f"http://127.0.0.1:{runner.addresses[0][1]}"
    try:
        yield server
    finally:
        await runner.cleanup()
