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
import secrets
import time
from collections.abc import Callable
from datetime import UTC, datetime
from typing import Any, TypeVar

from aiohttp import web

from tests.support.discord_gateway import Gateway
from tests.support.discord_interactions import Interaction, Interactions
from tests.support.discord_people import People
from tests.support.discord_rest import REAL_LIMITS, Buckets, Call, Edited, Fault, Rest, Sent, pattern
from tests.support.discord_routes import Routes, Upload
from tests.support.discord_world import Channel, Message
from tests.support.ports import KeptPort

__all__ = ["REAL_LIMITS", "DiscordServer", "Edited", "Fault", "Interaction", "Sent"]
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
        # The switches of the portal: also "members", "presences".
        self.privileged = {"message_content"}
        self.buckets = Buckets(dict(limits or {}))
        self.faults: list[Fault] = []
        self.calls: list[Call] = []
        self.sent: list[Sent] = []
        self.edits: list[Edited] = []
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
        """Wake who waits for something to have happened."""
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
        """Wait until the bot has sent ``n`` messages; return all."""
        await self.until(lambda: len(self.sent) >= n, within_s=within_s)
        return self.sent

    async def connected(self, *, within_s: float = 60.0) -> None:
        """Wait until a client has identified or resumed at the gateway."""
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
        """Apply an edit of the bot."""
        if "content" in payload:
            message.content = str(payload["content"] or "").strip()
        if "components" in payload:
            message.components = payload["components"] or []
        if files:
            message.attachments = self.attach(message.channel, files)
        message.edited_at = datetime.now(UTC)
        self.edits.append(Edited(message.id, message.channel.id, message.content, self.now()))
        self.announce("MESSAGE_UPDATE", message)
        self.notify()

    async def _attachment(self, request: web.Request) -> web.StreamResponse:
        found = self.files.get(request.match_info["attachment_id"])
        if found is None:
            return web.Response(status=404, text="This content is no longer available.")
        return web.Response(body=found[1], headers={"Content-Type": found[0]})
