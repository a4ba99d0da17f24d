"""The REST routes of the local Discord: what each reads and changes."""

from __future__ import annotations

import re
from bisect import bisect_left, bisect_right
from collections.abc import Sequence
from datetime import UTC, datetime
from typing import TYPE_CHECKING, Any

import orjson
from aiohttp import web
from aiohttp.web_request import FileField

from tests.support.discord_rest import Handler, Refused, invalid, json
from tests.support.discord_world import (
    ATTACH_FILES,
    READ_MESSAGE_HISTORY,
    SEND_IN_THREADS,
    SEND_MESSAGES,
    VIEW_CHANNEL,
    Channel,
    Message,
)

if TYPE_CHECKING:
    from tests.support.discord_server import DiscordServer

MAX_CHARS, NONCE_CHARS, NONCE_S = 2000, 25, 300
MAX_OPTIONS = 25
Upload = tuple[str, str, bytes]


async def body_of(request: web.Request) -> tuple[Any, list[Upload]]:
    """The JSON of a request and the files that came with it (name, type, bytes)."""
    if request.content_type != "multipart/form-data":
        try:
            return orjson.loads(await request.read() or b"{}"), []
        except orjson.JSONDecodeError:
            raise Refused(400, 50109, "The request body contains invalid JSON.") from None
    form = await request.post()
    files = [
        (part.filename, part.content_type, part.file.read())
        for name, part in form.items()
        if name.startswith("files[") and isinstance(part, FileField)
    ]
    return orjson.loads(str(form.get("payload_json", "{}"))), files


def check_text(payload: dict[str, Any], files: Sequence[Upload]) -> None:
    """Refuse a text that is too long, and a message of nothing at all."""
    text = str(payload.get("content") or "")
    if len(text) > MAX_CHARS:
        raise invalid("content", "BASE_TYPE_MAX_LENGTH", f"Must be {MAX_CHARS} or fewer in length.")
    if not text.strip() and not files and not payload.get("embeds") and not payload.get("components"):
        raise Refused(400, 50006, "Cannot send an empty message")


def check_options(number: int, options: Sequence[dict[str, Any]]) -> None:
    """Refuse what a command of the menu may not take."""
    if len(options) > MAX_OPTIONS:
        raise invalid(str(number), "BASE_TYPE_MAX_LENGTH", f"Must be {MAX_OPTIONS} or fewer in length.")
    for option in options:
        name, description = str(option.get("name", "")), str(option.get("description", ""))
        if re.fullmatch(r"[-\w]{1,32}", name) is None or name != name.lower():
            raise invalid(str(number), "APPLICATION_COMMAND_INVALID_NAME", "Option name is invalid")
        if not 1 <= len(description) <= 100:
            raise invalid(str(number), "BASE_TYPE_BAD_LENGTH", "Must be between 1 and 100 in length.")


class Routes:
    """The routes of everything but interactions."""

    def __init__(self, server: DiscordServer) -> None:
        self._server = server

    def table(self) -> list[web.RouteDef]:
        message = "/channels/{channel_id}/messages/{message_id}"
        table: list[tuple[str, str, Handler]] = [
            ("GET", "/users/@me", self._me),
            ("GET", "/users/@me/channels", self._no_directs),
            ("POST", "/users/@me/channels", self._open_direct),
            ("GET", "/users/{user_id}", self._user),
            ("GET", "/oauth2/applications/@me", self._application),
            ("GET", "/gateway", self._gateway),
            ("GET", "/gateway/bot", self._gateway),
            ("GET", "/guilds/{guild_id}", self._guild),
            ("GET", "/guilds/{guild_id}/channels", self._guild_channels),
            ("GET", "/guilds/{guild_id}/threads/active", self._threads),
            ("GET", "/guilds/{guild_id}/members/{user_id}", self._member),
            ("GET", "/guilds/{guild_id}/roles", self._roles),
            ("GET", "/channels/{channel_id}", self._channel),
            ("GET", "/channels/{channel_id}/messages", self._history),
            ("POST", "/channels/{channel_id}/messages", self._send),
            ("GET", message, self._message),
            ("PATCH", message, self._edit),
            ("DELETE", message, self._delete),
            ("POST", "/channels/{channel_id}/typing", self._typing),
            ("GET", "/applications/{application_id}/commands", self._commands),
            ("PUT", "/applications/{application_id}/commands", self._put_commands),
        ]
        return [web.route(method, f"/api/v10{path}", handler) for method, path, handler in table]

    # -- who and where ------------------------------------------------------------------------------

    async def _me(self, _: web.Request) -> web.Response:
        more = {"verified": True, "mfa_enabled": False, "flags": 0, "locale": "en-US", "email": None}
        return json(self._server.bot.payload() | more)

    async def _user(self, request: web.Request) -> web.Response:
        person = self._server.people.get(request.match_info["user_id"])
        if person is None:
            raise Refused(404, 10013, "Unknown User")
        return json(person.payload())

    async def _no_directs(self, _: web.Request) -> web.Response:
        return json([])

    async def _open_direct(self, request: web.Request) -> web.Response:
        payload, _ = await body_of(request)
        person = self._server.people.get(str(payload.get("recipient_id")))
        if person is None:
            raise Refused(400, 50033, "Invalid Recipient(s)")
        if person.bot:
            raise Refused(400, 50007, "Cannot send messages to this user")
        return json(self._server.dm(person).payload())

    async def _application(self, _: web.Request) -> web.Response:
        server = self._server
        return json(
            {
                "id": server.application_id,
                "name": "gateway",
                "icon": None,
                "description": "",
                "bot_public": True,
                "bot_require_code_grant": False,
                "owner": server.user("owner").payload(),
                "team": None,
                "verify_key": "0" * 64,
                "flags": server.application_flags,
                "interactions_endpoint_url": None,
            }
        )

    async def _gateway(self, request: web.Request) -> web.Response:
        body: dict[str, Any] = {"url": self._server.gateway_url}
        if request.path.endswith("/bot"):
            gateway = self._server.gateway
            start = {"total": gateway.identifies_total, "remaining": max(0, gateway.identifies_left)}
            start |= {"reset_after": 86_400_000, "max_concurrency": gateway.max_concurrency}
            body |= {"shards": 1, "session_start_limit": start}
        return json(body)

    def _guild_of(self, request: web.Request) -> Any:
        guild = self._server.guilds.get(request.match_info["guild_id"])
        if guild is None:
            raise Refused(404, 10004, "Unknown Guild")
        return guild

    async def _guild(self, request: web.Request) -> web.Response:
        return json(self._guild_of(request).payload())

    async def _guild_channels(self, request: web.Request) -> web.Response:
        return json([channel.payload() for channel in self._guild_of(request).channels])

    async def _threads(self, request: web.Request) -> web.Response:
        active = [thread for thread in self._guild_of(request).threads if not thread.archived]
        seen = [thread.payload() for thread in active if self._server.may(VIEW_CHANNEL, thread)]
        return json({"threads": sorted(seen, key=lambda thread: -int(thread["id"])), "members": []})

    async def _member(self, request: web.Request) -> web.Response:
        guild = self._guild_of(request)
        entry = guild.members.get(request.match_info["user_id"])
        if entry is None:
            raise Refused(404, 10007, "Unknown Member")
        return json(guild.member(entry[0]))

    async def _roles(self, request: web.Request) -> web.Response:
        return json([role.payload() for role in self._guild_of(request).roles])

    def _channel_of(self, request: web.Request) -> Channel:
        channel = self._server.channels.get(request.match_info["channel_id"])
        if channel is None:
            raise Refused(404, 10003, "Unknown Channel")
        if not self._server.may(VIEW_CHANNEL, channel):
            raise Refused(403, 50001, "Missing Access")
        return channel

    async def _channel(self, request: web.Request) -> web.Response:
        return json(self._channel_of(request).payload())

    # -- messages -----------------------------------------------------------------------------------

    async def _history(self, request: web.Request) -> web.Response:
        channel, query = self._channel_of(request), request.query
        try:
            limit = int(query.get("limit", 50))
            points = {name: int(query[name]) for name in ("before", "after", "around") if name in query}
        except ValueError:
            raise invalid("limit", "NUMBER_TYPE_COERCE", "Value is not an integer.") from None
        if not 1 <= limit <= 100:
            raise invalid("limit", "NUMBER_TYPE_MAX", "int value should be between 1 and 100.")
        if len(points) > 1:
            raise invalid("_errors", "MESSAGE_QUERY", "Only one of before, after and around may be given.")
        if not self._server.may(READ_MESSAGE_HISTORY, channel):
            return json([])
        ids = channel.messages
        if "after" in points:
            first = bisect_right(ids, points["after"])
            found = ids[first : first + limit]
        elif "around" in points:
            middle = bisect_left(ids, points["around"])
            first = max(0, middle - limit // 2)
            found = ids[first : first + limit]
        else:
            end = bisect_left(ids, points["before"]) if "before" in points else len(ids)
            found = ids[max(0, end - limit) : end]
        return json([self._shown(self._server.messages[str(one)]) for one in reversed(found)])

    def _shown(self, message: Message) -> dict[str, Any]:
        return self._server.payload(message, content="message_content" in self._server.privileged)

    def _message_of(self, request: web.Request) -> Message:
        channel = self._channel_of(request)
        message = self._server.messages.get(request.match_info["message_id"])
        if message is None or message.channel is not channel:
            raise Refused(404, 10008, "Unknown Message")
        return message

    async def _message(self, request: web.Request) -> web.Response:
        message = self._message_of(request)
        if not self._server.may(READ_MESSAGE_HISTORY, message.channel):
            raise Refused(403, 50013, "Missing Permissions")
        return json(self._shown(message))

    async def _send(self, request: web.Request) -> web.Response:
        channel = self._channel_of(request)
        payload, files = await body_of(request)
        needed = SEND_IN_THREADS if channel.parent else SEND_MESSAGES
        if not self._server.may(needed, channel) or (files and not self._server.may(ATTACH_FILES, channel)):
            raise Refused(403, 50013, "Missing Permissions")
        check_text(payload, files)
        if sum(len(data) for _, _, data in files) > self._server.max_upload_bytes:
            raise Refused(413, 40005, "Request entity too large")
        nonce = payload.get("nonce")
        if isinstance(nonce, str) and len(nonce) > NONCE_CHARS:
            raise invalid("nonce", "NONCE_TYPE_TOO_LONG", f"Must be {NONCE_CHARS} or fewer in length.")
        if payload.get("enforce_nonce") and nonce is not None:
            known = self._known(channel, nonce)
            if known is not None:
                return json(self._server.payload(known) | {"nonce": nonce})
        message = self._server.accept(channel, payload, files, reply_to=self._reference(channel, payload))
        return json(self._server.payload(message) | ({"nonce": nonce} if nonce is not None else {}))

    def _known(self, channel: Channel, nonce: str | int) -> Message | None:
        """The message of the bot that this nonce made within the last minutes."""
        for sent in reversed(self._server.sent):
            if self._server.now() - sent.at > NONCE_S:
                return None
            if sent.channel_id == channel.id and str(sent.nonce) == str(nonce):
                return self._server.messages.get(sent.id)
        return None

    def _reference(self, channel: Channel, payload: dict[str, Any]) -> str | None:
        reference = payload.get("message_reference")
        if not reference:
            return None
        if not self._server.may(READ_MESSAGE_HISTORY, channel):
            raise Refused(400, 160002, "Cannot reply without permission to read message history")
        message = self._server.messages.get(str(reference.get("message_id")))
        if message is not None and message.channel is channel:
            return message.id
        if reference.get("fail_if_not_exists", True):
            raise invalid("message_reference", "MESSAGE_REFERENCE_UNKNOWN_MESSAGE", "Unknown message")
        return None

    async def _edit(self, request: web.Request) -> web.Response:
        message = self._message_of(request)
        payload, files = await body_of(request)
        if message.author is not self._server.bot:
            raise Refused(403, 50005, "Cannot edit a message authored by another user")
        if "content" in payload:
            check_text(payload, files or message.attachments)
        self._server.revise(message, payload, files)
        return json(self._shown(message))

    async def _delete(self, request: web.Request) -> web.Response:
        message = self._message_of(request)
        if message.author is not self._server.bot:
            raise Refused(403, 50003 if message.channel.guild is None else 50013, "Missing Permissions")
        self._server.delete(message.id)
        return web.Response(status=204)

    async def _typing(self, request: web.Request) -> web.Response:
        channel = self._channel_of(request)
        self._server.typings.append((channel.id, self._server.now()))
        self._server.notify()
        return web.Response(status=204)

    # -- commands -----------------------------------------------------------------------------------

    async def _commands(self, _: web.Request) -> web.Response:
        return json(self._server.commands)

    async def _put_commands(self, request: web.Request) -> web.Response:
        payload, _ = await body_of(request)
        if not isinstance(payload, list) or len(payload) > 100:
            raise Refused(400, 30032, "Maximum number of application commands reached (100)")
        server = self._server
        kept = {command["id"] for command in payload if command.get("type") == 4}
        if any(command["id"] not in kept for command in server.commands if command["type"] == 4):
            words = "You cannot remove this app's Entry Point command in a bulk update operation."
            raise Refused(400, 50240, words)
        old = {command["name"]: command["id"] for command in server.commands}
        made = []
        for number, command in enumerate(payload):
            name, description = str(command.get("name", "")), str(command.get("description", ""))
            kind = command.get("type", 1)
            if not 1 <= len(name) <= 32 or (kind == 1 and (name != name.lower() or " " in name)):
                raise invalid(str(number), "APPLICATION_COMMAND_INVALID_NAME", "Command name is invalid")
            if kind == 1 and not 1 <= len(description) <= 100:
                raise invalid(str(number), "BASE_TYPE_BAD_LENGTH", "Must be between 1 and 100 in length.")
            check_options(number, command.get("options") or ())
            fixed = {"id": old.get(name) or server.snowflakes.next(), "type": kind, "name": name}
            fixed |= {"application_id": server.application_id, "version": server.snowflakes.next()}
            defaults = {"default_member_permissions": None, "dm_permission": True, "nsfw": False}
            made.append(defaults | command | fixed | {"description": description})
        server.commands = made
        server.command_puts.append(datetime.now(UTC))
        server.notify()
        return json(made)
