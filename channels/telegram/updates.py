"""Reads a raw Telegram update as an Arrival, or says why there is none; pure, knows no client."""

from __future__ import annotations

import re
from collections.abc import AsyncIterator, Callable, Iterator, Mapping
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import Any, Final

from channels.base import Arrival, File, FileKind, Quote
from channels.message import Sender, id_number
from channels.telegram.content import describe, held_media, is_service, part_answered
from channels.telegram.written import inner, media_of, names_in, with_entities, words_of
from channels.text import utf16_len

Raw = Mapping[str, Any]
Fetch = Callable[[str], AsyncIterator[bytes]]

_MESSAGES: Final = ("message", "edited_message", "channel_post", "edited_channel_post")
# In an Arrival's meta: the press that the presser may be answered through.
PRESS: Final = "press"
ALLOWED: Final = (*_MESSAGES, "callback_query")

# In UTF-16 code units, as Telegram counts.
_MAX_TEXT: Final = 4_096
_CHAT: Final = re.compile(r"(-?[0-9]+|@[A-Za-z0-9_]+)(?::topic:([0-9]+))?")
_FAULTS: Final = (KeyError, TypeError, ValueError, AttributeError, IndexError, OverflowError, OSError)
_UNREADABLE: Final = "[a message that cannot be read]"
_ADDRESSED: Final = re.compile(r"(/[A-Za-z0-9_]+)@([A-Za-z0-9_]+)")


@dataclass(frozen=True, slots=True)
class TelegramBot:
    """Who the bot is, as Telegram says; ``username`` is without its @."""

    id: int
    username: str


@dataclass(frozen=True, slots=True)
class SkippedUpdate:
    """Why an update is no Arrival; ``strange`` where nobody foresaw its shape."""

    kind: str
    reason: str
    strange: bool = False


def read(update: Raw, me: TelegramBot, fetch: Fetch) -> Arrival | SkippedUpdate:
    """Read one update; never raises, whatever its shape.

    ``fetch`` begins the download of a file, given Telegram's ``file_id``.
    """
    kind = kind_of(update)
    try:
        if kind in _MESSAGES:
            return _message(update, kind, me, fetch)
        if kind == "callback_query":
            return _pressed(update, me)
    except _FAULTS as error:
        reason = f"unreadable: {type(error).__name__}"
        if kind in _MESSAGES and not kind.startswith("edited_"):
            return _unreadable(update, kind, me, reason)
        return SkippedUpdate(kind, reason, strange=True)
    return SkippedUpdate(kind, "unknown kind", strange=True)


def _unreadable(update: Raw, kind: str, me: TelegramBot, reason: str) -> Arrival | SkippedUpdate:
    """Read who wrote a message that cannot be understood, and where, so that its chat can be told."""
    try:
        message: Raw = update[kind]
        group = message["chat"]["type"] != "private"
        return Arrival(
            id=_id(update, me),
            chat_id=_chat_id(message),
            text="",
            platform_id=str(id_number(message["message_id"])),
            sender=_sender(message),
            from_bot=_from_bot(message),
            group=group,
            group_ids=(str(id_number(message["chat"]["id"])),) if group else (),
            mentioned=_answers(_replied(message), me),
            sent_at=_instant(message["date"]),
            unreadable=reason,
        )
    except _FAULTS:
        return SkippedUpdate(kind, reason, strange=True)


def bots_named(update: Raw) -> set[str]:
    """Return the user names in a message that may be a bot's, in small letters; never raises."""
    try:
        # Behind a command as well, as in /new@name.
        names = re.findall(r"@(\w{1,64})", words_of(update[kind_of(update)]))
        return {name for each in names if (name := each.casefold()).endswith("bot")}
    except _FAULTS:
        return set()


def kind_of(update: Raw) -> str:
    """Name the one field that an update has besides its id."""
    known = [name for name in ALLOWED if name in update]
    names = known or [name for name in update if name != "update_id"]
    return str(names[0])[:40] if names else "empty"


def chat_and_topic(chat_id: str) -> tuple[int | str, int | None]:
    """Take a chat id of a key apart: the chat as Telegram wants it, and the topic in it.

    A group's topic 1 is General, as the links to it show: Telegram finds it by no number, but without one.

    Raises:
        ValueError: it names not a Telegram chat.
    """
    found = _CHAT.fullmatch(chat_id)
    if found is None:
        raise ValueError("not a Telegram chat")
    chat, topic = found.groups()
    thread = int(topic) if topic else None
    if chat.startswith("@"):
        return chat, thread
    return int(chat), None if thread == 1 and chat.startswith("-") else thread


def _message(update: Raw, kind: str, me: TelegramBot, fetch: Fetch) -> Arrival | SkippedUpdate:
    message: Raw = update[kind]
    moved = _moved(update, message, me)
    if moved is not None:
        return moved
    edited = kind.startswith("edited_")
    # All subscribers write under one chat id, in topics that are no forum's: they would be mixed.
    if message.get("direct_messages_topic") or message["chat"].get("is_direct_messages"):
        return SkippedUpdate(kind, "direct messages of a channel")
    if message.get("is_automatic_forward"):
        return SkippedUpdate(kind, "copy of a channel's post")
    if is_service(message):
        return SkippedUpdate(kind, "service message")
    if edited and "location" in message:
        return SkippedUpdate(kind, "live location")
    text, for_us = _addressed(words_of(message), me)
    if for_us is False:
        return SkippedUpdate(kind, "command for another bot")
    files = tuple(_files(message, fetch))
    described = describe(message)
    if not (text.strip() or files or described):
        strange = SkippedUpdate(kind, "unknown content", strange=True)
        return strange if edited else _unreadable(update, kind, me, strange.reason)
    if edited and not (text or described):
        return SkippedUpdate(kind, "edit of a file without a text")
    reply_to = _replied(message)
    group = message["chat"]["type"] != "private"
    chat = id_number(message["chat"]["id"])
    return Arrival(
        id=_id(update, me),
        chat_id=_chat_id(message),
        text="\n".join(part for part in (text, described) if part),
        kind="edit" if edited else "message",
        platform_id=str(id_number(message["message_id"])),
        sender=_sender(message),
        from_bot=_from_bot(message),
        group=group,
        group_ids=(str(chat),) if group else (),
        mentioned=bool(for_us) or _names(message, me) or _answers(reply_to, me),
        reply_to=str(id_number(reply_to["message_id"])) if reply_to else None,
        quoted=_quoted(message, me, fetch),
        forwarded_from=_origin(message["forward_origin"]) if message.get("forward_origin") else "",
        part_of=f"telegram:{chat}:album:{album}" if (album := message.get("media_group_id")) else None,
        # Telegram's programs cut a long text at its last blank line, as far before the limit as half of it.
        long=utf16_len(message.get("text") or "") > _MAX_TEXT // 2,
        sent_at=_instant(message["edit_date"] if edited and message.get("edit_date") else message["date"]),
        files=files,
    )


def _moved(update: Raw, message: Raw, me: TelegramBot) -> Arrival | None:
    """A group that became a supergroup says so twice: in the old chat and in the new one."""
    chat = id_number(message["chat"]["id"])
    if message.get("migrate_to_chat_id"):
        old, new = chat, id_number(message["migrate_to_chat_id"])
    elif message.get("migrate_from_chat_id"):
        old, new = id_number(message["migrate_from_chat_id"]), chat
    else:
        return None
    return Arrival(
        id=_id(update, me),
        chat_id=str(new),
        text="",
        platform_id=str(id_number(message["message_id"])),
        sender=_sender(message),
        group=True,
        group_ids=(str(new), str(old)),
        sent_at=_instant(message["date"]),
        moved_from=str(old),
    )


def _pressed(update: Raw, me: TelegramBot) -> Arrival | SkippedUpdate:
    query: Raw = update["callback_query"]
    message = query.get("message")
    if not message or not str(query.get("data") or "").strip():
        return SkippedUpdate("callback_query", "no message of a chat, or no value")
    group = message["chat"]["type"] != "private"
    return Arrival(
        id=_id(update, me),
        chat_id=_chat_id(message),
        text=str(query["data"]),
        kind="action",
        platform_id=str(id_number(message["message_id"])),
        sender=_person(query["from"]),
        from_bot=bool(query["from"].get("is_bot")),
        group=group,
        group_ids=(str(id_number(message["chat"]["id"])),) if group else (),
        mentioned=True,
        meta={PRESS: str(query["id"])},
    )


def _id(update: Raw, me: TelegramBot) -> str:
    return f"telegram:{me.id}:{id_number(update['update_id'])}"


def _chat_id(message: Raw) -> str:
    chat = id_number(message["chat"]["id"])
    if message.get("is_topic_message"):
        return f"{chat}:topic:{id_number(message['message_thread_id'])}"
    return str(chat)


def _instant(seconds: int) -> datetime:
    return datetime.fromtimestamp(seconds, UTC)


def _sender(message: Raw) -> Sender:
    """Say who wrote; for a channel, and for an administrator who shows the group's name, that is the chat."""
    chat = message.get("sender_chat") or (None if message.get("from") else message["chat"])
    if chat is None:
        return _person(message["from"])
    name = chat.get("title") or chat.get("first_name") or ""
    return Sender(id=str(id_number(chat["id"])), name=str(name), username=str(chat.get("username") or ""))


def _person(user: Raw) -> Sender:
    names = (str(user.get("first_name") or ""), str(user.get("last_name") or ""))
    return Sender(
        id=str(id_number(user["id"])),
        name=" ".join(filter(None, names)),
        username=str(user.get("username") or ""),
    )


def _from_bot(message: Raw) -> bool:
    """Say whether a program wrote; what people write in a chat's name carries a bot of Telegram's own."""
    return not message.get("sender_chat") and bool((message.get("from") or {}).get("is_bot"))


def _addressed(text: str, me: TelegramBot) -> tuple[str, bool | None]:
    """Take the bot's name off a command; say whether it is for us, None where it names nobody."""
    text = re.sub(rf"\A\s*@{re.escape(me.username)}[,:]?\s+(?=/)", "", text, flags=re.IGNORECASE)
    found = _ADDRESSED.match(text)
    if found is None:
        return text, None
    command, name = found.groups()
    return command + text[found.end() :], name.casefold() == me.username.casefold()


def _names(message: Raw, me: TelegramBot) -> bool:
    """Say whether an entity is the bot's whole @username, or points at the bot."""
    if message.get("rich_message"):
        users = (
            each["user"] for each in inner(message["rich_message"]) if each.get("type") == "text_mention"
        )
        return any(user["id"] == me.id for user in users) or me.username.casefold() in map(
            str.casefold, names_in(words_of(message))
        )
    text = str(message.get("text") or message.get("caption") or "")
    units = text.encode("utf-16-le", "surrogatepass")
    for entity in message.get("entities") or message.get("caption_entities") or ():
        if entity["type"] == "text_mention" and entity["user"]["id"] == me.id:
            return True
        if entity["type"] == "mention":
            start, length = int(entity["offset"]), int(entity["length"])
            named = units[2 * start : 2 * (start + length)].decode("utf-16-le", "replace")
            if named.casefold() == f"@{me.username}".casefold():
                return True
    return False


def _replied(message: Raw) -> Raw | None:
    """Return the message that this one answers; within a topic, its opening is none."""
    replied: Raw | None = message.get("reply_to_message")
    if not replied or "forum_topic_created" in replied:
        return None
    return replied


def _quoted(message: Raw, me: TelegramBot, fetch: Fetch) -> Quote | None:
    """Read what a message replies to, in its chat or in another one; the marked part where one is marked."""
    try:
        replied, part = _replied(message), message.get("quote") or {}
        source: Raw = replied or message.get("external_reply") or message.get("reply_to_story") or {}
        if not (source or part):
            return None
        answered = part_answered(message, source)
        marked = answered or with_entities(str(part.get("text") or ""), part.get("entities") or ())
        whole = "\n".join(filter(None, (words_of(source), describe(source))))
        if is_service(source):
            whole = "[service message]"
        elif source is message.get("reply_to_story"):
            whole = describe({"story": source})
        partial = bool(answered or (marked and part.get("is_manual")))
        files = tuple(_files(source, fetch))
        text = (marked if partial else whole or marked) or ("" if files else _UNREADABLE)
        origin = source.get("origin") or source.get("forward_origin")
        number = source.get("message_id")
        return Quote(
            author=_origin(origin) if origin else _author(source),
            text=text,
            message_id=str(id_number(number)) if number is not None else None,
            partial=partial,
            own=_answers(source, me) and not origin,
            files=files,
        )
    except _FAULTS:
        return Quote(text=_UNREADABLE)


def _author(source: Raw) -> str:
    if not any(source.get(field) for field in ("from", "sender_chat", "chat")):
        return ""
    sender = _sender(source)
    return sender.name or sender.username


def _origin(origin: Raw) -> str:
    """Name who wrote a message first: a person, one who is hidden, a group or a channel."""
    chat = origin.get("sender_chat") or origin.get("chat")
    if origin.get("sender_user"):
        found = _person(origin["sender_user"])
        return found.name or found.username or found.id
    if chat:
        names = (
            chat.get("title") or chat.get("username") or chat.get("first_name"),
            origin.get("author_signature"),
        )
        return ", ".join(str(name) for name in names if name) or "a chat"
    return str(origin.get("sender_user_name") or "somebody")


def _answers(replied: Raw | None, me: TelegramBot) -> bool:
    return bool(replied) and ((replied or {}).get("from") or {}).get("id") == me.id


def _files(message: Raw, fetch: Fetch) -> Iterator[File]:
    for holder in (*media_of(message), *held_media(message)):
        yield from _files(holder, fetch)
    # Of paid media and polls a live photo is not given as a photo as well.
    if photo := message.get("photo") or (message.get("live_photo") or {}).get("photo"):
        # A text by a number would be as many texts.
        largest = max(photo, key=lambda size: int(size.get("width", 0)) * int(size.get("height", 0)))
        yield _file("photo", largest, "image/jpeg", fetch)
    plain: tuple[tuple[str, FileKind, str], ...] = (
        ("animation", "video", "video/mp4"),
        ("video", "video", "video/mp4"),
        ("video_note", "video", "video/mp4"),
        ("voice", "voice", "audio/ogg"),
        ("voice_note", "voice", "audio/ogg"),
        ("audio", "audio", "audio/mpeg"),
        ("document", "document", "application/octet-stream"),
    )
    for field, kind, mime in plain:
        # An animation comes with the same file as a document, for old programs.
        if message.get(field) and not (field == "document" and message.get("animation")):
            yield _file(kind, message[field], mime, fetch)


def _file(kind: FileKind, raw: Raw, mime: str, fetch: Fetch) -> File:
    file_id = str(raw["file_id"])
    size = raw.get("file_size")
    return File(
        kind=kind,
        name=str(raw.get("file_name") or ""),
        mime=str(raw.get("mime_type") or mime),
        size=size if isinstance(size, int) else None,
        fetch=lambda: fetch(file_id),
    )
