"""Reads raw Discord messages, edits and interactions as Arrivals, or says why there is none; pure."""

from __future__ import annotations

import re
from collections.abc import AsyncIterator, Callable, Iterator, Mapping
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from functools import partial
from typing import Any, Final, Literal

from channels.base import Arrival, File, FileKind
from channels.message import PROMISED, Sender, id_number

Raw = Mapping[str, Any]
Fetch = Callable[[str], AsyncIterator[bytes]]

THREADS: Final = frozenset({10, 11, 12})
# The time within Discord's ids begins here.
_EPOCH: Final = datetime(2015, 1, 1, tzinfo=UTC)
# Types that people or bots wrote: plain, reply, and the answers of applications.
_SPOKEN: Final = frozenset({0, 19, 20, 23})
_VOICE: Final = 1 << 13
_FORWARD: Final = 1
_COMMAND, _BUTTON = 2, 3
# With it begin the ids of what people use besides messages: commands of the menu, and buttons.
INTERACTION: Final = "discord:i"
_FAULTS: Final = (KeyError, TypeError, ValueError, AttributeError, IndexError, OverflowError)


@dataclass(frozen=True, slots=True)
class DiscordBot:
    """Who the bot is: its user id, and the role that Discord made for it where the message stands."""

    id: str
    roles: frozenset[str] = frozenset()


@dataclass(frozen=True, slots=True)
class Location:
    """Where a message stands; ``guild`` is empty for a direct channel, ``parent`` is a thread's channel."""

    channel: str
    guild: str = ""
    parent: str = ""

    @property
    def group_ids(self) -> tuple[str, ...]:
        """The ids under which the location may be allowed, its own first; none for a direct channel."""
        return tuple(filter(None, (self.channel, self.parent, self.guild))) if self.guild else ()


@dataclass(frozen=True, slots=True)
class SkippedMessage:
    """Why there is no Arrival; ``strange`` where nobody foresaw the shape."""

    kind: str
    reason: str
    strange: bool = False


def snowflake_at(at: datetime) -> int:
    """Return the id before which everything older than ``at`` lies."""
    return max(0, (at - _EPOCH) // timedelta(milliseconds=1)) << 22


def instant_of(snowflake: int | str) -> datetime:
    """Return when the platform made an id."""
    return _EPOCH + timedelta(milliseconds=int(snowflake) >> 22)


def location_of(channel: Raw, guild: str = "") -> Location:
    """Read where a channel object stands.

    Raises:
        KeyError, TypeError, ValueError: it is no channel object.
    """
    parent = channel.get("parent_id") if int(channel["type"]) in THREADS else None
    guild = guild or str(channel.get("guild_id") or "")
    return Location(str(id_number(channel["id"])), guild, str(parent or ""))


def read_message(raw: Raw, me: DiscordBot, location: Location, fetch: Fetch) -> Arrival | SkippedMessage:
    """Read a message as the gateway or the history shows it; never raises, whatever its shape."""
    try:
        return _message(raw, me, location, fetch=fetch, kind="message")
    except _FAULTS as error:
        return SkippedMessage("message", f"unreadable: {type(error).__name__}", strange=True)


def read_edit(raw: Raw, me: DiscordBot, location: Location) -> Arrival | SkippedMessage:
    """Read a changed message; one whose links were merely unfolded is none. Never raises."""
    try:
        if not raw.get("edited_timestamp") or "content" not in raw or "author" not in raw:
            return SkippedMessage("edit", "not changed by a person")
        return _message(raw, me, location, fetch=None, kind="edit")
    except _FAULTS as error:
        return SkippedMessage("edit", f"unreadable: {type(error).__name__}", strange=True)


def read_deletion(raw: Raw, location: Location, *, person: str) -> list[Arrival]:
    """Read of which messages Discord says that they were deleted, one or many; never raises.

    It does not say who wrote them, nor who deleted them: ``person`` is the one of a direct channel.
    """
    try:
        numbers = [str(id_number(each)) for each in raw.get("ids") or [raw["id"]]]
    except _FAULTS:
        return []
    return [
        Arrival(
            id=f"discord:{number}:d",
            chat_id=location.channel,
            text="",
            kind="edit",
            platform_id=number,
            sender=Sender(id=person),
            group=bool(location.guild),
            group_ids=location.group_ids,
            # It names nobody, and says nothing: whether the group is allowed decides.
            mentioned=True,
            meta={"deleted": True},
        )
        for number in numbers
    ]


def read_interaction(raw: Raw, *, deferred: bool) -> Arrival | SkippedMessage:
    """Read a command of the menu, or a pressed button; never raises.

    Args:
        raw: as the gateway shows it.
        deferred: Discord took our word that an answer will come: it may be given through the interaction.
    """
    try:
        return _interaction(raw, deferred=deferred)
    except _FAULTS as error:
        return SkippedMessage("interaction", f"unreadable: {type(error).__name__}", strange=True)


def _message(
    raw: Raw, me: DiscordBot, location: Location, *, fetch: Fetch | None, kind: Literal["message", "edit"]
) -> Arrival | SkippedMessage:
    author: Raw = raw["author"]
    if str(author["id"]) == me.id:
        return SkippedMessage(kind, "our own")
    if int(raw.get("type", 0)) not in _SPOKEN:
        return SkippedMessage(kind, "not written by anybody")
    number = str(id_number(raw["id"]))
    files = tuple(_files(raw, fetch)) if fetch is not None else ()
    text = _text(raw, me, bare=not files)
    if not (text.strip() or files):
        return SkippedMessage(kind, "neither text nor file")
    sent_at = instant_of(number)
    if kind == "edit":
        sent_at = datetime.fromisoformat(raw["edited_timestamp"])
    return Arrival(
        id=f"discord:{number}" if kind == "message" else f"discord:{number}:e{_ms(sent_at)}",
        chat_id=location.channel,
        text=text,
        kind=kind,
        platform_id=number,
        sender=_sender(author, raw.get("member")),
        from_bot=bool(author.get("bot") or author.get("system") or raw.get("webhook_id")),
        group=bool(location.guild),
        group_ids=location.group_ids,
        mentioned=_mentions(raw, me),
        reply_to=_replied(raw),
        sent_at=sent_at,
        files=files,
    )


def _interaction(raw: Raw, *, deferred: bool) -> Arrival | SkippedMessage:
    data: Raw = raw.get("data") or {}
    kind: Literal["command", "action"]
    if raw["type"] == _COMMAND and data.get("type", 1) == 1:
        kind, text = "command", " ".join([f"/{data['name']}", *_typed(data)])
    elif raw["type"] == _BUTTON:
        kind, text = "action", str(data["custom_id"])
    else:
        return SkippedMessage("interaction", f"of type {raw['type']}")
    if not text.strip():
        return SkippedMessage("interaction", "no value", strange=True)
    location = interaction_location(raw)
    member: Raw | None = raw.get("member")
    user: Raw = member["user"] if member else raw["user"]
    meta = {"interaction": str(raw["token"]), "application": str(raw["application_id"]), PROMISED: True}
    return Arrival(
        id=f"{INTERACTION}{int(raw['id'])}",
        chat_id=location.channel,
        text=text,
        kind=kind,
        platform_id=str(id_number(raw["message"]["id"])) if kind == "action" and raw.get("message") else None,
        sender=_sender(user, member),
        from_bot=bool(user.get("bot")),
        group=bool(location.guild),
        group_ids=location.group_ids,
        mentioned=True,
        sent_at=instant_of(raw["id"]),
        meta=meta if deferred else {},
    )


def interaction_location(raw: Raw) -> Location:
    """Read where an interaction happened.

    Raises:
        KeyError, TypeError, ValueError: it does not say.
    """
    guild = str(raw.get("guild_id") or "")
    channel: Raw | None = raw.get("channel")
    if channel and "type" in channel:
        return location_of({**channel, "id": channel.get("id") or raw["channel_id"]}, guild)
    return Location(str(id_number(raw["channel_id"])), guild)


def _typed(data: Raw) -> Iterator[str]:
    """Yield the values of a command's options, those of a subcommand behind its name."""
    for option in data.get("options") or ():
        if "value" in option:
            yield str(option["value"])
        else:
            yield str(option["name"])
            yield from _typed(option)


def _ms(at: datetime) -> int:
    return (at - datetime(1970, 1, 1, tzinfo=UTC)) // timedelta(milliseconds=1)


def _sender(user: Raw, member: Raw | None) -> Sender:
    username = str(user.get("username") or "")
    name = (member or {}).get("nick") or user.get("global_name") or username
    return Sender(id=str(id_number(user["id"])), name=str(name), username=username)


def _mentions(raw: Raw, me: DiscordBot) -> bool:
    """Say whether the bot is meant: by name, by its own role, or because its message is answered."""
    if any(str(user["id"]) == me.id for user in raw.get("mentions") or ()):
        return True
    if any(str(role) in me.roles for role in raw.get("mention_roles") or ()):
        return True
    answered = raw.get("referenced_message") or {}
    return _replied(raw) is not None and str((answered.get("author") or {}).get("id")) == me.id


def _replied(raw: Raw) -> str | None:
    """Return the id of the message that this one answers; a forwarded one is not answered."""
    reference = raw.get("message_reference") or {}
    if not reference.get("message_id") or reference.get("type", 0) == _FORWARD or raw.get("type") != 19:
        return None
    return str(id_number(reference["message_id"]))


def _text(raw: Raw, me: DiscordBot, *, bare: bool) -> str:
    """Return the text without the bot's name before it, unless nothing else was said (``bare``)."""
    spoken = [str(raw.get("content") or "")]
    forwarded = [shot.get("message") or {} for shot in raw.get("message_snapshots") or ()]
    spoken += [str(message.get("content") or "") for message in forwarded]
    spoken += [f"[sticker: {sticker.get('name', '')}]" for sticker in raw.get("sticker_items") or ()]
    if raw.get("poll"):
        spoken.append(f"[poll: {raw['poll']['question'].get('text', '')}]")
    text = "\n".join(filter(None, spoken))
    names = "|".join([rf"<@!?{me.id}>", *(rf"<@&{role}>" for role in sorted(me.roles))])
    rest = re.sub(rf"\A\s*(?:{names})[,:]?\s*", "", text)
    return text if bare and not rest.strip() else rest


def _files(raw: Raw, fetch: Fetch) -> Iterator[File]:
    forwarded = [shot.get("message") or {} for shot in raw.get("message_snapshots") or ()]
    for message in (raw, *forwarded):
        voice = bool(int(message.get("flags") or 0) & _VOICE)
        for attachment in message.get("attachments") or ():
            mime = str(attachment.get("content_type") or "").partition(";")[0].strip()
            size = attachment.get("size")
            yield File(
                kind=_file_kind(mime, voice=voice),
                name=str(attachment.get("filename") or ""),
                mime=mime or "application/octet-stream",
                size=int(size) if size is not None else None,
                fetch=partial(fetch, str(attachment["url"])),
            )


def _file_kind(mime: str, *, voice: bool) -> FileKind:
    family = mime.partition("/")[0]
    if family == "audio":
        return "voice" if voice else "audio"
    if family == "image":
        return "photo"
    return "video" if family == "video" else "document"
