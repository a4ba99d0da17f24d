"""REST of the local Discord: routes, commands and buttons; before all the calls, faults, limits, the token.

A fault stands until it was used up; it is an object of its own, so that a test can wait for it::

    fault = server.fail("POST", "/channels/*/messages", status=429, retry_after=0.3)
    server.fail("GET", "/channels/123/messages", status=502, html=True, times=2)
    server.fail("POST", "/channels/*/messages", drop="after")       # processed, then the connection breaks
    server.fail("*", "/gateway/bot", hang="before", times=None)     # no answer, for ever
    server.fail("POST", "/channels/*/messages", status=403, code=50007, text="Cannot send messages")
    await server.until(lambda: fault.used)
"""

from __future__ import annotations

import asyncio
import hashlib
import re
import secrets
import time
from bisect import bisect_right
from collections import deque
from collections.abc import Awaitable, Callable, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import UTC, datetime
from inspect import isawaitable
from typing import TYPE_CHECKING, Any, Literal, TypeVar

import orjson
from aiohttp import web
from aiohttp.web_request import FileField

from tests.support.discord_world import (
    ATTACH_FILES,
    EPHEMERAL,
    LOADING,
    READ_MESSAGE_HISTORY,
    SEND_IN_THREADS,
    SEND_MESSAGES,
    VIEW_CHANNEL,
    Channel,
    Message,
    Person,
)

if TYPE_CHECKING:
    from tests.support.discord_server import DiscordServer

HTML = (
    "<!DOCTYPE html><html><head><title>discord.com | {0}</title></head><body><h1>Error {0}</h1></body></html>"
)
# The platform's own limits, as far as they are known: requests, seconds. None is every route together.
REAL_LIMITS: dict[str | None, tuple[int, float]] = {
    None: (50, 1.0),
    "POST /channels/{channel_id}/messages": (5, 5.0),
    "PATCH /channels/{channel_id}/messages/{message_id}": (5, 5.0),
    "DELETE /channels/{channel_id}/messages/{message_id}": (5, 1.0),
    "GET /channels/{channel_id}/messages": (5, 5.0),
    "POST /channels/{channel_id}/typing": (5, 5.0),
    "PUT /applications/{application_id}/commands": (2, 20.0),
    "POST /webhooks/{application_id}/{token}": (5, 5.0),
}
# Routes that need no token and are outside the global limit.
OPEN = ("/interactions/", "/webhooks/", "/attachments/")
T = TypeVar("T")
Handler = Callable[[web.Request], Awaitable[web.StreamResponse]]


@dataclass(eq=False)
class Fault:
    """What the next requests of a route get, ``times`` of them (None: all); see the module's docstring."""

    method: str
    route: re.Pattern[str]
    status: int = 0
    retry_after: float = 0.0
    # Whether the 429 is a global one.
    everywhere: bool = False
    # Without it a 429 looks like a ban.
    via: bool = True
    html: bool = False
    code: int = 0
    text: str = ""
    drop: Literal["", "before", "after"] = ""
    hang: Literal["", "before", "after"] = ""
    # How long the answer takes.
    late_s: float = 0.0
    times: int | None = 1
    used: int = 0

    def meets(self, method: str, path: str) -> bool:
        left = self.times is None or self.used < self.times
        return left and self.method in ("*", method) and bool(self.route.fullmatch(path))


def pattern(route: str) -> re.Pattern[str]:
    """The expression of a route in which ``*`` and ``{name}`` stand for one part of the path."""
    parts = re.split(r"\*|\{\w+\}", route)
    return re.compile("[^/]+".join(re.escape(part) for part in parts))


@dataclass(frozen=True)
class Call:
    """One request, as it arrived; ``route`` is the template, ``path`` what was asked, ``at`` monotonic."""

    method: str
    route: str
    path: str
    query: dict[str, str]
    at: float


@dataclass(frozen=True)
class Sent:
    """A message of the bot that was accepted; ``files`` are (name, type, bytes)."""

    id: str
    channel_id: str
    text: str
    nonce: str | int | None
    reference: str | None
    files: list[tuple[str, str, bytes]]
    allowed_mentions: dict[str, Any] | None
    # Either "channel" or "interaction".
    via: str
    at: float


class Refused(Exception):
    def __init__(self, status: int, code: int, text: str, errors: dict[str, Any] | None = None) -> None:
        super().__init__(text)
        self.status = status
        self.body: dict[str, Any] = {"message": text, "code": code}
        if errors:
            self.body["errors"] = errors


def invalid(name: str, code: str, text: str) -> Refused:
    errors = {name: {"_errors": [{"code": code, "message": text}]}}
    return Refused(400, 50035, "Invalid Form Body", errors)


def json(body: Any, status: int = 200) -> web.Response:
    return web.Response(body=orjson.dumps(body), status=status, content_type="application/json")


@dataclass
class Buckets:
    limits: dict[str | None, tuple[int, float]]
    _taken: dict[str, deque[float]] = field(default_factory=dict)

    def take(self, call: Call, major: str) -> tuple[dict[str, str], float, bool]:
        """Return the headers, the seconds to wait (0: go on), and whether that is the global limit."""
        name = f"{call.method} {call.route}"
        if None in self.limits and not call.route.startswith(OPEN):
            wait, _, _ = self._count("global", *self.limits[None])
            if wait:
                return {"X-RateLimit-Global": "true", "X-RateLimit-Scope": "global"}, wait, True
        if name not in self.limits:
            return {}, 0.0, False
        limit, per_s = self.limits[name]
        wait, left, reset = self._count(f"{name} {major}", limit, per_s)
        headers = {
            "X-RateLimit-Limit": str(limit),
            "X-RateLimit-Remaining": str(left),
            "X-RateLimit-Reset": f"{time.time() + reset:.3f}",
            "X-RateLimit-Reset-After": f"{reset:.3f}",
            "X-RateLimit-Bucket": hashlib.sha256(name.encode()).hexdigest()[:32],
        }
        return headers | ({"X-RateLimit-Scope": "user"} if wait else {}), wait, False

    def _count(self, key: str, limit: int, per_s: float) -> tuple[float, int, float]:
        now, taken = time.monotonic(), self._taken.setdefault(key, deque())
        # A window opens with its first request and ends as a whole.
        if taken and now - taken[0] >= per_s:
            taken.clear()
        reset = per_s - (now - taken[0]) if taken else per_s
        if len(taken) >= limit:
            return reset, 0, reset
        taken.append(now)
        return 0.0, limit - len(taken), reset


class Rest:
    def __init__(self, server: DiscordServer) -> None:
        self._server = server
        self.released = asyncio.Event()

    @web.middleware
    async def middleware(self, request: web.Request, handler: Handler) -> web.StreamResponse:
        """Note the call, then apply faults, limits and the check of the token."""
        resource = request.match_info.route.resource
        template = (resource.canonical if resource else request.path).removeprefix("/api/v10")
        if template in ("/gateway/", "/resume"):
            return await handler(request)
        path = request.path.removeprefix("/api/v10")
        call = Call(request.method, template, path, dict(request.query), time.monotonic())
        self._server.calls.append(call)
        self._server.notify()
        fault = next((one for one in self._server.faults if one.meets(call.method, path)), None)
        if fault is not None:
            fault.used += 1
            self._server.notify()
            if await self._broken(request, "before", fault):
                return web.Response(status=500)
            if fault.status:
                return self._faulty(fault)
        response = await self._answer(request, handler, call)
        if fault is not None:
            await asyncio.sleep(fault.late_s)
            await self._broken(request, "after", fault)
        return response

    async def _broken(self, request: web.Request, when: str, fault: Fault) -> bool:
        """Hang or cut the connection, if the fault says so at this point."""
        if when not in (fault.hang, fault.drop):
            return False
        if fault.hang:
            await self.released.wait()
        if request.transport is not None:
            request.transport.abort()
        return True

    def _faulty(self, fault: Fault) -> web.Response:
        headers = {"Via": "1.1 google"} if fault.via else {}
        if fault.status == 429:
            headers["Retry-After"] = str(max(1, round(fault.retry_after)))
        if fault.html:
            page = HTML.format(fault.status)
            return web.Response(status=fault.status, text=page, content_type="text/html", headers=headers)
        if fault.status == 429:
            return self._limited(fault.retry_after, fault.everywhere, headers)
        text = fault.text or {401: "401: Unauthorized", 403: "Missing Access"}.get(fault.status, "Unknown")
        response = json({"message": text, "code": fault.code}, fault.status)
        response.headers.update(headers)
        return response

    def _limited(self, wait: float, everywhere: bool, headers: dict[str, str]) -> web.Response:
        body = {"message": "You are being rate limited.", "retry_after": wait, "global": everywhere}
        response = json(body, 429)
        response.headers.update({"Via": "1.1 google", "Retry-After": str(max(1, round(wait)))} | headers)
        return response

    async def _answer(self, request: web.Request, handler: Handler, call: Call) -> web.StreamResponse:
        parts = request.match_info
        major = parts.get("channel_id") or parts.get("guild_id") or parts.get("token") or ""
        headers, wait, everywhere = self._server.buckets.take(call, major)
        if wait:
            return self._limited(wait, everywhere, headers)
        try:
            known = request.headers.get("Authorization") == f"Bot {self._server.token}"
            if not known and not call.route.startswith(OPEN):
                raise Refused(401, 0, "401: Unauthorized")
            response = await handler(request)
        except Refused as error:
            response = json(error.body, error.status)
        except web.HTTPNotFound:
            response = json({"message": "404: Not Found", "code": 0}, 404)
        response.headers.update(headers)
        response.headers["Via"] = "1.1 google"
        return response


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
    text = str(payload.get("content") or "")
    if len(text) > MAX_CHARS:
        raise invalid("content", "BASE_TYPE_MAX_LENGTH", f"Must be {MAX_CHARS} or fewer in length.")
    if not text.strip() and not files and not payload.get("embeds") and not payload.get("components"):
        raise Refused(400, 50006, "Cannot send an empty message")


def check_options(number: int, options: Sequence[dict[str, Any]]) -> None:
    if len(options) > MAX_OPTIONS:
        raise invalid(str(number), "BASE_TYPE_MAX_LENGTH", f"Must be {MAX_OPTIONS} or fewer in length.")
    for option in options:
        name, description = str(option.get("name", "")), str(option.get("description", ""))
        if re.fullmatch(r"[-\w]{1,32}", name) is None or name != name.lower():
            raise invalid(str(number), "APPLICATION_COMMAND_INVALID_NAME", "Option name is invalid")
        if not 1 <= len(description) <= 100:
            raise invalid(str(number), "BASE_TYPE_BAD_LENGTH", "Must be between 1 and 100 in length.")


def known_or(found: T | None, code: int, text: str, *, status: int = 404) -> T:
    if found is None:
        raise Refused(status, code, text)
    return found


def routes(table: Sequence[tuple[str, str, Callable[[web.Request], Any]]]) -> list[web.RouteDef]:
    """Serve what each handler returns as JSON; None is an answer without content."""

    def serving(handler: Callable[[web.Request], Any]) -> Handler:
        async def serve(request: web.Request) -> web.StreamResponse:
            found = handler(request)
            body = await found if isawaitable(found) else found
            return web.Response(status=204) if body is None else json(body)

        return serve

    return [web.route(method, f"/api/v10{path}", serving(handler)) for method, path, handler in table]


class Routes:
    def __init__(self, server: DiscordServer) -> None:
        self._server = server

    def table(self) -> list[web.RouteDef]:
        server, message = self._server, "/channels/{channel_id}/messages/{message_id}"
        table: list[tuple[str, str, Callable[[web.Request], Any]]] = [
            ("GET", "/users/@me", lambda _: server.bot.payload()),
            ("POST", "/users/@me/channels", self._open_direct),
            ("GET", "/oauth2/applications/@me", self._application),
            ("GET", "/gateway/bot", self._gateway),
            ("GET", "/guilds/{guild_id}", lambda request: self._guild_of(request).payload()),
            (
                "GET",
                "/guilds/{guild_id}/channels",
                lambda request: [each.payload() for each in self._guild_of(request).channels],
            ),
            ("GET", "/guilds/{guild_id}/threads/active", self._threads),
            ("GET", "/guilds/{guild_id}/members/{user_id}", self._member),
            ("GET", "/channels/{channel_id}", lambda request: self._channel_of(request).payload()),
            ("GET", "/channels/{channel_id}/messages", self._history),
            ("POST", "/channels/{channel_id}/messages", self._send),
            ("GET", message, self._message),
            ("PATCH", message, self._edit),
            ("POST", "/channels/{channel_id}/typing", self._typing),
            ("GET", "/applications/{application_id}/commands", lambda _: server.commands),
            ("PUT", "/applications/{application_id}/commands", self._put_commands),
        ]
        return routes(table)

    # -- who and where ------------------------------------------------------------------------------

    def _application(self, _: web.Request) -> Any:
        server = self._server
        about = {"id": server.application_id, "name": "gateway", "icon": None, "description": ""}
        about |= {
            "owner": server.user("owner").payload(),
            "verify_key": "0" * 64,
            "flags": server.application_flags,
        }
        return about | {"bot_public": True, "bot_require_code_grant": False}

    async def _open_direct(self, request: web.Request) -> Any:
        payload, _ = await body_of(request)
        known = self._server.people.get(str(payload.get("recipient_id")))
        person = known_or(known, 50033, "Invalid Recipient(s)", status=400)
        if person.bot:
            raise Refused(400, 50007, "Cannot send messages to this user")
        return self._server.dm(person).payload()

    async def _gateway(self, _: web.Request) -> Any:
        left = max(0, self._server.gateway.identifies_left)
        start = {"total": 1000, "remaining": left, "reset_after": 86_400_000, "max_concurrency": 1}
        return {"url": self._server.gateway_url, "shards": 1, "session_start_limit": start}

    def _guild_of(self, request: web.Request) -> Any:
        return known_or(self._server.guilds.get(request.match_info["guild_id"]), 10004, "Unknown Guild")

    async def _threads(self, request: web.Request) -> Any:
        active = [thread for thread in self._guild_of(request).threads if not thread.archived]
        seen = [thread.payload() for thread in active if self._server.may(VIEW_CHANNEL, thread)]
        return {"threads": sorted(seen, key=lambda thread: -int(thread["id"])), "members": []}

    async def _member(self, request: web.Request) -> Any:
        guild = self._guild_of(request)
        member = known_or(guild.members.get(request.match_info["user_id"]), 10007, "Unknown Member")
        return guild.member(member[0])

    def _channel_of(self, request: web.Request) -> Channel:
        found = self._server.channels.get(request.match_info["channel_id"])
        channel = known_or(found, 10003, "Unknown Channel")
        if not self._server.may(VIEW_CHANNEL, channel):
            raise Refused(403, 50001, "Missing Access")
        return channel

    # -- messages -----------------------------------------------------------------------------------

    async def _history(self, request: web.Request) -> Any:
        channel, query = self._channel_of(request), request.query
        limit = int(query["limit"])
        if not 1 <= limit <= 100:
            raise invalid("limit", "NUMBER_TYPE_MAX", "int value should be between 1 and 100.")
        if not self._server.may(READ_MESSAGE_HISTORY, channel):
            return []
        first = bisect_right(channel.messages, int(query["after"]))
        found = channel.messages[first : first + limit]
        return [self._shown(self._server.messages[str(one)]) for one in reversed(found)]

    def _shown(self, message: Message) -> dict[str, Any]:
        return self._server.payload(message, content="message_content" in self._server.privileged)

    def _message_of(self, request: web.Request) -> Message:
        channel = self._channel_of(request)
        message = self._server.messages.get(request.match_info["message_id"])
        if message is None or message.channel is not channel:
            raise Refused(404, 10008, "Unknown Message")
        return message

    async def _message(self, request: web.Request) -> Any:
        message = self._message_of(request)
        if not self._server.may(READ_MESSAGE_HISTORY, message.channel):
            raise Refused(403, 50013, "Missing Permissions")
        return self._shown(message)

    async def _send(self, request: web.Request) -> Any:
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
                return self._server.payload(known) | {"nonce": nonce}
        message = self._server.accept(channel, payload, files, reply_to=self._reference(channel, payload))
        return self._server.payload(message) | ({"nonce": nonce} if nonce is not None else {})

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

    async def _edit(self, request: web.Request) -> Any:
        message = self._message_of(request)
        payload, files = await body_of(request)
        if message.author is not self._server.bot:
            raise Refused(403, 50005, "Cannot edit a message authored by another user")
        if "content" in payload:
            check_text(payload, files or message.attachments)
        self._server.revise(message, payload, files)
        return self._shown(message)

    async def _typing(self, request: web.Request) -> Any:
        channel = self._channel_of(request)
        self._server.typings.append((channel.id, self._server.now()))
        self._server.notify()
        return None

    # -- commands -----------------------------------------------------------------------------------

    async def _put_commands(self, request: web.Request) -> Any:
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
        return made


REPLY, DEFERRED = 4, 5
# A pressed button, and the answer to it that changes nothing.
PRESSED, RESTS = 3, 6


@dataclass(eq=False)
class Interaction:
    """One slash command or pressed button; times are monotonic.

    ``acked`` in time by a callback; ``original`` is the answer, without text while it is deferred.
    """

    id: str
    command: str
    user: Person
    channel: Channel
    at: float
    token: str = field(default_factory=lambda: secrets.token_urlsafe(60))
    acked: bool = False
    kind: int = 0
    original: Message | None = None

    @property
    def deferred(self) -> bool:
        return self.kind == DEFERRED

    @property
    def answers(self) -> list[str]:
        return [self.original.content] if self.original and not self.original.flags & LOADING else []


class Interactions:
    """What happens to slash commands: ``deadline_s`` for the callback, ``token_s`` for its token."""

    def __init__(self, server: DiscordServer) -> None:
        self._server = server
        self.deadline_s, self.token_s = 3.0, 900.0
        self.begun: list[Interaction] = []

    def begin(
        self, command: str, options: Mapping[str, Any] | None, user: Person, channel: Channel
    ) -> Interaction:
        """Let a person use a command; every client is told.

        Raises:
            ValueError: the command is registered without one of the options.
        """
        server = self._server
        for one in server.commands:
            offered = {option["name"] for option in one.get("options", ())}
            if one["name"] == command and (strange := set(options or ()) - offered):
                raise ValueError(f"/{command} has no option {strange}")
        interaction = Interaction(server.snowflakes.next(), command, user, channel, server.now())
        self.begun.append(interaction)
        known = [one["id"] for one in server.commands if one["name"] == command]
        id_ = known[0] if known else server.snowflakes.next()
        data: dict[str, Any] = {"id": id_, "name": command, "type": 1}
        if options:
            data["options"] = [{"name": k, "type": 3, "value": v} for k, v in options.items()]
        self._dispatch(interaction, {"type": 2, "data": data})
        return interaction

    def press(self, message: Message, custom_id: str, user: Person) -> Interaction:
        """Let a person press a button below a message; every client is told."""
        server = self._server
        interaction = Interaction(server.snowflakes.next(), "", user, message.channel, server.now())
        self.begun.append(interaction)
        data = {"component_type": 2, "custom_id": custom_id}
        self._dispatch(interaction, {"type": PRESSED, "data": data, "message": server.payload(message)})
        return interaction

    def _dispatch(self, interaction: Interaction, about: dict[str, Any]) -> None:
        server, channel, user = self._server, interaction.channel, interaction.user
        event = about | {
            "id": interaction.id,
            "application_id": server.application_id,
            "token": interaction.token,
            "channel_id": channel.id,
            "channel": channel.payload(),
        }
        if channel.guild is None:
            event |= {"user": user.payload()}
        else:
            event |= {"guild_id": channel.guild.id, "member": channel.guild.member(user)}
        server.gateway.dispatch("INTERACTION_CREATE", 0, event)

    def table(self) -> list[web.RouteDef]:
        message = "/webhooks/{application_id}/{token}/messages/@original"
        table: list[tuple[str, str, Callable[[web.Request], Any]]] = [
            ("POST", "/interactions/{interaction_id}/{token}/callback", self._callback),
            ("GET", message, lambda request: self._server.payload(self._original(request))),
            ("PATCH", message, self._edit),
            ("DELETE", message, lambda request: self._server.delete(self._original(request).id)),
        ]
        return routes(table)

    async def _callback(self, request: web.Request) -> Any:
        parts = request.match_info
        wanted = (parts["interaction_id"], parts["token"])
        found = next((one for one in self.begun if (one.id, one.token) == wanted), None)
        payload, files = await body_of(request)
        interaction = known_or(found, 10062, "Unknown interaction")
        if interaction.acked:
            raise Refused(400, 40060, "Interaction has already been acknowledged.")
        if self._server.now() - interaction.at > self.deadline_s:
            raise Refused(404, 10062, "Unknown interaction")
        kind, data = payload.get("type"), payload.get("data") or {}
        if kind == REPLY:
            check_text(data, files)
        interaction.acked, interaction.kind = True, kind
        flags = int(data.get("flags") or 0) & EPHEMERAL
        if kind == DEFERRED:
            interaction.original = self._place(interaction, flags | LOADING)
        elif kind == REPLY:
            interaction.original = self._say(interaction, data, files, flags)
        else:
            assert (kind, interaction.command) == (RESTS, "")
        self._server.notify()
        return None

    def _place(self, interaction: Interaction, flags: int) -> Message:
        server = self._server
        message = Message(server.snowflakes.next(), interaction.channel, server.bot, "", flags=flags, type=20)
        server.store(message)
        if flags & LOADING:
            server.announce("MESSAGE_CREATE", message)
        return message

    def _say(
        self, interaction: Interaction, data: dict[str, Any], files: list[Upload], flags: int
    ) -> Message:
        message = self._place(interaction, flags)
        self._server.fill(message, data, files, via="interaction")
        self._server.announce("MESSAGE_CREATE", message)
        return message

    def _of(self, request: web.Request) -> Interaction:
        parts = request.match_info
        found = next((one for one in self.begun if one.token == parts["token"] and one.acked), None)
        ours = found if parts["application_id"] == self._server.application_id else None
        interaction = known_or(ours, 10015, "Unknown Webhook")
        if self._server.now() - interaction.at > self.token_s:
            raise Refused(401, 50027, "Invalid Webhook Token")
        return interaction

    def _fill(self, message: Message, payload: dict[str, Any], files: list[Upload]) -> None:
        message.flags &= ~LOADING
        self._server.fill(message, payload, files, via="interaction")
        self._server.announce("MESSAGE_UPDATE", message)

    def _original(self, request: web.Request) -> Message:
        message = self._of(request).original
        if message is None or message.id not in self._server.messages:
            raise Refused(404, 10008, "Unknown Message")
        return message

    async def _edit(self, request: web.Request) -> Any:
        message = self._original(request)
        payload, files = await body_of(request)
        check_text(payload, files)
        if message.flags & LOADING:
            self._fill(message, payload, files)
        else:
            self._server.revise(message, payload, files)
        return self._server.payload(message)
