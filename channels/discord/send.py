"""Sends to Discord: texts with nonces, files, edits, typing, the menu of commands; all over REST."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any, Final

import durable
from channels.admins import KnownAdmins
from channels.base import Chunk, Rendered
from channels.discord import promise
from channels.discord.rest import RequestRefused, Rest, sent_id
from channels.errors import ChannelError, MessageGone, SendNever
from channels.message import Button

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


class Egress:
    """What goes out; needs no gateway.

    Args:
        clock: monotonic seconds.
    """

    def __init__(self, rest: Rest, *, clock: Callable[[], float] = durable.monotonic) -> None:
        self._rest = rest
        self._admins = KnownAdmins(clock)

    async def send(self, chunk: Chunk) -> str:
        """Deliver one chunk; return the id of the message. Raises as ``Channel.send``."""
        channel = _id(chunk.chat_id)
        # A later chunk goes to the channel itself: where the first one is not in the place that was promised,
        # it would be read before the first.
        promised = chunk.first and bool(chunk.meta.get("interaction"))
        # What can be pressed goes there too, and files: a promise is filled in with a text alone.
        fills = isinstance(chunk.content, Rendered) and not chunk.buttons
        if promised and isinstance(chunk.content, Rendered) and fills:
            answered = await promise.fill(self._rest, chunk.meta, chunk.content.plain)
            if answered:
                return answered
        sent = await self._quoting(chunk, channel)
        if promised and not fills:
            await promise.withdraw(self._rest, chunk.meta)
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
    """Put buttons into one row, in Discord's neutral style."""
    row = [
        {"type": 2, "style": 2, "label": each.label[:_MAX_LABEL], "custom_id": each.value} for each in buttons
    ]
    return [{"type": 1, "components": row}] if row else []


def _id(text: str) -> int:
    if not (text.isascii() and text.isdecimal()):
        raise SendNever(f"{text[:40]!r} is not a Discord id")
    return int(text)
