"""Telegram: receives by long polls, sends by the Bot API, a session for each chat and forum topic."""

from __future__ import annotations

import asyncio
import mimetypes
import re
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any, Final

import structlog

import durable
from channels.access import KnownAdmins
from channels.base import Channel, Chunk, Emit, Rendered, Site
from channels.errors import ChannelError, MessageGone, SendNever, SendUnknown
from channels.tables import TelegramTable as Table
from channels.telegram.client import Wire
from channels.telegram.formatting import render
from channels.telegram.polling import OpenPresses, TelegramIngress, Times
from channels.telegram.updates import PRESS, chat_and_topic
from channels.text import best_cut, reach, utf16_len

log = structlog.get_logger(__name__)

_MAX_PHOTO_BYTES: Final = 10 * 2**20
_MAX_DESCRIPTION: Final = 256
# In UTF-16 code units, as Telegram counts.
_MAX_CAPTION: Final = 1_024
_COMMAND: Final = re.compile(r"[a-z0-9_]{1,32}")
_ABOUT_ENTITIES: Final = re.compile(r"entit", re.IGNORECASE)
_ABOUT_THE_FILE: Final = re.compile(r"photo|image|video|audio|voice|file", re.IGNORECASE)
_GONE: Final = re.compile(
    r"message to edit not found|message can't be edited|MESSAGE_ID_INVALID", re.IGNORECASE
)
_ABOUT_THE_QUESTION: Final = re.compile(
    r"(reply|replied|to be replied) +(message +)?not found|REPLY_MESSAGE_ID_INVALID", re.IGNORECASE
)
_ABOUT_THE_TOPIC: Final = re.compile(
    r"message thread not found|TOPIC_DELETED|TOPIC_ID_INVALID|topic (was )?(deleted|not found)", re.IGNORECASE
)
_NOT_MODIFIED: Final = re.compile(r"message is not modified", re.IGNORECASE)
# What is shown in the chat itself; everything else is a document.
_METHODS: Final = {
    "image/jpeg": "photo",
    "image/png": "photo",
    "image/webp": "photo",
    "video/mp4": "video",
    "audio/mpeg": "audio",
    "audio/mp4": "audio",
    "audio/ogg": "voice",
    "audio/opus": "voice",
}


def build(table: Table, site: Site) -> Channel:
    """Return the adapter; nothing is asked of Telegram yet."""
    return Telegram(table, site)


class Telegram:
    """One bot: ``Channel``, ``Types``, ``Edits``, ``Registers``, ``Admins`` and ``Presses`` of Telegram.

    Args:
        times: how the receiving side pauses.
        clock: seconds that never go back.
    """

    name = "telegram"
    safe_to_repeat = False
    buttons_max = 8

    def __init__(
        self,
        table: Table,
        site: Site,
        *,
        times: Times | None = None,
        clock: Callable[[], float] = durable.monotonic,
    ) -> None:
        self._table = table
        self._site = site
        self._times = times or Times()
        self._wire = Wire(table, grace_s=self._times.grace_s)
        self._presses = OpenPresses(self._wire, rests_after_s=self._times.press_s)
        self._admins = KnownAdmins(clock)

    async def run(self, emit: Emit) -> None:
        """Receive until cancelled; an outage is waited for, a refused token ends it."""
        await TelegramIngress(self._wire, self._table, self._site, self._times, self._presses).run(emit)

    def split(self, text: str) -> list[Rendered]:
        """Render Markdown in chunks of Telegram's size."""
        return render(text)

    async def send(self, chunk: Chunk) -> str:
        """Deliver one chunk; text whose entities are refused goes as plain text.

        A short answer to a press is shown to the presser alone, as no message, while the button still turns.
        """
        press = str(chunk.meta.get(PRESS) or "")
        words = chunk.content.plain if isinstance(chunk.content, Rendered) and not chunk.buttons else ""
        if press and words and await self._presses.tell(press, words):
            return f"{PRESS}:{press}"
        fields = _address(chunk.chat_id)
        if chunk.reply_to is not None and chunk.reply_to.isdecimal():
            fields["reply_parameters"] = {
                "message_id": int(chunk.reply_to),
                "allow_sending_without_reply": True,
            }
        if chunk.buttons:
            row = [{"text": each.label, "callback_data": each.value} for each in chunk.buttons]
            fields["reply_markup"] = {"inline_keyboard": [row]}
        try:
            message = await self._post_anyway(chunk, fields)
            return str(int(message["message_id"]))
        except (KeyError, TypeError, ValueError) as error:
            # It answered with success, so that the message may well stand there.
            raise SendUnknown("Telegram's answer contains no message") from error

    async def edit(self, chat_id: str, platform_id: str, content: Rendered) -> None:
        """Replace the text of a message; raises ``MessageGone`` where that cannot be done any more."""
        if not platform_id.isdecimal():
            raise MessageGone("not the id of a Telegram message")
        fields = {"chat_id": _address(chat_id)["chat_id"], "message_id": int(platform_id)}
        try:
            await self._say("editMessageText", content, fields)
        except SendNever as error:
            if _GONE.search(str(error)):
                raise MessageGone(str(error)) from error
            # An edit whose answer was lost is made again, and refused as changing nothing.
            if not _NOT_MODIFIED.search(str(error)):
                raise

    async def typing(self, chat_id: str) -> None:
        """Show for five seconds that an answer is being written."""
        await self._wire.call("sendChatAction", action="typing", **_address(chat_id))

    async def register(self, commands: Mapping[str, str]) -> None:
        """Replace the menu; a name that Telegram does not allow is left out."""
        menu = [
            {"command": name, "description": (text or name)[:_MAX_DESCRIPTION]}
            for name, text in commands.items()
            if _COMMAND.fullmatch(name)
        ]
        await self._wire.call("setMyCommands", commands=menu)

    async def is_admin(self, chat_id: str, person_id: str) -> bool:
        """Say whether this person administers this group, as ``Admins.is_admin``.

        Who writes in the group's own name is one of its administrators.
        """
        chat = str(_address(chat_id)["chat_id"])
        if person_id == chat:
            return True
        known = self._admins.known(chat, person_id)
        if known is not None:
            return known
        try:
            member = await self._wire.call("getChatMember", chat_id=chat, user_id=person_id)
            answer = member["status"] in ("creator", "administrator")
        except SendNever:
            # As for somebody whom Telegram does not know there.
            return False
        except (KeyError, TypeError) as error:
            raise ChannelError("Telegram described a member in an unknown form") from error
        self._admins.note(chat, person_id, answer)
        return answer

    async def aclose(self) -> None:
        """Close the connections."""
        await self._wire.aclose()

    async def _post_anyway(self, chunk: Chunk, fields: dict[str, Any]) -> Any:
        """Send without what was deleted while the model thought: the question, the topic, or both."""
        while True:
            try:
                return await self._post(chunk, fields)
            except SendNever as error:
                if "reply_parameters" in fields and _ABOUT_THE_QUESTION.search(str(error)):
                    # In a forum Telegram may insist on the question.
                    del fields["reply_parameters"]
                elif fields["message_thread_id"] is not None and _ABOUT_THE_TOPIC.search(str(error)):
                    log.warning("topic.gone", chat=fields["chat_id"], topic=fields["message_thread_id"])
                    fields["message_thread_id"] = None
                else:
                    raise

    async def _post(self, chunk: Chunk, fields: Mapping[str, Any]) -> Any:
        if isinstance(chunk.content, Path):
            # Without entities it is plain text, whatever it looks like.
            beside = {"caption": _caption(chunk.caption)} if chunk.caption else {}
            return await self._send_file(chunk.content, {**fields, **beside})
        return await self._say("sendMessage", chunk.content, fields)

    async def _say(self, method: str, content: Rendered, fields: Mapping[str, Any]) -> Any:
        entities = list(content.markup) if isinstance(content.markup, (tuple, list)) else []
        try:
            return await self._wire.call(method, text=content.plain, entities=entities or None, **fields)
        except SendNever as error:
            if not entities or not _ABOUT_ENTITIES.search(str(error)):
                raise
            # Telegram counts entities by its own rules, which change without notice: the words matter more.
            log.warning("rendering.refused", error=str(error))
        return await self._wire.call(method, text=content.plain, **fields)

    async def _send_file(self, path: Path, fields: Mapping[str, Any]) -> Any:
        try:
            size = (await asyncio.to_thread(path.stat)).st_size
        except OSError as error:
            raise SendNever(f"the file cannot be read: {error.strerror}") from error
        kind = _METHODS.get(mimetypes.guess_type(path.name)[0] or "", "document")
        if kind == "photo" and size > _MAX_PHOTO_BYTES:
            kind = "document"
        try:
            return await self._wire.upload(kind, path, **fields)
        except SendNever as error:
            if kind == "document" or not _ABOUT_THE_FILE.search(str(error)):
                raise
            # Telegram looks into the file: what is no photo to it, by size or content, is still a document.
            log.info("file.sent_as_document", kind=kind, error=str(error))
        return await self._wire.upload("document", path, **fields)


def _caption(caption: str) -> str:
    """Cut what Telegram would refuse together with its file; dots stand for the rest."""
    if utf16_len(caption) <= _MAX_CAPTION:
        return caption
    log.warning("caption.cut", units=utf16_len(caption))
    end = reach(caption, 0, _MAX_CAPTION - 1, utf16_len)
    return f"{caption[: best_cut(caption, 0, end)].rstrip()}…"


def _address(chat_id: str) -> dict[str, Any]:
    try:
        chat, topic = chat_and_topic(chat_id)
    except ValueError:
        raise SendNever(f"{chat_id} is not a Telegram chat") from None
    return {"chat_id": chat, "message_thread_id": topic}
