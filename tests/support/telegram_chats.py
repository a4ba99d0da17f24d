"""What Telegram's server knows of chats, the methods that act on them, and how it reads a text."""

from __future__ import annotations

import json
import re
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

from tests.support.telegram_faults import Refused, bad_request

MAX_DOWNLOAD_BYTES = 20 * 2**20
MAX_UPLOAD_BYTES = 50 * 2**20
KINDS_OF_FILE = ("photo", "document", "voice", "audio", "video")
ACTIONS = {
    *("typing", "upload_photo", "record_video", "upload_video", "record_voice", "upload_voice"),
    *("upload_document", "choose_sticker", "find_location", "record_video_note", "upload_video_note"),
}
NOT_MODIFIED = (
    "message is not modified: specified new message content and reply markup are exactly the same"
    " as a current content and reply markup of the message"
)

# File name, content.
Upload = tuple[str, bytes]


@dataclass
class Sent:
    """One accepted send; ``text`` and ``entities`` follow its edits, ``versions`` keeps every text it had."""

    method: str
    chat_id: int
    message_id: int
    text: str
    entities: list[dict[str, Any]]
    at: float
    reply_to: int | None = None
    thread: int | None = None
    file: Upload | None = None
    versions: list[str] = field(default_factory=list)


@dataclass
class Edit:
    chat_id: int
    message_id: int
    text: str
    entities: list[dict[str, Any]]
    at: float


@dataclass
class Action:
    chat_id: int
    action: str
    thread: int | None
    at: float


@dataclass
class Chat:
    id: int
    type: str
    title: str = ""
    forum: bool = False
    threads: set[int] = field(default_factory=set)
    members: dict[int, dict[str, Any]] = field(default_factory=dict)
    admins: set[int] = field(default_factory=set)
    messages: dict[int, dict[str, Any]] = field(default_factory=dict)

    def shown(self) -> dict[str, Any]:
        chat: dict[str, Any] = {"id": self.id, "type": self.type}
        if self.type == "private":
            person = next(iter(self.members.values()), {})
            chat |= {name: person[name] for name in ("first_name", "username") if name in person}
        else:
            chat["title"] = self.title or f"Chat {self.id}"
        return chat | ({"is_forum": True} if self.forum else {})


MAX_ALERT = 200
MAX_CALLBACK_BYTES = 64


class Chats:
    """State and methods; every method takes the parameters and the uploads of a request."""

    def __init__(self, me: dict[str, Any]) -> None:
        self.me = me
        self.chats: dict[int, Chat] = {}
        self.moved: dict[int, int] = {}
        self.sent: list[Sent] = []
        self.edits: list[Edit] = []
        self.actions: list[Action] = []
        # The words that whoever pressed was shown, by the id of the press.
        self.answered: dict[str, str] = {}
        self.commands: list[dict[str, str]] = []
        self.files: dict[str, tuple[str, bytes]] = {}
        self._last_message = 0
        self.methods: dict[str, Callable[[dict[str, Any], dict[str, Upload]], Any]] = {
            "getme": lambda params, files: self.me,
            "sendmessage": self._send_message,
            "editmessagetext": self._edit,
            "sendchataction": self._action,
            "getfile": self._get_file,
            "setmycommands": self._set_commands,
            "getchatmember": self._get_member,
            "answercallbackquery": self._answer_press,
        }
        for kind in KINDS_OF_FILE:
            self.methods[f"send{kind}"] = self._sender_of(kind)

    def _answer_press(self, params: dict[str, Any], files: dict[str, Upload]) -> bool:
        query, text = str(params.get("callback_query_id")), str(params.get("text") or "")
        if len(text) > MAX_ALERT:
            raise bad_request("MESSAGE_TOO_LONG")
        if query in self.answered:
            raise bad_request("query is too old and response timeout expired or query ID is invalid")
        self.answered[query] = text
        return True

    def next_message_id(self, chat: Chat) -> int:
        """Number a message: supergroups and channels count on their own, all other chats together."""
        if chat.type in ("supergroup", "channel"):
            return max(chat.messages, default=0) + 1
        self._last_message += 1
        return self._last_message

    def chat_of(self, params: dict[str, Any]) -> Chat:
        try:
            chat_id = int(params["chat_id"])
        except KeyError:
            raise bad_request("chat_id is empty") from None
        except (TypeError, ValueError):
            raise bad_request("chat not found") from None
        if chat_id in self.moved:
            to = self.moved[chat_id]
            raise bad_request("group chat was upgraded to a supergroup chat", migrate_to_chat_id=to)
        if chat_id not in self.chats:
            raise bad_request("chat not found")
        return self.chats[chat_id]

    def _post(self, chat: Chat, params: dict[str, Any], content: dict[str, Any]) -> dict[str, Any]:
        thread = int(params["message_thread_id"]) if params.get("message_thread_id") else None
        if thread is not None and thread not in chat.threads:
            raise bad_request("message thread not found")
        message: dict[str, Any] = {
            "message_id": 0,
            "from": self.me,
            "chat": chat.shown(),
            "date": int(time.time()),
        }
        if (answered := self._answered(chat, params)) is not None:
            message["reply_to_message"] = {k: v for k, v in answered.items() if k != "reply_to_message"}
        if thread is not None:
            message |= {"message_thread_id": thread, "is_topic_message": chat.forum}
        message["message_id"] = self.next_message_id(chat)
        chat.messages[message["message_id"]] = message | content
        return message | content

    def _answered(self, chat: Chat, params: dict[str, Any]) -> dict[str, Any] | None:
        reply = as_json(params.get("reply_parameters")) or {}
        wanted = reply.get("message_id") or params.get("reply_to_message_id")
        if not wanted:
            return None
        found = chat.messages.get(int(wanted))
        lenient = reply.get("allow_sending_without_reply", params.get("allow_sending_without_reply"))
        if found is None and str(lenient).lower() != "true":
            raise bad_request("message to be replied not found")
        return found

    def _record(self, method: str, message: dict[str, Any], file: Upload | None = None) -> None:
        text = message.get("text", message.get("caption", ""))
        reply_to = message.get("reply_to_message", {}).get("message_id")
        entities = message.get("entities", message.get("caption_entities", []))
        sent = Sent(method, message["chat"]["id"], message["message_id"], text, entities, time.monotonic())
        sent.reply_to, sent.thread, sent.file = reply_to, message.get("message_thread_id"), file
        sent.versions.append(text)
        self.sent.append(sent)

    def _send_message(self, params: dict[str, Any], files: dict[str, Upload]) -> dict[str, Any]:
        chat = self.chat_of(params)
        text, entities = read_text(params)
        content = {"text": text} | ({"entities": entities} if entities else {}) | _markup(params)
        message = self._post(chat, params, content)
        self._record("sendMessage", message)
        return message

    def _edit(self, params: dict[str, Any], files: dict[str, Upload]) -> dict[str, Any]:
        chat = self.chat_of(params)
        message = chat.messages.get(int(params.get("message_id") or 0))
        if message is None:
            raise bad_request("message to edit not found")
        if message.get("from") != self.me or "text" not in message:
            raise bad_request("message can't be edited")
        text, entities = read_text(params)
        if text == message["text"] and entities == message.get("entities", []):
            raise bad_request(NOT_MODIFIED)
        message |= {"text": text, "edit_date": int(time.time())}
        message.pop("entities", None)
        # An edit without a keyboard takes the one away that was there.
        message.pop("reply_markup", None)
        message |= ({"entities": entities} if entities else {}) | _markup(params)
        self.edits.append(Edit(chat.id, message["message_id"], text, entities, time.monotonic()))
        for sent in self.sent:
            if (sent.chat_id, sent.message_id) == (chat.id, message["message_id"]):
                sent.text, sent.entities = text, entities
                sent.versions.append(text)
        return message

    def _action(self, params: dict[str, Any], files: dict[str, Upload]) -> bool:
        chat = self.chat_of(params)
        if params.get("action") not in ACTIONS:
            raise bad_request("wrong parameter action in request")
        thread = int(params["message_thread_id"]) if params.get("message_thread_id") else None
        self.actions.append(Action(chat.id, params["action"], thread, time.monotonic()))
        return True

    def keep_file(self, kind: str, name: str, content: bytes) -> str:
        file_id = f"file-{len(self.files) + 1}"
        ending = name.rpartition(".")[2] if "." in name else "bin"
        self.files[file_id] = (f"{kind}s/file_{len(self.files) + 1}.{ending}", content)
        return file_id

    def described(self, kind: str, file_id: str, name: str, mime: str = "") -> Any:
        size = len(self.files[file_id][1])
        about: dict[str, Any] = {"file_id": file_id, "file_unique_id": f"u{file_id}", "file_size": size}
        if kind == "photo":
            small = {
                "file_id": f"{file_id}-small",
                "file_unique_id": f"s{file_id}",
                "file_size": min(size, 9),
            }
            return [small | {"width": 90, "height": 60}, about | {"width": 900, "height": 600}]
        if kind in ("voice", "audio", "video"):
            about["duration"] = 3
        if kind == "video":
            about |= {"width": 640, "height": 360}
        if kind != "voice":
            about["file_name"] = name
        return about | ({"mime_type": mime} if mime else {})

    def _sender_of(self, kind: str) -> Callable[[dict[str, Any], dict[str, Upload]], dict[str, Any]]:
        def send(params: dict[str, Any], files: dict[str, Upload]) -> dict[str, Any]:
            chat = self.chat_of(params)
            caption, entities = read_text(params, field="caption")
            given = str(params.get(kind, ""))
            upload = files.get(given.removeprefix("attach://") or kind)
            if upload is None and given not in self.files:
                raise bad_request(f"there is no {kind} in the request")
            if upload is not None and not upload[1]:
                raise bad_request("file must be non-empty")
            if upload is not None and len(upload[1]) > (10 * 2**20 if kind == "photo" else MAX_UPLOAD_BYTES):
                raise Refused(413, "Request Entity Too Large")
            file_id = self.keep_file(kind, *upload) if upload else given
            content: dict[str, Any] = {kind: self.described(kind, file_id, upload[0] if upload else "")}
            content |= {"caption": caption} if caption else {}
            content |= {"caption_entities": entities} if entities else {}
            message = self._post(chat, params, content)
            self._record(f"send{kind.capitalize()}", message, upload or self.files[given])
            return message

        return send

    def _get_file(self, params: dict[str, Any], files: dict[str, Upload]) -> dict[str, Any]:
        file_id = str(params.get("file_id", "")).removesuffix("-small")
        if file_id not in self.files:
            raise bad_request("wrong file_id or the file is temporarily unavailable")
        path, content = self.files[file_id]
        if len(content) > MAX_DOWNLOAD_BYTES:
            raise bad_request("file is too big")
        about = {"file_id": file_id, "file_unique_id": f"u{file_id}", "file_size": len(content)}
        return about | {"file_path": path}

    def _set_commands(self, params: dict[str, Any], files: dict[str, Upload]) -> bool:
        commands = as_json(params.get("commands"))
        if not isinstance(commands, list):
            raise bad_request("can't parse commands: expected an Array of BotCommand")
        if len(commands) > 100:
            raise bad_request("BOT_COMMANDS_TOO_MUCH")
        for command in commands:
            if not re.fullmatch(r"/?[a-z0-9_]{1,32}", str(command.get("command", ""))):
                raise bad_request("BOT_COMMAND_INVALID")
            if not 1 <= len(str(command.get("description", ""))) <= 256:
                raise bad_request("BOT_COMMAND_DESCRIPTION_INVALID")
        self.commands = commands
        return True

    def _get_member(self, params: dict[str, Any], files: dict[str, Upload]) -> dict[str, Any]:
        chat, user_id = self.chat_of(params), int(params.get("user_id") or 0)
        user = self.me if user_id == self.me["id"] else chat.members.get(user_id)
        if user is None:
            raise bad_request("member not found")
        if user_id not in chat.admins:
            return {"user": user, "status": "member"}
        return {"user": user, "status": "administrator"}


def _markup(params: dict[str, Any]) -> dict[str, Any]:
    """Return the keyboard below a message, refused where a button of it is."""
    markup = as_json(params.get("reply_markup"))
    if not markup:
        return {}
    for row in markup["inline_keyboard"]:
        for button in row:
            if not button["text"] or not 1 <= len(button["callback_data"].encode()) <= MAX_CALLBACK_BYTES:
                raise bad_request("BUTTON_DATA_INVALID")
    return {"reply_markup": markup}


MAX_TEXT = 4096
MAX_CAPTION = 1024
MAX_RAW_BYTES = 2**15
MAX_ENTITIES = 100
KINDS = {
    *("mention", "hashtag", "cashtag", "bot_command", "url", "email", "phone_number", "bold", "italic"),
    *("underline", "strikethrough", "spoiler", "blockquote", "expandable_blockquote", "code", "pre"),
    *("text_link", "text_mention", "custom_emoji"),
}


def utf16(text: str) -> int:
    return len(text.encode("utf-16-le", "surrogatepass")) // 2


def read_text(params: dict[str, Any], *, field: str = "text") -> tuple[str, list[dict[str, Any]]]:
    """Return text and entities as the platform takes them, or refuse."""
    raw = params.get(field) or ""
    if not isinstance(raw, str):
        raise bad_request(f'field "{field}" must be of type String')
    if len(raw.encode(errors="surrogatepass")) > MAX_RAW_BYTES:
        raise bad_request("text is too long" if field == "text" else "message caption is too long")
    try:
        raw.encode()
    except UnicodeEncodeError:
        raise bad_request("strings must be encoded in UTF-8") from None
    listed = as_json(params.get("entities" if field == "text" else "caption_entities")) or []
    entities = check_entities(raw, listed)
    if field == "text" and not raw.strip():
        raise bad_request("message text is empty")
    if utf16(raw) > (MAX_TEXT if field == "text" else MAX_CAPTION):
        raise bad_request("message is too long" if field == "text" else "message caption is too long")
    return raw, entities


def as_json(value: Any) -> Any:
    """Read what form fields carry as JSON text; leave what a JSON body carries as it is."""
    if not isinstance(value, str):
        return value
    try:
        return json.loads(value)
    except ValueError:
        raise bad_request("object expected as parameter; can't parse JSON") from None


def check_entities(text: str, entities: Any) -> list[dict[str, Any]]:
    """Return the first hundred entities; refuse one that leaves the text or cuts a character in two."""
    if not isinstance(entities, list):
        raise bad_request("can't parse entities: expected an Array of MessageEntity")
    bounds, at = {0}, 0
    for char in text:
        at += 2 if ord(char) > 0xFFFF else 1
        bounds.add(at)
    for entity in entities:
        if not isinstance(entity, dict) or not isinstance(entity.get("type"), str):
            raise bad_request("can't parse MessageEntity: expected an Object")
        offset, length = entity.get("offset"), entity.get("length")
        if not isinstance(offset, int) or not isinstance(length, int):
            raise bad_request('can\'t parse MessageEntity: field "offset" must be a Number')
        if entity["type"] not in KINDS:
            raise bad_request("can't parse MessageEntity: unsupported type specified")
        if offset + length > at or offset < 0 or length < 0:
            raise bad_request(
                f"entity beginning at UTF-16 offset {offset} ends after the end of the text"
                f" at UTF-16 offset {offset + length}"
            )
        if offset not in bounds:
            raise bad_request(f"entity begins in a middle of a UTF-16 symbol at byte offset {offset}")
        if offset + length not in bounds:
            raise bad_request(
                f"entity beginning at UTF-16 offset {offset} ends in a middle of a UTF-16 symbol"
                f" at byte offset {offset + length}"
            )
    return [entity for entity in entities if entity["length"]][:MAX_ENTITIES]
