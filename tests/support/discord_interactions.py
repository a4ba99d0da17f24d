"""Slash commands and buttons of the local Discord: 3 s to acknowledge, deferrals, the 15 min token."""

from __future__ import annotations

import secrets
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from aiohttp import web

from tests.support.discord_rest import Handler, Refused, invalid, json
from tests.support.discord_routes import Upload, body_of, check_text
from tests.support.discord_world import EPHEMERAL, LOADING, Channel, Message, Person

if TYPE_CHECKING:
    from tests.support.discord_server import DiscordServer

REPLY, DEFERRED = 4, 5
# A pressed button, and the answer to it that changes nothing.
PRESSED, RESTS = 3, 6
KINDS = {str: 3, int: 4, bool: 5, float: 10}


@dataclass(eq=False)
class Interaction:
    """One slash command; times are monotonic.

    Args:
        acked_at: when the callback came that was accepted; None where none came in time.
        late: callbacks that came after the deadline, or twice.
        original: the first answer; while it is deferred it is a placeholder without text.
        answers: the texts of the answers, the original's first.
    """

    id: str
    command: str
    user: Person
    channel: Channel
    at: float
    token: str = field(default_factory=lambda: secrets.token_urlsafe(60))
    acked_at: float | None = None
    kind: int = 0
    late: int = 0
    original: Message | None = None
    followups: list[Message] = field(default_factory=list)

    @property
    def acked(self) -> bool:
        """Whether it was acknowledged in time, by an answer or a deferral."""
        return self.acked_at is not None

    @property
    def deferred(self) -> bool:
        """Whether it was deferred in time."""
        return self.kind == DEFERRED

    @property
    def answers(self) -> list[str]:
        filled = [self.original] if self.original and not self.original.flags & LOADING else []
        return [message.content for message in filled + self.followups]


class Interactions:
    """What happens to slash commands.

    Args:
        deadline_s: how long the callback may take; ``token_s`` how long the token is good.
    """

    def __init__(self, server: DiscordServer, *, deadline_s: float = 3.0, token_s: float = 900.0) -> None:
        self._server = server
        self.deadline_s, self.token_s = deadline_s, token_s
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
        data: dict[str, Any] = {
            "id": known[0] if known else server.snowflakes.next(),
            "name": command,
            "type": 1,
        }
        if options:
            data["options"] = [{"name": k, "type": KINDS[type(v)], "value": v} for k, v in options.items()]
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
            "version": 1,
            "channel_id": channel.id,
            "channel": channel.payload(),
            "locale": "en-US",
            "entitlements": [],
            "authorizing_integration_owners": {"0": channel.guild.id if channel.guild else "0"},
            "attachment_size_limit": 10_485_760,
        }
        guild = channel.guild
        if guild is None:
            event |= {"user": user.payload(), "context": 1, "app_permissions": str(1 << 16 | 1 << 15)}
        else:
            if user.id not in guild.members:
                server.member(guild, user)
            may = {"permissions": str(guild.permissions(user, channel))}
            event |= {"guild_id": guild.id, "member": guild.member(user) | may, "context": 0}
            event |= {"guild": {"id": guild.id, "locale": "en-US", "features": []}, "guild_locale": "en-US"}
            event["app_permissions"] = str(guild.permissions(server.bot, channel))
        server.gateway.dispatch("INTERACTION_CREATE", 0, event)

    def table(self) -> list[web.RouteDef]:
        message = "/webhooks/{application_id}/{token}/messages/{message_id}"
        table: list[tuple[str, str, Handler]] = [
            ("POST", "/interactions/{interaction_id}/{token}/callback", self._callback),
            ("POST", "/webhooks/{application_id}/{token}", self._followup),
            ("GET", message, self._get),
            ("PATCH", message, self._edit),
            ("DELETE", message, self._delete),
        ]
        return [web.route(method, f"/api/v10{path}", handler) for method, path, handler in table]

    async def _callback(self, request: web.Request) -> web.Response:
        parts = request.match_info
        found = [
            one for one in self.begun if one.id == parts["interaction_id"] and one.token == parts["token"]
        ]
        payload, files = await body_of(request)
        if not found:
            raise Refused(404, 10062, "Unknown interaction")
        interaction, now = found[0], self._server.now()
        if interaction.acked or now - interaction.at > self.deadline_s:
            interaction.late += 1
            self._server.notify()
            if interaction.acked:
                raise Refused(400, 40060, "Interaction has already been acknowledged.")
            raise Refused(404, 10062, "Unknown interaction")
        kind, data = payload.get("type"), payload.get("data") or {}
        if interaction.command == "" and kind == RESTS:
            interaction.acked_at, interaction.kind = now, kind
            self._server.notify()
            return web.Response(status=204)
        if kind not in (REPLY, DEFERRED):
            raise invalid("type", "BASE_TYPE_CHOICES", "Value must be one of (4, 5).")
        if kind == REPLY:
            check_text(data, files)
        interaction.acked_at, interaction.kind = now, kind
        flags = int(data.get("flags") or 0) & EPHEMERAL
        if kind == DEFERRED:
            interaction.original = self._place(interaction, flags | LOADING)
        else:
            interaction.original = self._say(interaction, data, files, flags)
        self._server.notify()
        if request.query.get("with_response") not in ("1", "true"):
            return web.Response(status=204)
        return json(self._response(interaction, kind))

    def _response(self, interaction: Interaction, kind: int) -> dict[str, Any]:
        message = interaction.original
        assert message is not None
        about = {
            "id": interaction.id,
            "type": 2,
            "response_message_id": message.id,
            "response_message_loading": bool(message.flags & LOADING),
            "response_message_ephemeral": bool(message.flags & EPHEMERAL),
        }
        return {"interaction": about, "resource": {"type": kind, "message": self._server.payload(message)}}

    def _place(self, interaction: Interaction, flags: int) -> Message:
        """Put an answer without text into the channel."""
        server = self._server
        message = Message(server.snowflakes.next(), interaction.channel, server.bot, "", flags=flags, type=20)
        message.interaction = {"id": interaction.id, "type": 2, "user": interaction.user.payload()}
        message.interaction["authorizing_integration_owners"] = {}
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
        found = [one for one in self.begun if one.token == parts["token"] and one.acked]
        if not found or parts["application_id"] != self._server.application_id:
            raise Refused(404, 10015, "Unknown Webhook")
        if self._server.now() - found[0].at > self.token_s:
            raise Refused(401, 50027, "Invalid Webhook Token")
        return found[0]

    async def _followup(self, request: web.Request) -> web.Response:
        interaction = self._of(request)
        payload, files = await body_of(request)
        check_text(payload, files)
        original = interaction.original
        # The first follow-up fills the placeholder.
        if original is not None and original.flags & LOADING:
            self._fill(original, payload, files)
            return json(self._server.payload(original))
        flags = int(payload.get("flags") or 0) & EPHEMERAL
        message = self._say(interaction, payload, files, flags)
        interaction.followups.append(message)
        self._server.notify()
        return json(self._server.payload(message))

    def _fill(self, message: Message, payload: dict[str, Any], files: list[Upload]) -> None:
        message.flags &= ~LOADING
        self._server.fill(message, payload, files, via="interaction")
        self._server.announce("MESSAGE_UPDATE", message)

    def _message_of(self, request: web.Request) -> Message:
        interaction, wanted = self._of(request), request.match_info["message_id"]
        candidates = [interaction.original, *interaction.followups]
        if wanted == "@original":
            candidates = candidates[:1]
        for message in candidates:
            if message and wanted in ("@original", message.id) and message.id in self._server.messages:
                return message
        raise Refused(404, 10008, "Unknown Message")

    async def _get(self, request: web.Request) -> web.Response:
        return json(self._server.payload(self._message_of(request)))

    async def _edit(self, request: web.Request) -> web.Response:
        message = self._message_of(request)
        payload, files = await body_of(request)
        check_text(payload, files)
        if message.flags & LOADING:
            self._fill(message, payload, files)
        else:
            self._server.revise(message, payload, files)
        return json(self._server.payload(message))

    async def _delete(self, request: web.Request) -> web.Response:
        self._server.delete(self._message_of(request).id)
        return web.Response(status=204)
