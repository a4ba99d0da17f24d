"""People, guilds, channels and messages behind the local Discord, and their JSON as the platform writes it.

Ids are text, as in the JSON; whatever takes an id takes the object or the number, too.
"""

from __future__ import annotations

import itertools
import re
from bisect import insort
from dataclasses import dataclass, field
from datetime import UTC, datetime
from typing import Any

EPOCH_MS = 1_420_070_400_000
JOINED = "2024-01-01T00:00:00.000000+00:00"
ADMINISTRATOR, VIEW_CHANNEL, SEND_MESSAGES = 1 << 3, 1 << 10, 1 << 11
ATTACH_FILES, READ_MESSAGE_HISTORY, SEND_IN_THREADS = 1 << 15, 1 << 16, 1 << 38
EVERYONE = VIEW_CHANNEL | SEND_MESSAGES | ATTACH_FILES | READ_MESSAGE_HISTORY | SEND_IN_THREADS | 1 << 14
TEXT, DIRECT, THREAD = 0, 1, 11
LOADING, EPHEMERAL = 1 << 7, 1 << 6
_MENTION = re.compile(r"<@!?(\d+)>")


class Snowflakes:
    """Ids made of the time: later ones are greater, and dated ones hold their date."""

    def __init__(self) -> None:
        self._last = 0
        self._dated = itertools.count(1)

    def next(self, at: datetime | None = None) -> str:
        now = int(datetime.now(UTC).timestamp() * 1000) - EPOCH_MS
        if at is not None:
            ms = int(at.timestamp() * 1000) - EPOCH_MS
            return str(ms << 22 | next(self._dated) & 0x3FFFFF)
        self._last = max(self._last + 1, now << 22)
        return str(self._last)


def written_at(snowflake: str) -> datetime:
    return datetime.fromtimestamp(((int(snowflake) >> 22) + EPOCH_MS) / 1000, UTC)


@dataclass(eq=False)
class Person:
    id: str
    name: str
    bot: bool = False

    @property
    def mention(self) -> str:
        return f"<@{self.id}>"

    def payload(self) -> dict[str, Any]:
        payload: dict[str, Any] = {
            "id": self.id,
            "username": self.name,
            "discriminator": "0",
            "global_name": None if self.bot else self.name.capitalize(),
            "avatar": None,
        }
        return payload | {"bot": True} if self.bot else payload


@dataclass(eq=False)
class Role:
    id: str
    name: str
    permissions: int
    position: int = 1

    def payload(self) -> dict[str, Any]:
        about = {"id": self.id, "name": self.name, "permissions": str(self.permissions)}
        return {**about, "position": self.position}


@dataclass(eq=False)
class Guild:
    id: str
    name: str
    owner: Person
    roles: list[Role] = field(default_factory=list)
    members: dict[str, tuple[Person, list[Role]]] = field(default_factory=dict)
    channels: list[Channel] = field(default_factory=list)
    threads: list[Channel] = field(default_factory=list)

    def permissions(self, person: Person, channel: Channel | None = None) -> int:
        if person is self.owner:
            return (1 << 53) - 1
        allowed = self.roles[0].permissions
        roles = self.members[person.id][1] if person.id in self.members else []
        for role in roles:
            allowed |= role.permissions
        if allowed & ADMINISTRATOR:
            return (1 << 53) - 1
        if channel is not None:
            place = channel.parent or channel
            names = [[self.id], [role.id for role in roles], [person.id]]
            for ids in names:
                found = [over for over in place.overwrites if over["id"] in ids]
                for over in found:
                    allowed &= ~int(over["deny"])
                for over in found:
                    allowed |= int(over["allow"])
        return allowed

    def member(self, person: Person, *, user: bool = True) -> dict[str, Any]:
        """A member's JSON; ``user=False`` is the partial one within a message."""
        roles = self.members[person.id][1] if person.id in self.members else []
        payload: dict[str, Any] = {
            "roles": [role.id for role in roles],
            "nick": None,
            "joined_at": JOINED,
            "flags": 0,
        }
        return payload | {"user": person.payload()} if user else payload

    def payload(self) -> dict[str, Any]:
        """The guild as ``GET /guilds/{id}`` shows it."""
        roles = [role.payload() for role in self.roles]
        return {"id": self.id, "name": self.name, "owner_id": self.owner.id, "roles": roles}

    def created(self, seen: list[Person]) -> dict[str, Any]:
        return self.payload() | {
            "joined_at": JOINED,
            "unavailable": False,
            "member_count": len(self.members),
            "members": [self.member(person) for person in seen],
            "channels": [channel.payload() for channel in self.channels],
            "threads": [thread.payload() for thread in self.threads if not thread.archived],
        }


@dataclass(eq=False)
class Channel:
    """A channel of a guild, a thread, or a direct channel (``guild`` None, one recipient)."""

    id: str
    name: str
    type: int = TEXT
    guild: Guild | None = None
    parent: Channel | None = None
    recipient: Person | None = None
    owner: Person | None = None
    archived: bool = False
    overwrites: list[dict[str, Any]] = field(default_factory=list)
    messages: list[int] = field(default_factory=list)
    last_message_id: str | None = None

    def payload(self) -> dict[str, Any]:
        payload: dict[str, Any] = {
            "id": self.id,
            "type": self.type,
            "last_message_id": self.last_message_id,
            "flags": 0,
        }
        if self.guild is None:
            assert self.recipient is not None
            return payload | {"recipients": [self.recipient.payload()]}
        payload |= {"guild_id": self.guild.id, "name": self.name, "rate_limit_per_user": 0}
        if self.parent is None:
            overwrites = [dict(over) for over in self.overwrites]
            place = self.guild.channels.index(self) if self in self.guild.channels else 0
            extra = {"position": place, "permission_overwrites": overwrites, "nsfw": False}
            return payload | extra | {"parent_id": None, "topic": None}
        created = written_at(self.id).isoformat()
        return payload | {
            "parent_id": self.parent.id,
            "owner_id": self.owner.id if self.owner else self.guild.owner.id,
            "message_count": len(self.messages),
            "member_count": 2,
            "total_message_sent": len(self.messages),
            "thread_metadata": {
                "archived": self.archived,
                "auto_archive_duration": 1440,
                "archive_timestamp": created,
                "create_timestamp": created,
                "locked": False,
            },
        }


@dataclass(eq=False)
class Message:
    id: str
    channel: Channel
    author: Person
    content: str
    nonce: str | int | None = None
    edited_at: datetime | None = None
    reply_to: str | None = None
    mentions: list[Person] = field(default_factory=list)
    attachments: list[dict[str, Any]] = field(default_factory=list)
    embeds: list[Any] = field(default_factory=list)
    components: list[Any] = field(default_factory=list)
    flags: int = 0
    type: int = 0
    more: dict[str, Any] = field(default_factory=dict)


class World:
    def __init__(self) -> None:
        self.snowflakes = Snowflakes()
        self.people: dict[str, Person] = {}
        self.guilds: dict[str, Guild] = {}
        self.channels: dict[str, Channel] = {}
        self.messages: dict[str, Message] = {}
        self.bot = self._person("gateway_bot", bot=True)

    def _person(self, name: str, *, bot: bool = False) -> Person:
        person = Person(self.snowflakes.next(datetime(2021, 1, 1, tzinfo=UTC)), name, bot)
        self.people[person.id] = person
        return person

    def user(self, who: Person | str | int | None = None, *, bot: bool = False) -> Person:
        """The person of this name or id, made where there is none; None is ``ada``."""
        if isinstance(who, Person):
            return who
        name = str(who or "ada")
        found = self.people.get(name) or next((p for p in self.people.values() if p.name == name), None)
        return found or self._person(name, bot=bot)

    def channel_of(self, channel: Channel | str | int) -> Channel:
        return channel if isinstance(channel, Channel) else self.channels[str(channel)]

    def mentioned(self, text: str) -> list[Person]:
        found = dict.fromkeys(_MENTION.findall(text))
        return [self.people[person] for person in found if person in self.people]

    def may(self, permission: int, channel: Channel) -> bool:
        if channel.guild is None:
            return True
        return bool(channel.guild.permissions(self.bot, channel) & permission)

    def store(self, message: Message) -> None:
        """Put a message into its channel's history, at the place that its id has."""
        self.messages[message.id] = message
        if message.flags & EPHEMERAL:
            return
        channel = message.channel
        insort(channel.messages, int(message.id))
        channel.last_message_id = str(channel.messages[-1])

    def forget(self, message_id: str) -> Message | None:
        """Delete a message; the channel's ``last_message_id`` stays, as on the platform."""
        message = self.messages.pop(message_id, None)
        if message is not None and int(message_id) in message.channel.messages:
            message.channel.messages.remove(int(message_id))
        return message

    def payload(self, message: Message, *, live: bool = False, content: bool = True) -> dict[str, Any]:
        """A message's JSON.

        Args:
            message: what is shown.
            live: as a gateway event (with guild and member) instead of as REST shows it.
            content: False blanks what the MESSAGE_CONTENT intent guards, unless the bot is concerned.
        """
        guild, author = message.channel.guild, message.author
        shown = content or guild is None or author is self.bot or self.bot in message.mentions
        payload: dict[str, Any] = {
            "id": message.id,
            "channel_id": message.channel.id,
            "author": author.payload(),
            "content": message.content if shown else "",
            "timestamp": written_at(message.id).isoformat(timespec="microseconds"),
            "edited_timestamp": message.edited_at.isoformat() if message.edited_at else None,
            "tts": False,
            "mention_everyone": False,
            "mentions": [self._mention(person, guild, live) for person in message.mentions],
            "mention_roles": [],
            "attachments": message.attachments if shown else [],
            "embeds": message.embeds if shown else [],
            "components": message.components if shown else [],
            "pinned": False,
            "flags": message.flags,
            "type": message.type,
        }
        if message.reply_to is not None:
            self._quote(payload, message, content)
        if live:
            payload |= {"nonce": message.nonce} if message.nonce is not None else {}
            if guild is not None:
                payload |= {"guild_id": guild.id, "member": guild.member(author, user=False)}
        return payload | message.more

    def _mention(self, person: Person, guild: Guild | None, live: bool) -> dict[str, Any]:
        if guild is None or not live:
            return person.payload()
        return person.payload() | {"member": guild.member(person, user=False)}

    def _quote(self, payload: dict[str, Any], message: Message, content: bool) -> None:
        reference: dict[str, Any] = {"type": 0, "channel_id": message.channel.id}
        reference["message_id"] = message.reply_to
        if message.channel.guild is not None:
            reference["guild_id"] = message.channel.guild.id
        quoted = self.messages.get(str(message.reply_to))
        payload["message_reference"] = reference
        payload["referenced_message"] = None
        if quoted is not None:
            inner = self.payload(quoted, content=content)
            # The platform shows one level only.
            inner.pop("referenced_message", None)
            payload["referenced_message"] = inner
