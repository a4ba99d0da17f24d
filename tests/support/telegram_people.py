"""What people do on Telegram: they write, edit, send files, block the bot, and move their groups."""

from __future__ import annotations

import re
import threading
import time
from collections.abc import Sequence
from typing import Any

from tests.support.telegram_chats import Chat, Chats
from tests.support.telegram_texts import utf16
from tests.support.telegram_updates import Updates


class People:
    """Base of the server: every method may be called from any thread."""

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
        """Let a person write; return the update's id (0: filtered by ``allowed_updates``).

        Args:
            chat_id: where; a chat that is not known yet is from now on.
            text: what.
            user: who writes; an id, or the Bot API's User; in a private chat the chat's own person.
            type: private, group, supergroup or channel; guessed from the id.
            thread: a forum topic.
            reply_to: a message id of this chat.
            entities: as the platform would add them: commands and mentions when not given.
            files: ``(kind, name, content, mime)``; the text becomes the caption.
            edited: the message id whose text this replaces.
            date: when it was written, seconds since 1970.
            fields: anything else of the Bot API's Message.
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
        """Return the buttons below a message: what stands on each, and its value."""
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
        """Queue an update of any shape; without ``update_id`` it gets the next one."""
        return self.updates.push(update)

    def ban(self, chat_id: int, words: str = "bot was blocked by the user") -> None:
        """Refuse every send to this chat with 403, until ``unban``."""
        self.world.banned[chat_id] = words

    def unban(self, chat_id: int) -> None:
        """Take sends to this chat again."""
        self.world.banned.pop(chat_id, None)

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
