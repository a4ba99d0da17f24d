"""A chat platform that remembers what it was asked: the little of Telegram's Bot API that an adapter calls.

The address that a process is given names its life, so that each call tells who made it. An update stays until
a poll names a higher offset. What is said to a chat is shown at once, whether or not its sender learns of it.
"""

from __future__ import annotations

import asyncio
import json
import time
from collections.abc import Mapping
from email.utils import formatdate
from typing import Any
from urllib.parse import parse_qs

from tests.chaos.records import CHATS, Sent, Update
from tests.support.model_wire import read_request, send

TOKEN = "4242424242:chaos"
BOT = {"id": 4242424242, "is_bot": True, "first_name": "Gate", "username": "chaos_bot"}
# A poll that is empty is answered after so long at most, and one batch has so many updates at most.
_POLL_S, _BATCH = 50.0, 100
_FIRST_CHAT = 101
# Who writes over it.
ELSEWHERE = CHATS[-2:]


def chat_id(chat: str) -> int:
    return _FIRST_CHAT + CHATS.index(chat)


class StubTelegram:
    """``async with StubTelegram() as platform`` serves one bot on a free port.

    ``updates`` is what people wrote, by its number, ``sent`` what was shown to them, in order. ``polled`` is
    set once a bot asked for updates: what was written before its first start would be nobody's question.
    """

    def __init__(self) -> None:
        self.updates: dict[int, Update] = {}
        self.sent: list[Sent] = []
        self.polled = asyncio.Event()
        self._lives: set[str] = set()
        self._texts: dict[int, str] = {}
        self._server: asyncio.Server | None = None
        self._open: dict[asyncio.StreamWriter, str] = {}
        self._news = asyncio.Condition()
        self._poll = 0

    async def __aenter__(self) -> StubTelegram:
        self._server = await asyncio.start_server(self._connection, "127.0.0.1", 0)
        return self

    async def __aexit__(self, *_: object) -> None:
        if self._server is not None:
            self._server.close()
        self.cut()

    def address(self, life: str) -> str:
        """Return the address for one life of a process, to which the token is appended."""
        assert self._server is not None
        return f"http://127.0.0.1:{self._server.sockets[0].getsockname()[1]}/{life}/bot"

    def cut(self, life: str = "") -> None:
        """Reset all connections of one life, or of all: who waits for an answer gets none."""
        for writer, its in list(self._open.items()):
            if life in ("", its):
                writer.transport.abort()

    @property
    def waiting(self) -> list[int]:
        """The updates that no offset has passed yet, in order."""
        return [number for number, update in self.updates.items() if not update.confirmed]

    @property
    def waiting_messages(self) -> set[str]:
        return {self.updates[number].message for number in self.waiting}

    async def write(self, chat: str, message: str, text: str) -> int:
        """Let somebody write; return the number of the update."""
        number = len(self.updates) + 1
        self.updates[number] = Update(message, time.time())
        self._texts[number] = text
        await self._tell()
        return number

    async def asked_by(self, life: str) -> None:
        """Return once this life of a process has asked for updates."""
        async with self._news:
            await self._news.wait_for(lambda: life in self._lives)

    async def _tell(self) -> None:
        async with self._news:
            self._news.notify_all()

    async def _connection(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self._open[writer] = ""
        try:
            while first := await reader.read(1):
                _, path, headers, body = await read_request(first, reader)
                _, life, bot, method = path.split("/")
                self._open[writer] = life
                code, answer = 401, {"ok": False, "error_code": 401, "description": "Unauthorized"}
                if bot == f"bot{TOKEN}":
                    code, answer = await self._answer(life, method.lower(), _fields(headers, body), reader)
                send(writer, code, answer, {"date": formatdate(usegmt=True)})
                await writer.drain()
        except (ConnectionError, asyncio.IncompleteReadError, asyncio.CancelledError):
            # Its client died, or was cut off, or the batch ends.
            pass
        finally:
            self._open.pop(writer, None)
            writer.close()

    async def _answer(
        self, life: str, method: str, fields: Mapping[str, Any], reader: asyncio.StreamReader
    ) -> tuple[int, dict[str, Any]]:
        if method == "getupdates":
            return await self._updates(life, fields, reader)
        if method == "sendmessage":
            return 200, {"ok": True, "result": self._show(life, fields)}
        return 200, {"ok": True, "result": BOT if method == "getme" else True}

    def _show(self, life: str, fields: Mapping[str, Any]) -> dict[str, Any]:
        chat, text = int(fields["chat_id"]), str(fields["text"])
        answers = int((fields.get("reply_parameters") or {}).get("message_id", 0))
        asked = self.updates[answers].message if answers in self.updates else ""
        self.sent.append(Sent(CHATS[chat - _FIRST_CHAT], asked, life, text, time.time()))
        number = 10**6 + len(self.sent)
        return {"message_id": number, "date": int(time.time()), "chat": _chat(chat), "text": text}

    async def _updates(
        self, life: str, fields: Mapping[str, Any], reader: asyncio.StreamReader
    ) -> tuple[int, dict[str, Any]]:
        """Confirm what lies before the offset; wait for what lies behind it. A newer poll ends this one."""
        self._poll += 1
        mine = self._poll
        for number in [number for number in self.waiting if number < int(fields.get("offset") or 0)]:
            self.updates[number].confirmed = time.time()
        self.polled.set()
        self._lives.add(life)
        await self._tell()
        until = time.monotonic() + min(int(fields.get("timeout") or 0), _POLL_S)
        while self._poll == mine and not self.waiting and not reader.at_eof():
            if (left_s := until - time.monotonic()) <= 0:
                break
            async with self._news:
                try:
                    await asyncio.wait_for(self._news.wait(), min(left_s, 0.5))
                except TimeoutError:
                    continue
        if reader.at_eof() or reader.exception() is not None:
            raise ConnectionResetError
        if self._poll != mine:
            return 409, {"ok": False, "error_code": 409, "description": "Conflict: terminated by other poll"}
        found = self.waiting[: min(int(fields.get("limit") or _BATCH), _BATCH)]
        for number in found:
            self.updates[number].handed.append((life, time.time()))
        return 200, {"ok": True, "result": [self._update(number) for number in found]}

    def _update(self, number: int) -> dict[str, Any]:
        update = self.updates[number]
        person = chat_id(update.message.partition("-")[0])
        message = {
            "message_id": number,
            "date": int(update.written),
            "chat": _chat(person),
            "from": {"id": person, "is_bot": False, "first_name": CHATS[person - _FIRST_CHAT]},
            "text": self._texts[number],
        }
        return {"update_id": number, "message": message}


def _chat(number: int) -> dict[str, Any]:
    return {"id": number, "type": "private", "first_name": CHATS[number - _FIRST_CHAT]}


def _fields(headers: Mapping[str, str], body: bytes) -> dict[str, Any]:
    if "json" in headers.get("content-type", ""):
        found: dict[str, Any] = json.loads(body or b"{}")
        return found
    form = {name: values[-1] for name, values in parse_qs(body.decode()).items()}
    if "reply_parameters" in form:
        return {**form, "reply_parameters": json.loads(form["reply_parameters"])}
    return dict(form)
