"""What people do on the local Discord: they found guilds, open channels, write, edit, use commands."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from datetime import UTC, datetime
from typing import Any
from urllib.parse import quote

from tests.support.discord_gateway import DIRECT_MESSAGES, GUILD_MESSAGES, GUILDS, MESSAGE_CONTENT, Gateway
from tests.support.discord_interactions import Interaction, Interactions
from tests.support.discord_world import (
    ADMINISTRATOR,
    DIRECT,
    EPHEMERAL,
    EVERYONE,
    READ_MESSAGE_HISTORY,
    TEXT,
    THREAD,
    VIEW_CHANNEL,
    Channel,
    Guild,
    Message,
    Person,
    Role,
    World,
)


class People(World):
    """The world with people in it; whatever they do is told to the gateway's sessions."""

    gateway: Gateway
    interactions: Interactions
    port: int

    def __init__(self) -> None:
        super().__init__()
        self.deleted: list[str] = []
        self.files: dict[str, tuple[str, bytes]] = {}

    def notify(self) -> None:
        """Wake who waits for something to have happened."""
        raise NotImplementedError

    # -- places -------------------------------------------------------------------------------------

    def guild(self, name: str = "guild", *, bot_permissions: int = EVERYONE) -> Guild:
        """A new guild with the bot in it; everybody may read and write."""
        guild = Guild(self.snowflakes.next(), name, self.user("owner"))
        guild.roles.append(Role(guild.id, "@everyone", EVERYONE, 0))
        guild.roles.append(Role(self.snowflakes.next(), self.bot.name, bot_permissions))
        guild.members[self.bot.id] = (self.bot, [guild.roles[1]])
        guild.members[guild.owner.id] = (guild.owner, [])
        self.guilds[guild.id] = guild
        joined = guild.created([self.bot])
        # So it is when the bot joins; a guild that comes back has it.
        del joined["unavailable"]
        self.gateway.dispatch("GUILD_CREATE", GUILDS, joined)
        return guild

    def member(self, guild: Guild, user: Person | str, *, admin: bool = False) -> Person:
        """Let somebody join; ``admin`` gives a role that administers the guild."""
        person = self.user(user)
        roles = [Role(self.snowflakes.next(), f"admin-{person.name}", ADMINISTRATOR)] if admin else []
        guild.roles += roles
        guild.members[person.id] = (person, roles)
        return person

    def channel(self, guild: Guild, name: str = "general", *, kind: int = TEXT) -> Channel:
        """A new channel of a guild."""
        channel = Channel(self.snowflakes.next(), name, kind, guild)
        guild.channels.append(channel)
        self.channels[channel.id] = channel
        self.gateway.dispatch("CHANNEL_CREATE", GUILDS, channel.payload())
        return channel

    def thread(
        self, channel: Channel, name: str = "thread", *, archived: bool = False, message: str = ""
    ) -> Channel:
        """A new public thread of a channel, which may begin from a message and then has its id."""
        assert channel.guild is not None
        thread = Channel(message or self.snowflakes.next(), name, THREAD, channel.guild, parent=channel)
        thread.archived = archived
        channel.guild.threads.append(thread)
        self.channels[thread.id] = thread
        if not archived:
            self.gateway.dispatch("THREAD_CREATE", GUILDS, thread.payload() | {"newly_created": True})
        return thread

    def archive(self, thread: Channel, *, archived: bool = True) -> None:
        """Archive a thread, or open it again; an archived one is listed nowhere."""
        if thread.archived is not archived:
            thread.archived = archived
            self.gateway.dispatch("THREAD_UPDATE", GUILDS, thread.payload())

    def close(self, channel: Channel) -> None:
        """Delete a channel or thread of a guild, with its messages."""
        assert channel.guild is not None
        del self.channels[channel.id]
        for message in channel.messages:
            del self.messages[str(message)]
        (channel.guild.threads if channel.parent else channel.guild.channels).remove(channel)
        event = "THREAD_DELETE" if channel.parent else "CHANNEL_DELETE"
        self.gateway.dispatch(event, GUILDS, channel.payload())

    def leave(self, guild: Guild) -> None:
        """Throw the bot out of a guild."""
        del self.guilds[guild.id]
        for channel in [*guild.channels, *guild.threads]:
            del self.channels[channel.id]
        self.gateway.dispatch("GUILD_DELETE", GUILDS, {"id": guild.id})

    def dm(self, user: Person | str | None = None) -> Channel:
        """The direct channel of the bot with somebody, the same each time."""
        person = self.user(user)
        for channel in self.channels.values():
            if channel.recipient is person:
                return channel
        channel = Channel(self.snowflakes.next(), "", DIRECT, recipient=person)
        self.channels[channel.id] = channel
        return channel

    def deny(self, channel: Channel, permission: int = READ_MESSAGE_HISTORY) -> None:
        """Take a permission of a channel from the bot."""
        deny = {"id": self.bot.id, "type": 1, "allow": "0", "deny": str(permission)}
        channel.overwrites.append(deny)
        self.gateway.dispatch("CHANNEL_UPDATE", GUILDS, channel.payload())

    # -- messages ------------------------------------------------------------------------------------

    def write(
        self,
        channel: Channel | str | int,
        text: str,
        *,
        user: Person | str | None = None,
        bot: bool = False,
        mentions_bot: bool = False,
        reply_to: str | None = None,
        attachments: Sequence[tuple[str, str, bytes]] = (),
        live: bool = True,
        at: datetime | None = None,
        more: Mapping[str, Any] | None = None,
    ) -> str:
        """Let somebody write; return the message's id.

        Args:
            channel: the channel, or its id.
            text: the mentions in it count.
            mentions_bot: puts a mention of the bot before the text.
            user: in a direct channel its person, else ``ada``.
            bot: a new ``user`` is a bot; without a name it is ``another_bot``.
            reply_to: the id of the message that it answers; its author is mentioned.
            attachments: (name, type, bytes).
            live: False shows it over REST only: the gateway has a hole.
            at: its date, where that is not now.
            more: fields of its JSON, as they are to be seen: ``{"type": 7}``, ``{"webhook_id": "1"}``.
        """
        place = self.channel_of(channel)
        anyone = place.recipient or ("another_bot" if bot else None)
        author = self.user(anyone if user is None else user, bot=bot)
        if place.guild is not None and author.id not in place.guild.members:
            self.member(place.guild, author)
        content = f"{self.bot.mention} {text}" if mentions_bot else text
        message = Message(self.snowflakes.next(at), place, author, content, reply_to=reply_to)
        message.mentions = self.mentioned(content)
        quoted = self.messages.get(str(reply_to))
        if quoted is not None and quoted.author not in message.mentions:
            message.mentions.append(quoted.author)
        message.type = 19 if reply_to else 0
        message.attachments = self.attach(place, attachments)
        message.more = dict(more or {})
        self.archive(place, archived=False)
        self.store(message)
        if live:
            self.announce("MESSAGE_CREATE", message)
        return message.id

    def edit(self, message_id: str | int, text: str, *, live: bool = True) -> None:
        """Let its author edit a message."""
        message = self.messages[str(message_id)]
        message.content, message.edited_at = text, datetime.now(UTC)
        message.mentions = self.mentioned(text)
        if live:
            self.announce("MESSAGE_UPDATE", message)

    def unfurl(self, message_id: str | int) -> None:
        """Let the platform add the preview of a link: an update of the message that is no edit."""
        message = self.messages[str(message_id)]
        message.embeds = [{"type": "link", "url": "https://example.org/", "title": "Example"}]
        self.announce("MESSAGE_UPDATE", message)

    def delete(self, message_id: str | int) -> None:
        """Delete a message."""
        message = self.forget(str(message_id))
        if message is not None:
            self.deleted.append(message.id)
            guild = {"guild_id": message.channel.guild.id} if message.channel.guild else {}
            gone = {"id": message.id, "channel_id": message.channel.id} | guild
            self.gateway.dispatch("MESSAGE_DELETE", GUILD_MESSAGES if guild else DIRECT_MESSAGES, gone)
            self.notify()

    def interact(
        self,
        command: str,
        options: Mapping[str, Any] | None = None,
        *,
        user: Person | str | None = None,
        channel: Channel | str | int,
    ) -> Interaction:
        """Let somebody use a slash command; the result knows what became of it."""
        place = self.channel_of(channel)
        person = self.user(place.recipient if user is None else user)
        return self.interactions.begin(command, options, person, place)

    def buttons(self, message_id: str) -> dict[str, str]:
        """Return the buttons below a message: what stands on each, and its value."""
        rows = self.messages[message_id].components
        return {button["label"]: button["custom_id"] for row in rows for button in row["components"]}

    def press(self, message_id: str, custom_id: str, *, user: Person | str) -> Interaction:
        """Let somebody press a button of a message, or send a value as though."""
        return self.interactions.press(self.messages[message_id], custom_id, self.user(user))

    def announce(self, event: str, message: Message) -> None:
        """Tell the gateway's sessions of a message, as far as they may see it."""
        intent = DIRECT_MESSAGES if message.channel.guild is None else GUILD_MESSAGES
        if message.flags & EPHEMERAL or not self.may(VIEW_CHANNEL, message.channel):
            return
        self.gateway.dispatch(
            event,
            intent,
            lambda intents: self.payload(message, live=True, content=bool(intents & MESSAGE_CONTENT)),
        )

    def attach(self, channel: Channel, files: Sequence[tuple[str, str, bytes]]) -> list[dict[str, Any]]:
        """Keep files for a message; return their JSON."""
        made = []
        for name, mime, data in files:
            number, shown = self.snowflakes.next(), re.sub(r"[\s/\\]+", "_", name)
            url = f"http://127.0.0.1:{self.port}/attachments/{channel.id}/{number}/{quote(shown)}"
            self.files[number] = (mime, data)
            entry = {"id": number, "filename": shown, "size": len(data), "url": url, "proxy_url": url}
            made.append(entry | {"content_type": mime})
        return made
