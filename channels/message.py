"""The bodies of both queues: Inbound, what a person wrote, and Outbound, what goes back to a chat."""

from __future__ import annotations

import re
from collections.abc import Mapping
from datetime import UTC, datetime
from typing import Any, Final, Literal

import orjson
from pydantic import BaseModel, ConfigDict, Field, ValidationError
from pydantic_core import PydanticSerializationError

import durable
from channels.errors import Address, Unreadable
from durable import whole_text

MAX_ID_BYTES: Final = 200
MAX_OUT_ID_BYTES: Final = 255
MAX_KEY_BYTES: Final = 1024
MAX_TEXT_BYTES: Final = 2**20
# In an Inbound's meta: its platform shows that an answer comes, until something is said about it.
PROMISED: Final = "promised"
# In an Inbound's meta: the ids of all parts of its album or long text.
PARTS: Final = "parts"
# What a queue, a transcript and SQLite can hold: JSON itself has no bound for a number.
_INT64: Final = 2**63
_CHANNEL = re.compile(r"[a-z][a-z0-9_]{0,31}")
_REQUIRED: Final = ("v", "id", "key", "channel", "chat_id", "text")


class _Body(BaseModel):
    model_config = ConfigDict(frozen=True, extra="ignore", strict=True)

    def to_bytes(self) -> bytes:
        """Encode as the UTF-8 JSON of a queue body."""
        return self.__pydantic_serializer__.to_json(self)


class Sender(_Body):
    """Who wrote: the platform's numeric id as text, the shown name, the user name."""

    id: str = ""
    name: str = ""
    username: str = ""


class Attachment(_Body):
    """A file that comes along; ``ref`` is its path in the workspace, ``size`` in bytes.

    ``caption`` is shown beside a file that is sent.
    """

    kind: str = "file"
    name: str = ""
    mime: str = ""
    size: int = Field(default=0, ge=-_INT64, lt=_INT64)
    ref: str = ""
    caption: str = ""


class Quoted(_Body):
    """The message that an Inbound replies to: words of ``author``, who may be anybody.

    ``own`` says that the bot wrote it, ``partial`` that ``text`` is the part which the sender marked.
    ``opens`` says that a thread began from it: it belongs to the thread's first turn alone.
    """

    author: str = ""
    text: str = ""
    message_id: str | None = None
    attachments: list[Attachment] = Field(default_factory=list)
    partial: bool = False
    own: bool = False
    opens: bool = False


class Button(_Body):
    """What a person may press below a message: ``value`` comes back as the text of an ``action``.

    A value has at most 64 bytes, which every platform takes.
    """

    label: str
    value: str


class Inbound(_Body):
    """One accepted message. Required: v, id, key, channel, chat_id, text.

    ``agent`` names who shall answer in the chat from this message on; empty: whoever does so anyway.
    ``job_agent`` names whose job asks this, and changes nothing of the chat; empty: whoever answers there.
    ``quoted`` is the message that it replies to, ``forwarded_from`` names who wrote a forwarded text.
    ``part_of`` is the same for all parts of one album or of one long text that the platform cut.
    """

    v: int = Field(ge=1, le=1)
    id: str
    key: str
    channel: str
    chat_id: str
    text: str
    kind: Literal["message", "edit", "command", "action", "result"] = "message"
    platform_id: str | None = None
    sender: Sender = Field(default_factory=Sender)
    attachments: list[Attachment] = Field(default_factory=list)
    group: bool = False
    mentioned: bool = False
    reply_to: str | None = None
    quoted: Quoted | None = None
    forwarded_from: str | None = None
    part_of: str | None = None
    answer_to: str | None = None
    sent_at: str | None = None
    received_at: str | None = None
    source: Literal["interactive", "cron"] = "interactive"
    cron_job_id: str | None = None
    agent: str = ""
    job_agent: str = ""
    meta: dict[str, Any] = Field(default_factory=dict)

    @property
    def files(self) -> list[Attachment]:
        """All that comes along, with the message that it replies to."""
        return [*self.attachments, *(self.quoted.attachments if self.quoted is not None else ())]


class Outbound(_Body):
    """One text for a chat: the reply to ``in_reply_to``, a notice about it, or something unasked.

    ``buttons`` stand below it where the platform has any; its text says what to type where it has none.
    ``replaced_by`` is the id of a later Outbound that takes its place where the platform can edit.
    """

    v: int = Field(default=1, ge=1, le=1)
    id: str
    key: str
    channel: str
    chat_id: str
    text: str
    in_reply_to: str | None = None
    reply_to: str | None = None
    kind: Literal["reply", "notice", "proactive"] = "reply"
    attachments: list[Attachment] = Field(default_factory=list)
    created_at: str = ""
    buttons: list[Button] = Field(default_factory=list)
    replaced_by: str | None = None
    meta: dict[str, Any] = Field(default_factory=dict)

    def to_bytes(self) -> bytes:
        """Encode as ``Inbound`` is, with what people read made text that UTF-8 has: an answer goes out."""
        try:
            return super().to_bytes()
        except PydanticSerializationError:
            read: dict[str, Any] = {"text": whole_text(self.text)}
            read["attachments"] = [
                each.model_copy(update={"name": whole_text(each.name), "caption": whole_text(each.caption)})
                for each in self.attachments
            ]
            read["buttons"] = [
                each.model_copy(update={"label": whole_text(each.label)}) for each in self.buttons
            ]
            return self.__pydantic_serializer__.to_json(self.model_copy(update=read))


def id_number(value: Any) -> int:
    """Return a number by which a platform knows something.

    Raises:
        TypeError, ValueError, OverflowError: it is none, or none of 64 bits: the id of a letter that is made
            of it would be longer than a queue takes.
    """
    found = int(value)
    if abs(found) >= 2**64:
        raise ValueError("not a 64-bit number")
    return found


def now_text(at: datetime | None = None) -> str:
    """Write an instant as ISO 8601 UTC with microseconds."""
    return (at or durable.now()).astimezone(UTC).isoformat(timespec="microseconds")


def times(inbound: Inbound, queued_at: datetime | None = None) -> dict[str, Any]:
    """Return what is kept with a message of its way: when it was accepted, when it came to its lane."""
    found = {"received_at": inbound.received_at} if inbound.received_at else {}
    if queued_at is not None:
        found["queued_at"] = queued_at.isoformat()
    return found


def read_inbound(body: bytes) -> tuple[Inbound, list[str]]:
    """Read a queue body.

    Returns:
        The Inbound, and the names of optional fields that had a wrong type and count as absent.

    Raises:
        Unreadable: no JSON object, a required field is missing or wrong, a limit is passed, or it says
            nothing; ``address`` is set where id, key, channel and chat_id are sound and fit each other.
    """
    try:
        inbound, ignored = Inbound.model_validate_json(body), set[str]()
    except ValidationError as error:
        inbound, ignored = _without_bad_fields(_fields(body), _bad(error))
    if inbound.answer_to is not None and key_fault(inbound.answer_to):
        inbound, ignored = inbound.model_copy(update={"answer_to": None}), ignored | {"answer_to"}
    _check(inbound)
    return inbound, sorted(ignored)


def _without_bad_fields(fields: dict[str, Any], bad: set[str]) -> tuple[Inbound, set[str]]:
    """Read what is left without the optional fields that are wrong; return their names as well."""
    ignored: set[str] = set()
    while bad and not bad & set(_REQUIRED):
        ignored |= bad
        kept = {name: value for name, value in fields.items() if name not in ignored}
        try:
            return Inbound.model_validate(kept), ignored
        except ValidationError as error:
            # The two JSON parsers differ in what a number may be: this one may refuse what the other took.
            bad = _bad(error)
    raise Unreadable(_complaint(fields), address=_address(fields))


def _bad(error: ValidationError) -> set[str]:
    details = error.errors(include_url=False, include_context=False, include_input=False)
    return {str(detail["loc"][0]) for detail in details if detail["loc"]}


def _fields(body: bytes) -> dict[str, Any]:
    try:
        fields = orjson.loads(body)
    except orjson.JSONDecodeError:
        raise Unreadable("not JSON in UTF-8") from None
    if not isinstance(fields, dict):
        raise Unreadable("not a JSON object")
    return fields


def _complaint(fields: Mapping[str, Any]) -> str:
    missing = [name for name in _REQUIRED if name not in fields]
    if missing:
        return f"required field missing: {', '.join(missing)}"
    if fields["v"] != 1 or isinstance(fields["v"], bool):
        return "v is not 1"
    wrong = [name for name in _REQUIRED[1:] if not isinstance(fields[name], str)]
    return f"required field of a wrong type: {', '.join(wrong)}" if wrong else "not an Inbound"


def _address(fields: Mapping[str, Any]) -> Address | None:
    values = [fields.get(name) for name in ("id", "key", "channel", "chat_id")]
    if not all(isinstance(value, str) and value for value in values):
        return None
    address = Address(*(str(value) for value in values))
    return None if _address_fault(address) else address


def key_fault(key: str) -> str:
    """Say why no chat can have this key; empty where one can.

    A key stands in the header of every message of its chat, and the broker closes the connection over a
    header that is too large: its letter would come again for ever.
    """
    channel, _, chat_id = key.partition(":")
    if not chat_id or not _CHANNEL.fullmatch(channel):
        return "key is not channel:chat_id, such as telegram:12345678"
    return _too_long(key)


def _too_long(key: str) -> str:
    if len(key) <= MAX_KEY_BYTES // 4 or len(key.encode("utf-8", "surrogatepass")) <= MAX_KEY_BYTES:
        return ""
    return f"key is over {MAX_KEY_BYTES} bytes"


def _address_fault(address: Address) -> str:
    if not _CHANNEL.fullmatch(address.channel):
        return "channel is not of the form [a-z][a-z0-9_]{0,31}"
    if address.key != f"{address.channel}:{address.chat_id}" and not _is_bare(address):
        return "key is not channel:chat_id"
    if fault := _too_long(address.key):
        return fault
    if not address.id or len(address.id.encode()) > MAX_ID_BYTES:
        return f"id is empty or over {MAX_ID_BYTES} bytes"
    return ""


def _is_bare(address: Address) -> bool:
    """Say whether a key has no colon, as sessions of other programs may: the terminal goes on with them."""
    return address.channel == "cli" and address.key == address.chat_id and ":" not in address.key


def address_fault(inbound: Inbound) -> str:
    """Say why no letter can be addressed so, whatever it says; empty where one can."""
    try:
        f"{inbound.key}{inbound.id}".encode()
    except UnicodeEncodeError:
        return "a key or an id contains half of a surrogate pair"
    return _address_fault(_address_of(inbound))


def _address_of(inbound: Inbound) -> Address:
    return Address(inbound.id, inbound.key, inbound.channel, inbound.chat_id)


def _check(inbound: Inbound) -> None:
    address = _address_of(inbound)
    fault = _address_fault(address)
    if fault:
        raise Unreadable(fault)
    if len(inbound.text) > MAX_TEXT_BYTES // 4 and len(inbound.text.encode()) > MAX_TEXT_BYTES:
        raise Unreadable("text is over 1 MiB", address=address)
    if _says_nothing(inbound):
        raise Unreadable("text is empty, and there is no file", address=address)


def _says_nothing(inbound: Inbound) -> bool:
    """Tell an empty question; a file is one, an edit takes back its text, an action may act by ``meta``."""
    if inbound.attachments or inbound.kind == "edit" or (inbound.kind == "action" and inbound.meta):
        return False
    return not inbound.text.strip()


def read_outbound(body: bytes) -> Outbound:
    """Read a queue body; ``Unreadable`` where it is no Outbound, or its names fit no queue."""
    try:
        out = Outbound.model_validate_json(body)
    except ValidationError as error:
        raise Unreadable(f"not an Outbound: {error.error_count()} faults") from None
    if fault := _too_long(out.key):
        raise Unreadable(fault)
    if not 0 < len(out.id.encode()) <= MAX_OUT_ID_BYTES:
        raise Unreadable(f"id is empty or over {MAX_OUT_ID_BYTES} bytes")
    return out
