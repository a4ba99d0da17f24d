"""A local server that behaves like Telegram's Bot API, on a thread of its own.

It serves adapters of the test's own process and of others alike::

    async with TelegramServer() as server:                    # or: with TelegramServer() as server
        bot = telegram.Bot(server.token, base_url=server.base_url, base_file_url=server.base_file_url)
        update_id = server.write(12345678, "hello")           # a person writes; server.push(update): anything
        await server.until_confirmed(update_id)               # a later getUpdates named a higher offset
        sent = await server.said(12345678, lambda sent: "echo" in sent.text)
        assert server.sent == [sent]

Who writes is known from then on: a chat that never wrote, nor was added by ``add_chat``, is not found.
``sent``, ``edits`` and ``actions`` are of accepted requests, ``calls`` all requests (method, chat, time,
outcome), ``confirmations`` when each update was forgotten, by ``time.monotonic``. ``fail`` adds a fault
(``telegram_faults.py``), ``migrate``, ``pause`` and ``resume`` change the world. Every wait is by
condition and fails after ``timeout_s`` seconds; ``until(predicate)`` waits for any.
"""

from __future__ import annotations

import asyncio
import concurrent.futures
import json
import re
import threading
import time
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Self

from aiohttp import web

from tests.support.ports import KeptPort
from tests.support.telegram_chats import Action, Edit, Sent, Upload
from tests.support.telegram_faults import HTML, Fault, Refused
from tests.support.telegram_people import People

__all__ = ["Action", "Call", "Edit", "Fault", "Sent", "TelegramServer"]

TOKEN = "4242424242:AAtest-token_of_the_local_server_000"
ME = {
    "id": 4242424242,
    "is_bot": True,
    "first_name": "Gate",
    "username": "gate_test_bot",
}


@dataclass
class Call:
    """One request: ``outcome`` is ``waiting``, ``answered``, ``refused <code>`` or the ``how`` of a fault."""

    method: str
    chat_id: int | None
    at: float
    params: dict[str, Any]
    outcome: str = "waiting"


class TelegramServer(People):
    def __init__(self, *, token: str = TOKEN, port: int = 0) -> None:
        super().__init__(ME | {"id": int(token.partition(":")[0])})
        self.token = token
        self._kept_port = KeptPort(port)
        self.port = self._kept_port.port
        self.calls: list[Call] = []
        self.sent, self.edits, self.actions = self.world.sent, self.world.edits, self.world.actions
        self.confirmations = self.updates.confirmations
        self.faults: list[Fault] = []
        self.updates.changed = self._changed
        self._waits: list[tuple[Callable[[], Any], concurrent.futures.Future[Any]]] = []
        self._loop = asyncio.new_event_loop()
        self._thread = threading.Thread(target=self._loop.run_forever, name="telegram-server", daemon=True)
        self._runner: web.AppRunner | None = None
        self._site: web.TCPSite | None = None
        self._open: set[Any] = set()

    # -- life ---------------------------------------------------------------------------------------

    def start(self) -> Self:
        self._thread.start()
        self._on_loop(self._listen())
        return self

    def close(self) -> None:
        """Let go whoever hangs, cut every connection and end the thread."""
        for fault in self.faults:
            fault.end()
        self._on_loop(self._stop())
        self._loop.call_soon_threadsafe(self._loop.stop)
        self._thread.join(10)
        self._loop.close()
        self._kept_port.close()

    def pause(self) -> None:
        self._on_loop(self._leave())

    def resume(self) -> None:
        self._on_loop(self._open_site())

    def __enter__(self) -> Self:
        return self.start()

    def __exit__(self, *_: object) -> None:
        self.close()

    async def __aenter__(self) -> Self:
        return self.start()

    async def __aexit__(self, *_: object) -> None:
        self.close()

    @property
    def base_url(self) -> str:
        """Where the token is appended: ``http://127.0.0.1:PORT/bot``."""
        return f"http://127.0.0.1:{self.port}/bot"

    @property
    def base_file_url(self) -> str:
        return f"http://127.0.0.1:{self.port}/file/bot"

    def _on_loop(self, work: Any) -> Any:
        return asyncio.run_coroutine_threadsafe(work, self._loop).result(10)

    async def _listen(self) -> None:
        app = web.Application(client_max_size=64 * 2**20)
        app.router.add_route("*", "/bot{token:[^/]+}/{method}", self._serve)
        app.router.add_get("/file/bot{token:[^/]+}/{path:.+}", self._download)
        self._runner = web.AppRunner(app, access_log=None, shutdown_timeout=0.1)
        await self._runner.setup()
        await self._open_site()

    async def _open_site(self) -> None:
        assert self._runner is not None
        self._site = web.TCPSite(self._runner, "127.0.0.1", self.port, reuse_address=True)
        await self._site.start()

    async def _leave(self) -> None:
        assert self._site is not None
        await self._site.stop()
        for transport in list(self._open):
            transport.abort()

    async def _stop(self) -> None:
        assert self._runner is not None
        self.updates.abort()
        for transport in list(self._open):
            transport.abort()
        await self._runner.cleanup()

    def fail(self, method: str, *, how: str, times: int | None = 1, **more: Any) -> Fault:
        """Add a rule, first come first served; ``more``: chat_id, retry_after, description."""
        fault = Fault(method, how, times, **more)
        self.faults.append(fault)
        return fault

    # -- what is seen -------------------------------------------------------------------------------

    @property
    def confirmed(self) -> int:
        """The highest update id that was confirmed, 0 before."""
        return self.updates.confirmed

    def called(self, method: str) -> list[Call]:
        return [call for call in self.calls if call.method.lower() == method.lower()]

    def sent_to(self, chat_id: int) -> list[Sent]:
        return [sent for sent in self.sent if sent.chat_id == chat_id]

    async def until(self, predicate: Callable[[], Any], *, timeout_s: float = 60.0) -> Any:
        """Wait until ``predicate`` is true, asked after every change; return what it returned."""
        future: concurrent.futures.Future[Any] = concurrent.futures.Future()
        with self._lock:
            self._waits.append((predicate, future))
            self._changed()
        async with asyncio.timeout(timeout_s):
            return await asyncio.wrap_future(future)

    async def sent_count(self, n: int, *, timeout_s: float = 60.0) -> list[Sent]:
        await self.until(lambda: len(self.sent) >= n, timeout_s=timeout_s)
        return self.sent

    async def said(
        self, chat_id: int, predicate: Callable[[Sent], bool] = lambda _: True, *, timeout_s: float = 60.0
    ) -> Sent:
        """Wait for a send to this chat, edits included, that fits."""

        def found() -> Sent | None:
            return next((sent for sent in self.sent_to(chat_id) if predicate(sent)), None)

        sent: Sent = await self.until(found, timeout_s=timeout_s)
        return sent

    async def alerted(self, press: int, text: str, *, timeout_s: float = 60.0) -> str:
        """Wait until whoever made a press, by its update's id, is shown these words, and perhaps more.

        A press is answered once: one that rested without words gets none, and its chat a message.
        """
        id_ = f"q{press}"
        await self.until(lambda: id_ in self.world.answered, timeout_s=timeout_s)
        shown = self.world.answered[id_]
        assert text in shown, f"{shown!r} was shown; sent: {[each.text for each in self.sent]}"
        return shown

    async def until_confirmed(self, update_id: int, *, timeout_s: float = 60.0) -> None:
        await self.until(lambda: any(n == update_id for _, n in self.confirmations), timeout_s=timeout_s)

    async def until_called(self, method: str, n: int = 1, *, timeout_s: float = 60.0) -> list[Call]:
        await self.until(lambda: len(self.called(method)) >= n, timeout_s=timeout_s)
        return self.called(method)

    def _changed(self) -> None:
        with self._lock:
            for wait in list(self._waits):
                predicate, future = wait
                try:
                    value = predicate()
                except Exception as error:  # noqa: BLE001 — the test's own lambda
                    self._waits.remove(wait)
                    future.set_exception(error)
                    continue
                if future.cancelled():
                    self._waits.remove(wait)
                elif value:
                    self._waits.remove(wait)
                    future.set_result(value)

    # -- the wire -----------------------------------------------------------------------------------

    async def _serve(self, request: web.Request) -> web.StreamResponse:
        if request.transport is not None:
            self._open = {transport for transport in self._open if not transport.is_closing()} | {
                request.transport
            }
        params, files = await _read(request)
        method = request.match_info["method"]
        chat = str(params.get("chat_id", ""))
        call = Call(method, int(chat) if re.fullmatch(r"-?\d+", chat) else None, time.monotonic(), params)
        self.calls.append(call)
        self._changed()
        try:
            response = await self._faulty(request, call, files)
        finally:
            self._changed()
        return response

    async def _faulty(self, request: web.Request, call: Call, files: dict[str, Upload]) -> web.StreamResponse:
        fault = next((fault for fault in self.faults if fault.meets(call.method, call.params)), None)
        if fault is None:
            return await self._answer(request, call, files)
        self._changed()
        refusal = fault.refusal()
        if refusal is not None:
            call.outcome = f"refused {refusal.code}"
            return _refusal(refusal)
        if fault.how == "html":
            call.outcome = "html"
            return web.Response(status=502, text=HTML, content_type="text/html")
        if fault.how == "hang":
            await fault.until_ended()
        if fault.how != "drop":
            response = await self._answer(request, call, files)
        call.outcome = fault.how
        self._changed()
        if fault.how == "garbage":
            return web.Response(text='{"ok": true, "resu', content_type="application/json")
        if fault.how in ("drop", "drop_after") and request.transport is not None:
            request.transport.abort()
            return web.Response()
        return response

    async def _answer(self, request: web.Request, call: Call, files: dict[str, Upload]) -> web.StreamResponse:
        try:
            self._authorise(request)
            result = await self._do(call.method.lower(), call.params, files)
        except Refused as refused:
            call.outcome = f"refused {refused.code}"
            return _refusal(refused)
        call.outcome = "answered"
        return web.json_response({"ok": True, "result": result})

    def _authorise(self, request: web.Request) -> None:
        token = request.match_info["token"]
        if not re.fullmatch(r"\d+:[\w-]+", token):
            raise Refused(404, "Not Found")
        if token != self.token:
            raise Refused(401, "Unauthorized")

    async def _do(self, method: str, params: dict[str, Any], files: dict[str, Upload]) -> Any:
        if method == "getupdates":
            return await self.updates.get(params)
        if method in ("setwebhook", "deletewebhook"):
            self.updates.webhook = str(params.get("url") or "") if method == "setwebhook" else ""
            if self.updates.webhook:
                self.updates.abort()
            return True
        if method not in self.world.methods:
            raise Refused(404, "Not Found: method not found")
        with self._lock:
            return self.world.methods[method](params, files)

    async def _download(self, request: web.Request) -> web.StreamResponse:
        path = request.match_info["path"]
        call = Call("file", None, time.monotonic(), {"path": path})
        self.calls.append(call)
        fault = next((fault for fault in self.faults if fault.meets("file", call.params)), None)
        try:
            self._authorise(request)
            content = next((body for where, body in self.world.files.values() if where == path), None)
            if content is None:
                raise Refused(404, "Not Found")
            refusal = fault.refusal() if fault else None
            if refusal is not None:
                raise refusal
        except Refused as refused:
            return _refusal(refused)
        if fault is not None and fault.how == "hang":
            await fault.until_ended()
        if fault is not None and request.transport is not None and fault.how in ("drop", "drop_after"):
            # Half of the file comes, then the connection breaks.
            if fault.how == "drop_after":
                response = web.StreamResponse(headers={"Content-Length": str(len(content))})
                await response.prepare(request)
                await response.write(content[: len(content) // 2])
            request.transport.abort()
            return web.Response()
        self._changed()
        return web.Response(body=content, content_type="application/octet-stream")


def _refusal(refused: Refused) -> web.Response:
    body: dict[str, Any] = {"ok": False, "error_code": refused.code, "description": refused.description}
    if refused.parameters:
        body["parameters"] = refused.parameters
    headers = (
        {"Retry-After": str(refused.parameters["retry_after"])} if "retry_after" in refused.parameters else {}
    )
    return web.json_response(body, status=refused.code, headers=headers)


async def _read(request: web.Request) -> tuple[dict[str, Any], dict[str, Upload]]:
    params: dict[str, Any] = dict(request.query)
    files: dict[str, Upload] = {}
    if request.content_type == "application/json":
        body = await request.read()
        params |= json.loads(body) if body else {}
    elif request.method == "POST":
        for name, value in (await request.post()).items():
            if isinstance(value, web.FileField):
                files[name] = (value.filename, value.file.read())
            else:
                params[name] = value
    return params, files
