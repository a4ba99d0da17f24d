"""The Discord adapter: one connection to the gateway after the other, and everything that is sent."""

from __future__ import annotations

import asyncio
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, Final

import structlog

import durable
from channels.access import KnownAdmins
from channels.base import Chunk, Emit, Rendered, Site
from channels.discord import rest
from channels.discord.backfill import Sweeper
from channels.discord.client import Gateway, Servers, refusal
from channels.discord.formatting import discord_markdown
from channels.discord.ingress import Cursors, DiscordIngress, Tempo
from channels.discord.messages import INTERACTION
from channels.discord.rest import RequestRefused, Rest, sent_id
from channels.errors import ChannelDown, ChannelError, CredentialsRefused, MessageGone, SendNever
from channels.message import Button
from channels.tables import DiscordTable as Table
from channels.text import split_markdown

# What text each command of the gateway's own takes; empty: none.
ARGUMENTS: Final = {
    "agent": "name",
    "approve": "id",
    "compact": "focus",
    "deny": "id",
    "forget": "number",
    "help": "",
    "memory": "",
    "new": "",
    "resume": "number",
    "retry": "",
    "status": "",
    "stop": "",
    "undo": "",
}
# Any other command is bound to an agent, and takes what that one is asked.
_ASKED: Final = "message"
_ENTRY_POINT: Final = 4
# What Discord adds to a command when it lists them.
_LISTED_ONLY: Final = frozenset({"application_id", "version", "dm_permission"})
_MAX_DESCRIPTION: Final = 100
_MAX_LABEL: Final = 80
_UNKNOWN_MESSAGE, _NOT_OURS, _MAY_NOT_QUOTE = 10008, 50005, 160002
_ADMINISTRATOR, _MANAGE_GUILD = 1 << 3, 1 << 5


def _command(name: str, words: str) -> dict[str, Any]:
    command: dict[str, Any] = {
        "type": 1,
        "name": name,
        "description": words[:_MAX_DESCRIPTION] or name,
        # The bot is installed on a server.
        "integration_types": [0],
        # Its commands are used there or in a direct channel.
        "contexts": [0, 1],
    }
    if argument := ARGUMENTS.get(name, _ASKED):
        command["options"] = [{"type": 3, "name": argument, "description": argument, "required": False}]
    return command


def _components(buttons: Sequence[Button]) -> list[dict[str, Any]]:
    row = [
        {"type": 2, "style": 2, "label": each.label[:_MAX_LABEL], "custom_id": each.value} for each in buttons
    ]
    return [{"type": 1, "components": row}] if row else []


def _id(text: str) -> int:
    if not (text.isascii() and text.isdecimal()):
        raise SendNever(f"{text[:40]!r} is not a Discord id")
    return int(text)


MAX_CHARS: Final = 2_000
log = structlog.get_logger("discord")


def build(table: Table, site: Site) -> Discord:
    """Return the adapter for a configuration."""
    return Discord(table, site)


class Discord:
    """Discord: ``Channel``, ``Types``, ``Edits``, ``Promises``, ``Registers``, ``Admins`` and ``Presses``."""

    name = "discord"
    # Every chunk carries a nonce, by which Discord makes a repeat the same message.
    safe_to_repeat = True
    # One row of a message holds no more.
    buttons_max = 5

    def __init__(self, table: Table, site: Site, *, tempo: Tempo | None = None) -> None:
        self._table = table
        self._site = site
        self._tempo = tempo or Tempo()
        self._rest = Rest(table)
        self._admins = KnownAdmins(durable.monotonic)
        self._servers = Servers()

    # -- what is received ----------------------------------------------------------------------------

    async def run(self, emit: Emit) -> None:
        """Receive until cancelled, over as many connections as it takes. Raises as ``Channel.run``."""
        bot = await self._who_am_i()
        cursors = await Cursors.open(
            self._site.state, bot, lambda: self._site.first_start(self._rest.time.now())
        )
        try:
            async with asyncio.TaskGroup() as group:
                ingress = DiscordIngress(
                    emit, self._rest, cursors, me=bot, view=self._servers, group=group, tempo=self._tempo
                )
                sweeper = Sweeper(
                    self._table,
                    self._site.state,
                    self._rest,
                    cursors,
                    ingress=ingress,
                    view=self._servers,
                    beat=self._beat,
                    patience_s=self._tempo.deadline_s,
                )
                group.create_task(sweeper.run(), name="discord-sweep")
                try:
                    await self._stay_connected(ingress, sweeper)
                finally:
                    ingress.close()
        except BaseExceptionGroup as errors:
            # Several tasks may fail together: a refused token is the one that the operator must hear of.
            raise _gravest(errors) from errors

    async def _who_am_i(self) -> str:
        for pause_s in self._tempo.pauses():
            try:
                return str(int((await self._rest.me())["id"]))
            except CredentialsRefused as error:
                self._site.pulse.fail(str(error))
                raise
            except (ChannelError, KeyError, TypeError, ValueError) as error:
                self._fail(error)
            await asyncio.sleep(pause_s)
        raise AssertionError("pauses never end")

    async def _stay_connected(self, ingress: DiscordIngress, sweeper: Sweeper) -> None:
        """Open one connection after the other; only a refused token ends it."""
        loop = asyncio.get_running_loop()
        pauses = iter(self._tempo.pauses())
        while True:
            began = loop.time()
            try:
                await self._connect(ingress, sweeper)
                self._fail(ChannelDown("the gateway closed the connection"))
            except Exception as error:
                refused = refusal(error)
                if refused is not None:
                    self._site.pulse.fail(str(refused))
                    raise refused from error
                self._fail(error)
            ingress.lost()
            if loop.time() - began > self._tempo.deadline_s:
                # It stood for a while: the next loss is a new one, and not the same trouble still.
                pauses = iter(self._tempo.pauses())
            await asyncio.sleep(next(pauses))

    async def _connect(self, ingress: DiscordIngress, sweeper: Sweeper) -> None:
        client = Gateway(self._table, self._tempo, ingress=ingress, sweeper=sweeper, pulse=self._site.pulse)
        try:
            await self._wait_for_start(await client.prepare())
            self._servers.connection = client
            await client.listen()
        finally:
            await client.shut()

    async def _wait_for_start(self, after_s: float) -> None:
        """Wait where Discord allows no further start today: one more would make it reset the token."""
        if after_s <= 0:
            return
        self._site.pulse.fail(f"Discord allows no further session start now; next one in {after_s:.0f} s")
        log.error("gateway.starts_used_up", after_s=round(after_s))
        await asyncio.sleep(after_s)

    def _fail(self, error: Exception) -> None:
        words = str(error)
        if not isinstance(error, ChannelError):
            words = f"no connection to the gateway: {type(error).__name__}"
        self._site.pulse.fail(words)
        log.warning("gateway.failed", error=words, exc_info=error if _is_bug(error) else None)

    def _beat(self) -> None:
        connection = self._servers.connection
        if connection is not None and connection.up:
            self._site.pulse.beat(within_s=connection.within_s)

    # -- what is sent --------------------------------------------------------------------------------

    def split(self, text: str) -> list[Rendered]:
        """Cut Markdown, of which Discord shows most itself, into chunks of at most 2,000 characters."""
        return [Rendered(chunk) for chunk in split_markdown(discord_markdown(text), MAX_CHARS)]

    async def send(self, chunk: Chunk) -> str:
        """Deliver one chunk; return the id of the message. Raises as ``Channel.send``."""
        channel = _id(chunk.chat_id)
        # A later chunk goes to the channel itself: where the first one is not in the place that was promised,
        # it would be read before the first.
        promised = chunk.first and bool(chunk.meta.get("interaction"))
        # What can be pressed goes there too, and files: a promise is filled in with a text alone.
        fills = isinstance(chunk.content, Rendered) and not chunk.buttons
        if promised and isinstance(chunk.content, Rendered) and fills:
            answered = await rest.fill(self._rest, chunk.meta, chunk.content.plain)
            if answered:
                return answered
        sent = await self._quoting(chunk, channel)
        if promised and not fills:
            await rest.withdraw(self._rest, chunk.meta)
        return sent

    async def _quoting(self, chunk: Chunk, channel: int) -> str:
        try:
            return await self._post(chunk, channel, quote=chunk.reply_to)
        except RequestRefused as error:
            # The quoted message may have been deleted while the model thought.
            if error.code != _MAY_NOT_QUOTE or chunk.reply_to is None:
                raise
        return await self._post(chunk, channel, quote=None)

    async def edit(self, chat_id: str, platform_id: str, content: Rendered) -> None:
        """Replace the text of a message of ours.

        Raises:
            MessageGone: it was deleted, or is not ours.
        """
        channel, message = _id(chat_id), _id(platform_id)
        body = {"content": content.plain, "allowed_mentions": {"parse": []}, "components": []}
        path = "/channels/{channel_id}/messages/{message_id}"
        try:
            await self._rest.ask("PATCH", path, json=body, channel_id=channel, message_id=message)
        except RequestRefused as error:
            if error.code in (_UNKNOWN_MESSAGE, _NOT_OURS):
                raise MessageGone(str(error)) from error
            raise

    async def typing(self, chat_id: str) -> None:
        """Show for some seconds that an answer is being written."""
        channel = _id(chat_id)
        await self._rest.call(lambda http: http.send_typing(channel))

    async def register(self, commands: Mapping[str, str]) -> None:
        """Replace the menu of commands, everywhere where the bot is.

        The command that opens the Activities of an application stays: Discord refuses a list without it.
        """
        application: Any = await self._rest.call(lambda http: http.application_info())
        menu = [_command(name, words) for name, words in commands.items()]
        number = int(application["id"])
        known: Any = await self._rest.call(lambda http: http.get_global_commands(number))
        menu += [
            {name: value for name, value in each.items() if name not in _LISTED_ONLY}
            for each in known
            if each.get("type") == _ENTRY_POINT
        ]
        await self._rest.call(lambda http: http.bulk_upsert_global_commands(number, menu))

    async def is_admin(self, chat_id: str, person_id: str) -> bool:
        """Say whether a person administers the server of a channel, as ``Admins.is_admin``."""
        known = self._admins.known(chat_id, person_id)
        if known is not None:
            return known
        try:
            admin = await self._administers(chat_id, person_id)
        except RequestRefused:
            admin = False
        except (KeyError, TypeError, ValueError) as error:
            raise ChannelError("Discord described a member in an unknown form") from error
        self._admins.note(chat_id, person_id, admin)
        return admin

    async def _administers(self, chat_id: str, person_id: str) -> bool:
        guild_id = (await self._rest.channel(chat_id)).get("guild_id")
        if not guild_id:
            return False
        guild: Any = await self._rest.call(lambda http: http.get_guild(int(guild_id), with_counts=False))
        if str(guild["owner_id"]) == person_id:
            return True
        member: Any = await self._rest.call(lambda http: http.get_member(int(guild_id), int(person_id)))
        held = {str(role) for role in member["roles"]} | {str(guild_id)}
        granted = 0
        for role in guild["roles"]:
            granted |= int(role["permissions"]) if str(role["id"]) in held else 0
        return bool(granted & (_ADMINISTRATOR | _MANAGE_GUILD))

    async def _post(self, chunk: Chunk, channel: int, *, quote: str | None) -> str:
        content = chunk.content if isinstance(chunk.content, Path) else chunk.content.plain
        sent = await self._rest.post(
            channel,
            content,
            nonce=chunk.nonce,
            quote=quote,
            caption=chunk.caption,
            components=_components(chunk.buttons),
        )
        return sent_id(sent)

    def promised(self, message_id: str) -> bool:
        """Say whether "is thinking…" stands where the answer will be, as after a command of the menu."""
        return message_id.startswith(INTERACTION)

    async def aclose(self) -> None:
        """Close what ``send`` uses."""
        await self._rest.aclose()


def _is_bug(error: Exception) -> bool:
    return isinstance(error, AttributeError | KeyError | TypeError | ValueError)


def _gravest(errors: BaseExceptionGroup[BaseException]) -> BaseException:
    """Return the one error of a group that says most."""
    leaves: list[BaseException] = []
    rest: list[BaseException] = [errors]
    while rest:
        each = rest.pop(0)
        if isinstance(each, BaseExceptionGroup):
            rest.extend(each.exceptions)
        else:
            leaves.append(each)
    order = (CredentialsRefused, ChannelError)
    return next((leaf for kind in order for leaf in leaves if isinstance(leaf, kind)), leaves[0])
