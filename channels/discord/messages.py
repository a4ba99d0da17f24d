"""Reads raw Discord messages, edits and interactions as Arrivals, or says why there is none; pure."""

from __future__ import annotations

import re
from collections.abc import AsyncIterator, Callable, Iterable, Iterator, Mapping
from contextlib import suppress
from dataclasses import dataclass, replace
from datetime import UTC, datetime, timedelta
from functools import partial
from typing import Any, Final, Literal

from channels.base import Arrival, File, FileKind, Quote
from channels.message import PROMISED, Sender, id_number

Raw = Mapping[str, Any]
Fetch = Callable[[str], AsyncIterator[bytes]]

THREADS: Final = frozenset({10, 11, 12})
# The time within Discord's ids begins here.
_EPOCH: Final = datetime(2015, 1, 1, tzinfo=UTC)
# Types that people or bots wrote: plain, reply, and the answers of applications.
_SPOKEN: Final = frozenset({0, 19, 20, 23})
# The type of the message that shows in a thread from which message it began.
OPENING: Final = 21
_MAX_DEPTH: Final = 20
_UNREADABLE: Final = "[a message that cannot be read]"
_MARK: Final = re.compile(
    r"<@!?(?P<person>\d+)>|<@&(?P<role>\d+)>|<#(?P<channel>\d+)>|<a?(?P<emoji>:\w+:)\d+>"
    r"|<(?P<command>/[^:<>\n]{1,100}):\d+>|<t:(?P<time>-?\d{1,11})(?::[a-zA-Z])?>"
)
# The second one is that of subscribers.
_MAX_CHARS: Final = (2_000, 4_000)
# A text this close to the limit may be the beginning of a longer one, which its sender had to cut.
_NEAR_LIMIT_CHARS: Final = 100
_VOICE: Final = 1 << 13
_FORWARD: Final = 1
_COMMAND, _BUTTON = 2, 3
# With it begin the ids of what people use besides messages: commands of the menu, and buttons.
INTERACTION: Final = "discord:i"
_FAULTS: Final = (KeyError, TypeError, ValueError, AttributeError, IndexError, OverflowError)


@dataclass(frozen=True, slots=True)
class DiscordBot:
    """Who the bot is, and what it knows of the server on which a message stands.

    ``roles`` are the role that Discord made for it; ``name_of`` names a role or channel by its id, and is
    empty where it is not known.
    """

    id: str
    roles: frozenset[str] = frozenset()
    name_of: Callable[[str], str] = lambda _: ""


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
        return _unreadable(raw, me, location, f"unreadable: {type(error).__name__}")


def _unreadable(raw: Raw, me: DiscordBot, location: Location, reason: str) -> Arrival | SkippedMessage:
    """Read who wrote a message that cannot be understood, and where, so that its channel can be told."""
    try:
        return replace(_arrival(raw, me, location), unreadable=reason)
    except _FAULTS:
        return SkippedMessage("message", reason, strange=True)


def _arrival(raw: Raw, me: DiscordBot, location: Location) -> Arrival:
    """Read what all written messages have: who wrote, where and when."""
    number = str(id_number(raw["id"]))
    return Arrival(
        id=f"discord:{number}",
        chat_id=location.channel,
        text="",
        platform_id=number,
        sender=_sender(raw["author"], raw.get("member")),
        from_bot=_from_program(raw),
        group=bool(location.guild),
        group_ids=location.group_ids,
        mentioned=_mentions(raw, me),
        sent_at=instant_of(number),
    )


def read_opening(raw: Raw | None, me: DiscordBot, fetch: Fetch) -> Quote | None:
    """Read the message from which a thread began; None where there is none."""
    quote = _quote(raw, me, fetch) if raw else None
    return quote and replace(quote, opens=True)


def read_edit(
    raw: Raw, me: DiscordBot, location: Location, fetch: Fetch | None = None
) -> Arrival | SkippedMessage:
    """Read a changed message; one whose links were merely unfolded is none. Never raises."""
    try:
        if not raw.get("edited_timestamp") or "content" not in raw or "author" not in raw:
            return SkippedMessage("edit", "not changed by a person")
        return _message(raw, me, location, fetch=fetch, kind="edit")
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
    forward = _forward(raw)
    own = _words(raw)
    files = tuple(_files([raw] if own else [raw, *forward], fetch)) if fetch is not None else ()
    text = _text(raw, own or _words_of_all(forward), me, bare=not files)
    if not (text.strip() or files):
        if kind == "message":
            return _unreadable(raw, me, location, "neither text nor file")
        return SkippedMessage(kind, "neither text nor file")
    quoted = None
    if fetch is not None and forward and own:
        quoted = Quote(_origin(raw, me), _words_of_all(forward), files=tuple(_files(forward, fetch)))
    elif fetch is not None and _replied(raw) is not None:
        quoted = _quote(raw.get("referenced_message"), me, fetch)
    found = _arrival(raw, me, location)
    if kind == "edit":
        edited_at = datetime.fromisoformat(raw["edited_timestamp"])
        found = replace(found, id=f"{found.id}:e{_ms(edited_at)}", sent_at=edited_at)
    return replace(
        found,
        text=text,
        kind=kind,
        reply_to=_replied(raw),
        quoted=quoted,
        forwarded_from=_origin(raw, me) if forward and not own else "",
        long=any(0 <= most - len(str(raw.get("content") or "")) <= _NEAR_LIMIT_CHARS for most in _MAX_CHARS),
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


def _from_program(raw: Raw) -> bool:
    author: Raw = raw.get("author") or {}
    return bool(author.get("bot") or author.get("system") or raw.get("webhook_id"))


def _forward(raw: Raw) -> list[Raw]:
    """Return the messages that this one forwards, as Discord copies them: without their authors."""
    return [shot.get("message") or {} for shot in raw.get("message_snapshots") or ()]


def _origin(raw: Raw, me: DiscordBot) -> str:
    channel = me.name_of(str((raw.get("message_reference") or {}).get("channel_id") or ""))
    return f"#{channel}" if channel else "another channel"


def _quote(raw: Raw | None, me: DiscordBot, fetch: Fetch) -> Quote:
    """Read the message that another one replies to; it may be deleted, or of an unknown shape."""
    if not raw:
        return Quote(text="[a message that was deleted]")
    try:
        messages = [raw, *_forward(raw)]
        files = tuple(_files(messages, fetch))
        text = _named("\n".join(filter(None, map(_words, messages))), messages, me)
        author: Raw = raw["author"]
        unsaid = _UNREADABLE if int(raw.get("type", 0)) in _SPOKEN else "[service message]"
        return Quote(
            author=_sender(author, raw.get("member")).name,
            text=text or ("" if files else unsaid),
            message_id=str(id_number(raw["id"])),
            own=str(author["id"]) == me.id and not _forward(raw),
            files=files,
        )
    except _FAULTS:
        return Quote(text=_UNREADABLE)


def _words_of_all(messages: Iterable[Raw]) -> str:
    return "\n".join(filter(None, map(_words, messages)))


def _words(message: Raw) -> str:
    """Return all that people see of a message in words; the previews of a person's links are not said."""
    spoken = [str(message.get("content") or ""), *map(_embed, _embeds(message))]
    spoken += map(_component, _inner(message.get("components"), 0))
    stickers = message.get("sticker_items") or message.get("stickers") or ()
    spoken += [f"[sticker: {sticker.get('name', '')}]" for sticker in stickers]
    if message.get("poll"):
        spoken.append(f"[poll: {_poll(message['poll'])}]")
    return "\n".join(filter(None, spoken))


def _poll(poll: Raw) -> str:
    results = poll.get("results") or {}
    votes = {each.get("id"): each.get("count") for each in results.get("answer_counts") or ()}
    answers = []
    for answer in poll.get("answers") or ():
        media, count = answer.get("poll_media") or {}, votes.get(answer.get("answer_id"))
        text = str(media.get("text") or (media.get("emoji") or {}).get("name") or "")
        answers.append(f"{text} ({count})" if count else text)
    said = ": ".join(filter(None, (str((poll.get("question") or {}).get("text", "")), " / ".join(answers))))
    said += "; several answers" if poll.get("allow_multiselect") else ""
    return said + ("; closed" if results.get("is_finalized") else "")


def _embeds(message: Raw) -> list[Raw]:
    """Return the embeds of a message, without previews of the links that a person wrote."""
    content = str(message.get("content") or "")
    by_person = bool(content) and not _from_program(message)
    # A preview is of another type than what a program builds, or of an address in the text.
    return [
        embed
        for embed in message.get("embeds") or ()
        if not by_person or (embed.get("type") == "rich" and str(embed.get("url") or "\0") not in content)
    ]


def _embed(embed: Raw) -> str:
    author = embed.get("author") or {}
    rows = [
        _linked(author.get("name"), author.get("url")),
        _linked(embed.get("title"), embed.get("url")),
        str(embed.get("description") or ""),
        *(f"{field.get('name', '')}: {field.get('value', '')}" for field in embed.get("fields") or ()),
        str((embed.get("footer") or {}).get("text") or ""),
        str(embed.get("timestamp") or ""),
    ]
    return "\n".join(filter(None, rows))


def _linked(text: object, url: object) -> str:
    return f"{text} ({url})" if text and url else str(text or url or "")


def _inner(found: object, depth: int) -> Iterator[Raw]:
    """Yield components in any nesting, with their media and what can be chosen from them."""
    if depth > _MAX_DEPTH:
        return
    for each in found if isinstance(found, list) else [found]:
        if isinstance(each, Mapping):
            yield each
            for inner in ("components", "items", "accessory", "options"):
                yield from _inner(each.get(inner), depth + 1)


def _component(component: Raw) -> str:
    fields = (component.get(field) for field in ("content", "label", "placeholder", "description"))
    return _linked(": ".join(str(field) for field in fields if field), component.get("url"))


def _text(raw: Raw, words: str, me: DiscordBot, *, bare: bool) -> str:
    """Return the text without the bot's name before it, unless nothing else was said (``bare``)."""
    names = "|".join([rf"<@!?{me.id}>", *(rf"<@&{role}>" for role in sorted(me.roles))])
    rest = re.sub(rf"\A\s*(?:{names})[,:]?\s*", "", words)
    return words if bare and not rest.strip() else _named(rest, [raw, *_forward(raw)], me)


def _named(text: str, messages: Iterable[Raw], me: DiscordBot) -> str:
    """Write names in place of the ids of people, roles and channels, which say nothing to a model."""
    people = {
        str(user["id"]): _sender(user, user.get("member")).name
        for message in messages
        for user in message.get("mentions") or ()
    }

    def named(mark: re.Match[str]) -> str:
        if id_ := mark["person"] or mark["role"]:
            name = people.get(id_, "") if mark["person"] else me.name_of(id_)
            return f"@{name.removeprefix('@')}" if name else mark[0]
        if id_ := mark["channel"]:
            return f"#{name}" if (name := me.name_of(id_)) else mark[0]
        if mark["time"]:
            with suppress(*_FAULTS, OSError):
                return f"{datetime.fromtimestamp(int(mark['time']), UTC):%Y-%m-%d %H:%M UTC}"
        return mark["emoji"] or mark["command"] or mark[0]

    return _MARK.sub(named, text)


def _files(messages: Iterable[Raw], fetch: Fetch) -> Iterator[File]:
    for message in messages:
        voice = bool(int(message.get("flags") or 0) & _VOICE)
        for attachment in (*(message.get("attachments") or ()), *_shown_media(message)):
            mime = str(attachment.get("content_type") or "").partition(";")[0].strip()
            size = attachment.get("size")
            yield File(
                kind=_file_kind(mime, voice=voice),
                name=str(attachment.get("filename") or ""),
                mime=mime or "application/octet-stream",
                size=int(size) if size is not None else None,
                fetch=partial(fetch, str(attachment["url"])),
            )


def _shown_media(message: Raw) -> Iterator[Raw]:
    """Yield the pictures of embeds, and the media and files of components, in the form of attachments."""
    shown = [(embed.get("image"), None) for embed in _embeds(message)]
    # Only the items of a gallery have no type: a thumbnail is an ornament.
    shown += [
        (each.get("file") if "type" in each else each.get("media"), each.get("name"))
        for each in _inner(message.get("components"), 0)
    ]
    for media, name in shown:
        # Discord's own copy: the address itself may lead anywhere.
        if media and (url := media.get("proxy_url")):
            yield {"content_type": "image/png", "filename": name, **media, "url": url}


def _file_kind(mime: str, *, voice: bool) -> FileKind:
    family = mime.partition("/")[0]
    if family == "audio":
        return "voice" if voice else "audio"
    if family == "image":
        return "photo"
    return "video" if family == "video" else "document"
