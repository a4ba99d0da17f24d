"""A local Discord for the real discord.py: REST v10 and gateway on one port, in the test's own loop.

::

    async with DiscordServer() as server:
        guild = server.guild("home")
        channel = server.channel(guild, "general")
        ...  # a client: api_base_url = server.api_base_url, gateway_url = server.gateway_url
        await server.connected()
        message_id = server.write(channel, "hello", user="ada", mentions_bot=True)
        sent = await server.sent_count(1)            # the bot's messages: server.sent
        server.write(channel, "unseen", live=False)  # only REST shows it
        server.fail("POST", "/channels/*/messages", status=429, retry_after=0.3)
        server.gateway.invalidate()

Clients may live in other processes; the methods are called in the server's own loop. Ids are text.
``stop()`` closes the port and every connection, ``start()`` opens the same port with the same state.
"""

from __future__ import annotations

import asyncio
import re
import secrets
import time
from collections.abc import Callable, Mapping, Sequence
from datetime import UTC, datetime
from typing import Any, TypeVar
from urllib.parse import quote

from aiohttp import web

from tests.support.discord_gateway import DIRECT_MESSAGES, GUILD_MESSAGES, GUILDS, MESSAGE_CONTENT, Gateway
from tests.support.discord_rest import (
    REAL_LIMITS,
    Buckets,
    Call,
    Fault,
    Interaction,
    Interactions,
    Rest,
    Routes,
    Sent,
    Upload,
    pattern,
)
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
from tests.support.ports import KeptPort


class People(World):
    gateway: Gateway
    interactions: Interactions
    port: int

    def __init__(self) -> None:
        super().__init__()
        self.files: dict[str, tuple[str, bytes]] = {}

    def notify(self) -> None:
        raise NotImplementedError

    # -- places -------------------------------------------------------------------------------------

    def guild(self, name: str = "guild", *, bot_permissions: int = EVERYONE) -> Guild:
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
        if thread.archived is not archived:
            thread.archived = archived
            self.gateway.dispatch("THREAD_UPDATE", GUILDS, thread.payload())

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
        """Let somebody write, in a direct channel its person, else ``ada``; return the message's id.

        ``bot``: a new ``user`` is a bot, without a name ``another_bot``. ``reply_to``: whose author is
        mentioned. ``attachments``: (name, type, bytes). ``live``: False shows it over REST only. ``at``: its
        date. ``more``: fields of its JSON, as they are to be seen: ``{"type": 7}``, ``{"webhook_id": "1"}``.
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
        message = self.messages[str(message_id)]
        message.content, message.edited_at = text, datetime.now(UTC)
        message.mentions = self.mentioned(text)
        if live:
            self.announce("MESSAGE_UPDATE", message)

    def delete(self, message_id: str | int) -> None:
        message = self.forget(str(message_id))
        if message is not None:
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


__all__ = ["REAL_LIMITS", "DiscordServer", "Fault", "Interaction", "Sent"]
T = TypeVar("T")


class DiscordServer(People):
    """See the module's docstring.

    Args:
        port: 0 takes any.
        limits: rate limits by ``"METHOD /route/{template}"``; ``REAL_LIMITS`` has the platform's own.
    """

    def __init__(
        self,
        *,
        port: int = 0,
        token: str = "local.discord.token",
        limits: dict[str | None, tuple[int, float]] | None = None,
    ) -> None:
        super().__init__()
        self._kept_port = KeptPort(port)
        self.port, self.token = self._kept_port.port, token
        self.application_id = self.bot.id
        # The switches of the portal.
        self.privileged = {"message_content"}
        self.buckets = Buckets(dict(limits or {}))
        self.faults: list[Fault] = []
        self.calls: list[Call] = []
        self.sent: list[Sent] = []
        self.typings: list[tuple[str, float]] = []
        self.commands: list[dict[str, Any]] = []
        self.command_puts: list[datetime] = []
        self.max_upload_bytes = 10 * 2**20
        self.gateway = Gateway(self)
        self.interactions = Interactions(self)
        self._rest = Rest(self)
        self._waiting: set[asyncio.Future[None]] = set()
        self._runner: web.AppRunner | None = None

    # -- life -------------------------------------------------------------------------------------

    @property
    def api_base_url(self) -> str:
        return f"http://127.0.0.1:{self.port}/api/v10"

    @property
    def gateway_url(self) -> str:
        return f"ws://127.0.0.1:{self.port}/gateway/"

    @property
    def application_flags(self) -> int:
        return (1 << 19) if "message_content" in self.privileged else 0

    async def __aenter__(self) -> DiscordServer:
        await self.start()
        return self

    async def __aexit__(self, *_: object) -> None:
        await self.stop()
        self._kept_port.close()

    async def start(self) -> None:
        self._rest.released.clear()
        app = web.Application(middlewares=[self._rest.middleware], client_max_size=2**26)
        app.add_routes(Routes(self).table() + self.interactions.table())
        app.add_routes([web.get("/gateway/", self.gateway.connect), web.get("/resume", self.gateway.connect)])
        app.add_routes([web.get("/attachments/{channel_id}/{attachment_id}/{name}", self._attachment)])
        self._runner = web.AppRunner(app, access_log=None, shutdown_timeout=0.5)
        await self._runner.setup()
        site = web.TCPSite(self._runner, "127.0.0.1", self.port, reuse_address=True)
        await site.start()

    async def stop(self) -> None:
        self._rest.released.set()
        self.gateway.drop()
        if self._runner is not None:
            await self._runner.cleanup()
            self._runner = None

    def now(self) -> float:
        """The monotonic clock of every ``at``."""
        return time.monotonic()

    def reset_token(self) -> None:
        """Make the token invalid, as the platform does after too many IDENTIFYs."""
        self.token = secrets.token_hex(16)

    # -- waiting ----------------------------------------------------------------------------------

    def notify(self) -> None:
        for future in self._waiting:
            if not future.done():
                future.set_result(None)

    async def until(self, done: Callable[[], T], *, within_s: float = 60.0) -> T:
        """Wait until ``done()`` is true, and return what it returned; TimeoutError after ``within_s``."""
        async with asyncio.timeout(within_s):
            while not (result := done()):
                future = asyncio.get_running_loop().create_future()
                self._waiting.add(future)
                try:
                    await future
                finally:
                    self._waiting.discard(future)
            return result

    async def sent_count(self, n: int, *, within_s: float = 60.0) -> list[Sent]:
        await self.until(lambda: len(self.sent) >= n, within_s=within_s)
        return self.sent

    async def connected(self, *, within_s: float = 60.0) -> None:
        await self.until(lambda: bool(self.gateway.live), within_s=within_s)

    async def called(self, method: str, route: str, n: int = 1, *, within_s: float = 60.0) -> list[Call]:
        """Wait until ``n`` requests of this method and path have arrived; return all of them."""
        expression = pattern(route)

        def found() -> list[Call]:
            return [c for c in self.calls if c.method == method and expression.fullmatch(c.path)]

        await self.until(lambda: len(found()) >= n, within_s=within_s)
        return found()

    def fail(self, method: str, route: str, **what: Any) -> Fault:
        """Let the next requests of a route fail; see ``tests.support.discord_rest``."""
        fault = Fault(method, pattern(route), **what)
        self.faults.append(fault)
        return fault

    # -- what the bot does ------------------------------------------------------------------------

    def accept(
        self, channel: Channel, payload: dict[str, Any], files: list[Upload], *, reply_to: str | None = None
    ) -> Message:
        """Store a message of the bot and tell everybody."""
        message = Message(self.snowflakes.next(), channel, self.bot, "", payload.get("nonce"))
        message.reply_to, message.type = reply_to, 19 if reply_to else 0
        self.archive(channel, archived=False)
        self.store(message)
        self.fill(message, payload, files)
        self.announce("MESSAGE_CREATE", message)
        return message

    def fill(
        self, message: Message, payload: dict[str, Any], files: list[Upload], *, via: str = "channel"
    ) -> None:
        """Give a message of the bot what was sent, and note it in ``sent``."""
        text = str(payload.get("content") or "")
        # The platform shows no white space around a text.
        message.content = text.strip()
        message.attachments = self.attach(message.channel, files)
        message.embeds, message.components = payload.get("embeds") or [], payload.get("components") or []
        message.mentions = self.mentioned(text)
        allowed = payload.get("allowed_mentions")
        where, nonce, reference = message.channel.id, message.nonce, message.reply_to
        sent = Sent(message.id, where, text, nonce, reference, files, allowed, via, self.now())
        self.sent.append(sent)
        self.notify()

    def revise(self, message: Message, payload: dict[str, Any], files: list[Upload]) -> None:
        if "content" in payload:
            message.content = str(payload["content"] or "").strip()
        if "components" in payload:
            message.components = payload["components"] or []
        if files:
            message.attachments = self.attach(message.channel, files)
        message.edited_at = datetime.now(UTC)
        self.announce("MESSAGE_UPDATE", message)
        self.notify()

    async def _attachment(self, request: web.Request) -> web.StreamResponse:
        found = self.files.get(request.match_info["attachment_id"])
        if found is None:
            return web.Response(status=404, text="This content is no longer available.")
        return web.Response(body=found[1], headers={"Content-Type": found[0]})
