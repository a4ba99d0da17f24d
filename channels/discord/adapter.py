"""The Discord adapter: one connection to the gateway after the other, and what hangs on it."""

from __future__ import annotations

import asyncio
from collections.abc import Mapping
from typing import Final

import structlog

from channels.base import Chunk, Emit, Rendered, Site
from channels.discord.cursors import Cursors
from channels.discord.format import discord_markdown
from channels.discord.gateway import Gateway, Servers, refusal
from channels.discord.ingress import DiscordIngress, Tempo
from channels.discord.messages import INTERACTION
from channels.discord.rest import Rest
from channels.discord.send import Egress
from channels.discord.sweep import Sweeper
from channels.errors import ChannelDown, ChannelError, CredentialsRefused
from channels.tables import DiscordTable as Table
from channels.text import split_markdown

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
        self._egress = Egress(self._rest)
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
        return await self._egress.send(chunk)

    async def edit(self, chat_id: str, platform_id: str, content: Rendered) -> None:
        """Replace the text of a message. Raises as ``Channel.send``; ``MessageGone``."""
        await self._egress.edit(chat_id, platform_id, content)

    async def typing(self, chat_id: str) -> None:
        """Show for some seconds that an answer is being written."""
        await self._egress.typing(chat_id)

    def promised(self, message_id: str) -> bool:
        """Say whether "is thinking…" stands where the answer will be, as after a command of the menu."""
        return message_id.startswith(INTERACTION)

    async def register(self, commands: Mapping[str, str]) -> None:
        """Replace the menu of commands."""
        await self._egress.register(commands)

    async def is_admin(self, chat_id: str, person_id: str) -> bool:
        """Say whether a person may administer the server of a channel."""
        return await self._egress.is_admin(chat_id, person_id)

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
