"""One connection to Discord's gateway: what comes in, whether it stands, and why it cannot be made."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Callable, Iterable
from contextlib import suppress
from typing import Any, Final

import discord
import orjson
import structlog
import yarl
from discord.gateway import DiscordWebSocket, KeepAliveHandler

from channels.base import Pulse
from channels.discord.backfill import Sweeper
from channels.discord.ingress import DiscordIngress, Tempo
from channels.discord.messages import Location
from channels.discord.rest import refused_token
from channels.errors import ChannelDown, CredentialsRefused
from channels.tables import DiscordTable as Table

_READ: Final = (
    "MESSAGE_CREATE",
    "MESSAGE_UPDATE",
    "MESSAGE_DELETE",
    "MESSAGE_DELETE_BULK",
    "INTERACTION_CREATE",
)
_BIG_CHARS: Final = 4_096
_INTENTS_HINT: Final = (
    "developer portal, Bot, Privileged Gateway Intents: switch on Message Content Intent, save, start again"
)
_CLOSED: Final = {
    4004: ("the token", "reset the token in the developer portal (Bot) and set channels.discord.token"),
    4011: ("a bot on so many servers without sharding", "remove the bot from some servers"),
    4013: ("the intents", "update chat-gateway"),
    4014: ("the Message Content intent", _INTENTS_HINT),
}
log = structlog.get_logger("discord")


class Gateway(discord.Client):
    """One connection with its resumptions; a new session needs a new object."""

    def __init__(
        self, table: Table, tempo: Tempo, *, ingress: DiscordIngress, sweeper: Sweeper, pulse: Pulse
    ) -> None:
        discord.VoiceClient.warn_nacl = discord.VoiceClient.warn_dave = False
        intents = discord.Intents.none()
        intents.guilds = intents.guild_messages = intents.dm_messages = intents.message_content = True
        super().__init__(
            intents=intents,
            max_messages=None,
            chunk_guilds_at_startup=False,
            member_cache_flags=discord.MemberCacheFlags.none(),
            heartbeat_timeout=table.heartbeat_timeout_s,
            guild_ready_timeout=tempo.guilds_s,
            max_ratelimit_timeout=30.0,
            # Every event is shown as it came, before the client may stumble over it.
            enable_debug_events=True,
        )
        self._table = table
        self._tempo = tempo
        self._ingress = ingress
        self._sweeper = sweeper
        self._pulse = pulse
        self.up = False
        self.within_s = 0.0
        self.deadline: asyncio.Timeout | None = None
        parsers = self._connection.parsers
        for kind, parse in list(parsers.items()):
            if kind in _READ:
                del parsers[kind]
            elif kind not in ("READY", "RESUMED"):
                parsers[kind] = _careful(kind, parse)

    async def prepare(self) -> float:
        """Log in and ask for the gateway's address; return the seconds until Discord allows another start."""
        # The library tries on its own for minutes, in which the adapter would seem to stand.
        async with asyncio.timeout(self._tempo.deadline_s):
            await self.login(self._table.token.get_secret_value())
            _, url, limit = await self.http.get_bot_gateway()
        DiscordWebSocket.DEFAULT_GATEWAY = yarl.URL(self._table.gateway_url or url)
        return 0.0 if int(limit["remaining"]) > 0 else int(limit["reset_after"]) / 1000

    async def listen(self) -> None:
        """Receive until the connection ends for good; ``TimeoutError`` where it does not stand in time."""
        async with asyncio.timeout(self._tempo.deadline_s) as self.deadline:
            await self.connect(reconnect=False)

    def dispatch(self, event: str, /, *args: Any, **kwargs: Any) -> None:
        """Call the listeners of an event, unless the object is closed and its loop gone."""
        if not self.is_closed():
            super().dispatch(event, *args, **kwargs)

    async def on_socket_raw_receive(self, text: str) -> None:
        """Look at everything that comes in, in its order."""
        if len(text) > _BIG_CHARS and not any(kind in text for kind in (*_READ, "READY", "RESUMED")):
            return
        event = orjson.loads(text)
        kind, data = event.get("t"), event.get("d")
        if event.get("op") == DiscordWebSocket.HELLO:
            self.within_s = data["heartbeat_interval"] / 1000 + 2 * self._table.heartbeat_timeout_s
        elif event.get("op") == DiscordWebSocket.HEARTBEAT_ACK and self.up:
            self._pulse.beat(within_s=self.within_s)
        elif kind in ("READY", "RESUMED"):
            self._stand()
        elif kind in _READ:
            take = {
                "MESSAGE_CREATE": self._ingress.message,
                "MESSAGE_UPDATE": self._ingress.edited,
                "MESSAGE_DELETE": self._ingress.deleted,
                "MESSAGE_DELETE_BULK": self._ingress.deleted,
                "INTERACTION_CREATE": self._ingress.interaction,
            }[kind]
            try:
                take(data)
            except (AttributeError, KeyError, TypeError, ValueError) as error:
                which = str(data.get("id")) if isinstance(data, dict) else ""
                log.warning("event.unreadable", kind=kind, id=which, reason=type(error).__name__)

    async def on_ready(self) -> None:
        """Look for what was missed, now that the servers are known."""
        log.info("gateway.connected", servers=len(self.guilds))
        self._sweeper.want()

    async def on_resumed(self) -> None:
        """Look for what was missed: a resumption may have holes."""
        log.info("gateway.resumed")
        self._sweeper.want()

    async def on_guild_available(self, _: discord.Guild) -> None:
        """Look into a server that was away."""
        if self.is_ready():
            self._sweeper.want()

    async def on_guild_join(self, _: discord.Guild) -> None:
        """Look into a new server."""
        self._sweeper.want()

    async def on_disconnect(self) -> None:
        """Give the client some time to resume."""
        self._ingress.lost()
        if self.up:
            self.up = False
            self._pulse.fail("the connection to the gateway broke")
            self._set_deadline(asyncio.get_running_loop().time() + self._tempo.deadline_s)

    async def on_error(self, event_method: str, /, *args: Any, **kwargs: Any) -> None:
        """Log what a listener raised."""
        log.exception("event.failed", listener=event_method)

    async def before_identify_hook(self, shard_id: int | None, *, initial: bool = False) -> None:
        """Refuse to begin a second session: that takes a new object, and a look at the limit of starts."""
        if not initial:
            raise ChannelDown("the gateway ended the session")

    async def shut(self) -> None:
        """Close everything, the heartbeat's threads included, however far the connection came."""
        self.up = False
        ready: asyncio.Task[None] | None = getattr(self._connection, "_ready_task", None)
        if ready is not None:
            ready.cancel()
        for thread in threading.enumerate():
            if isinstance(thread, KeepAliveHandler) and _state(thread) is self._connection:
                thread.stop()
        try:
            with suppress(Exception):
                # A server that is mute would let the client wait for its good-bye.
                async with asyncio.timeout(1.0):
                    await self.close()
        finally:
            await self.http.close()

    def _stand(self) -> None:
        self.up = True
        self._pulse.beat(within_s=self.within_s)
        self._set_deadline(None)

    def _set_deadline(self, at: float | None) -> None:
        # A deadline that has just passed cannot be moved any more.
        with suppress(RuntimeError):
            if self.deadline is not None:
                self.deadline.reschedule(at)


class Servers:
    """What the newest connection told of the servers that the bot is in (``GuildView``)."""

    def __init__(self) -> None:
        self.connection: Gateway | None = None
        self._roles: dict[str, frozenset[str]] = {}

    def guild_ids(self) -> Iterable[str] | None:
        """The servers that the bot is in; None until the gateway has told of all."""
        if self.connection is None or not self.connection.is_ready():
            return None
        return [str(guild.id) for guild in self.connection.guilds]

    def own_roles(self, guild: str) -> frozenset[str]:
        """The role that Discord made for the bot on a server, where there is one."""
        found = self.connection.get_guild(int(guild)) if self.connection else None
        role = found.self_role if found else None
        if role is not None:
            self._roles[guild] = frozenset([str(role.id)])
        return self._roles.get(guild, frozenset())

    def name_of(self, guild: str, number: str) -> str:
        """The name of a role or channel of a server; empty where the bot does not see it."""
        found = self.connection.get_guild(int(guild)) if self.connection and guild else None
        if found is None or not number.isdecimal():
            return ""
        if (role := found.get_role(int(number))) is not None:
            return role.name
        channel = found.get_channel_or_thread(int(number))
        # Discord tells the bot of channels that it may not enter as well: their names are not for everybody.
        with suppress(discord.ClientException):
            if (
                channel is not None
                and found.me is not None
                and channel.permissions_for(found.me).view_channel
            ):
                return channel.name
        return ""

    def locate(self, channel: str) -> Location | None:
        """Where a channel of a server stands; None where it is not known."""
        found = self._channel(channel)
        if isinstance(found, discord.Thread):
            return Location(channel, str(found.guild.id), str(found.parent_id))
        if isinstance(found, discord.abc.GuildChannel):
            return Location(channel, str(found.guild.id))
        return None

    def may_read(self, channel: str) -> bool | None:
        """Whether the bot may read the history of a channel that it sees; None where it is not known."""
        found = self._channel(channel)
        if not isinstance(found, discord.Thread | discord.abc.GuildChannel) or found.guild.me is None:
            return None
        # The client raises for a thread whose channel it does not know.
        with suppress(discord.ClientException):
            granted = found.permissions_for(found.guild.me)
            return granted.read_message_history if granted.view_channel else None
        return None

    def _channel(self, channel: str) -> object:
        return self.connection.get_channel(int(channel)) if self.connection else None


def _state(thread: KeepAliveHandler) -> object:
    return getattr(thread.ws, "_connection", None)


def _careful(kind: str, parse: Callable[[Any], Any]) -> Callable[[Any], Any]:
    """Let an event that the client does not understand end as a line in the log, not the connection."""

    def careful(data: Any) -> None:
        try:
            parse(data)
        except Exception as error:  # noqa: BLE001 - one event ends here
            log.warning("event.unreadable", kind=kind, reason=type(error).__name__)

    return careful


def refusal(error: BaseException) -> CredentialsRefused | None:
    """Return what only a person can put right."""
    if isinstance(error, CredentialsRefused):
        return error
    if isinstance(error, discord.LoginFailure):
        return refused_token()
    code = error.code if isinstance(error, discord.ConnectionClosed) else 0
    if isinstance(error, discord.PrivilegedIntentsRequired):
        code = 4014
    if code in _CLOSED:
        what, hint = _CLOSED[code]
        return CredentialsRefused(f"Discord refuses {what} ({code})", hint=hint)
    if isinstance(error, discord.GatewayNotFound):
        cause = error.__cause__
        return refused_token() if isinstance(cause, discord.HTTPException) and cause.status == 401 else None
    return None
