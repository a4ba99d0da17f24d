"""What people do on Telegram: they write, edit, send files, press buttons, and move their groups."""

from __future__ import annotations

import asyncio
import re
import threading
import time
from collections import deque
from collections.abc import Callable, Sequence
from itertools import islice
from typing import Any

from tests.support.telegram_chats import Chat, Chats, utf16
from tests.support.telegram_faults import WORDS, Refused


class People:
    def __init__(self, me: dict[str, Any]) -> None:
        # Update id → message id.
        self.message_of: dict[int, int] = {}
        self._lock = threading.RLock()
        self.world = Chats(me)
        self.updates = Updates(self._lock)

    def add_chat(self, chat_id: int, type: str = "private", **fields: Any) -> Chat:
        """Make a chat known; ``fields`` are those of ``Chat``: title, forum, threads, admins, members."""
        with self._lock:
            chat = self.world.chats.setdefault(chat_id, Chat(chat_id, type))
            for name, value in fields.items():
                setattr(chat, name, value)
            chat.members.setdefault(self.world.me["id"], self.world.me) if type != "private" else None
        return chat

    def write(
        self,
        chat_id: int,
        text: str = "",
        *,
        user: int | dict[str, Any] | None = None,
        type: str | None = None,
        thread: int | None = None,
        reply_to: int | None = None,
        entities: list[dict[str, Any]] | None = None,
        files: Sequence[tuple[str, str, bytes, str]] = (),
        edited: int | None = None,
        date: float | None = None,
        **fields: Any,
    ) -> int:
        """Let a person write; return the update's id.

        A chat that is not known yet is from now on, its ``type`` guessed from its id. ``user``: an id, or the
        Bot API's User. ``entities``: as the platform would add them, where none are given. ``files``:
        ``(kind, name, content, mime)``; the text becomes the caption. ``edited``: the message id whose text
        this replaces. ``date``: seconds since 1970. ``fields``: anything else of the Bot API's Message.
        """
        with self._lock:
            kind = type or ("private" if chat_id > 0 else "supergroup" if chat_id < -(10**12) else "group")
            chat = self.world.chats.get(chat_id) or self.add_chat(chat_id, kind)
            person = _user(user if user is not None else (chat_id if kind == "private" else 1))
            chat.members.setdefault(person["id"], person)
            at = int(time.time() if date is None else date)
            message: dict[str, Any] = {"message_id": edited or self.world.next_message_id(chat)}
            message |= {"chat": chat.shown(), "date": at}
            message |= {"sender_chat": chat.shown()} if kind == "channel" else {"from": person}
            if thread is not None:
                chat.forum = True
                chat.threads.add(thread)
                message |= {"message_thread_id": thread, "is_topic_message": True, "chat": chat.shown()}
            if reply_to is not None:
                answered = chat.messages[reply_to]
                message["reply_to_message"] = {k: v for k, v in answered.items() if k != "reply_to_message"}
            found = _found(text) if entities is None else entities
            if text:
                message |= {"caption" if files else "text": text}
                message |= {"caption_entities" if files else "entities": found} if found else {}
            for sort, name, content, mime in files:
                file_id = self.world.keep_file(sort, name, content)
                message[sort] = self.world.described(sort, file_id, name, mime)
            if edited is not None:
                message |= {"edit_date": at, "date": chat.messages.get(edited, message)["date"]}
            message |= fields
            chat.messages[message["message_id"]] = message
            name = "channel_post" if kind == "channel" else "message"
            update_id = self.push({f"edited_{name}" if edited is not None else name: message})
            self.message_of[update_id] = message["message_id"]
        return update_id

    def buttons(self, chat_id: int, message_id: int) -> dict[str, str]:
        with self._lock:
            markup = self.world.chats[chat_id].messages[message_id].get("reply_markup") or {}
            rows = markup.get("inline_keyboard", [])
            return {button["text"]: button["callback_data"] for row in rows for button in row}

    def press(
        self, chat_id: int, message_id: int, data: str, *, user: int | dict[str, Any] | None = None
    ) -> int:
        """Let a person press a button of a message, or send a value as though; return the update's id."""
        with self._lock:
            message = self.world.chats[chat_id].messages[message_id]
            person = _user(user if user is not None else chat_id)
            query = {"id": f"q{self.updates.next_id}", "from": person, "chat_instance": "1", "data": data}
            return self.push({"callback_query": query | {"message": message}})

    def push(self, update: dict[str, Any]) -> int:
        return self.updates.push(update)

    def migrate(self, old: int, new: int) -> tuple[int, int]:
        """Make a group a supergroup; return the ids of the two updates that say so."""
        with self._lock:
            self.add_chat(new, "supergroup", members=dict(self.world.chats[old].members))
            first = self.write(old, type="group", migrate_to_chat_id=new)
            second = self.write(new, type="supergroup", migrate_from_chat_id=old)
            self.world.moved[old] = new
        return first, second


def _user(user: int | dict[str, Any]) -> dict[str, Any]:
    if isinstance(user, dict):
        return {"is_bot": False, "first_name": "Someone"} | user
    return {"id": user, "is_bot": False, "first_name": f"Person {user}", "username": f"person_{user}"}


def _found(text: str) -> list[dict[str, Any]]:
    """Mark commands and mentions as the platform does."""
    marks = []
    for match in re.finditer(r"(?<![\w/@])(/[A-Za-z0-9_]{1,64}(?:@\w{3,32})?|@\w{3,32})", text):
        kind = "bot_command" if match[0].startswith("/") else "mention"
        marks.append({"type": kind, "offset": utf16(text[: match.start()]), "length": utf16(match[0])})
    return marks


WEBHOOK = (
    "Conflict: can't use getUpdates method while webhook is active;"
    " use deleteWebhook to delete the webhook first"
)


class Updates:
    """Updates wait here until a later poll names a higher offset.

    ``confirmations`` lists ``(monotonic time, update id)`` in the order of forgetting; ``on_confirm`` is
    called with each update at that instant, on the server's thread, before the poll is answered.
    """

    def __init__(self, lock: threading.RLock) -> None:
        self.pending: deque[dict[str, Any]] = deque()
        self.next_id = 800_000_001
        self.confirmed = 0
        self.confirmations: list[tuple[float, int]] = []
        self.on_confirm: Callable[[dict[str, Any]], None] | None = None
        self.changed: Callable[[], None] = lambda: None
        self.webhook = ""
        self.conflict_delay_s = 3.0
        # A poll that repeats its offset within that time gets a single update.
        self.repeated_s = 0.5
        self._lock = lock
        self._loop: asyncio.AbstractEventLoop | None = None
        self._poll: asyncio.Future[bool] | None = None
        self._previous: tuple[int, float] = (0, -10.0)
        self._next_conflict = 0.0

    def push(self, update: dict[str, Any]) -> int:
        with self._lock:
            update_id = int(update.get("update_id", self.next_id))
            self.next_id = update_id + 1
            self.pending.append({"update_id": update_id, **update})
            if self._loop is not None:
                self._loop.call_soon_threadsafe(self._wake)
        return update_id

    def _wake(self) -> None:
        if self._poll is not None and not self._poll.done():
            self._poll.set_result(True)

    async def get(self, params: dict[str, Any]) -> list[dict[str, Any]]:
        self._loop = asyncio.get_running_loop()
        if self.webhook:
            await self._conflict(WEBHOOK)
        offset, limit, timeout = (int(params.get(name, 0)) for name in ("offset", "limit", "timeout"))
        limit, timeout = min(limit or 100, 100), min(timeout, 50)
        now = time.monotonic()
        if offset == self._previous[0] and now < self._previous[1] + 3.0:
            timeout = max(timeout, 3)
        if offset == self._previous[0] and now < self._previous[1] + self.repeated_s:
            limit = 1
        self._previous = (offset, now)
        if self._poll is not None and not self._poll.done():
            self._poll.set_result(False)
        self._confirm(offset)
        self.changed()
        return await self._wait(limit, timeout)

    def _confirm(self, offset: int) -> None:
        """Forget what ``offset`` confirms: nothing where it is far ahead of all that came."""
        with self._lock:
            if offset > self.next_id + 10:
                return
            while self.pending and self.pending[0]["update_id"] < offset:
                update = self.pending.popleft()
                self.confirmed = max(self.confirmed, update["update_id"])
                self.confirmations.append((time.monotonic(), update["update_id"]))
                if self.on_confirm is not None:
                    self.on_confirm(update)

    async def _wait(self, limit: int, timeout_s: int) -> list[dict[str, Any]]:
        ends = time.monotonic() + timeout_s
        while True:
            with self._lock:
                found = list(islice(self.pending, limit))
                left = ends - time.monotonic()
                if found or left <= 0:
                    return found
                poll = self._poll = asyncio.get_running_loop().create_future()
            await asyncio.wait([poll], timeout=left)
            if poll.done() and not poll.result():
                await self._conflict(WEBHOOK if self.webhook else WORDS[409])

    def abort(self) -> None:
        if self._poll is not None and not self._poll.done():
            self._poll.set_result(False)

    async def _conflict(self, words: str) -> None:
        now = time.monotonic()
        if now < self._next_conflict:
            await asyncio.sleep(self.conflict_delay_s)
        else:
            self._next_conflict = now + self.conflict_delay_s
        raise Refused(409, words)
