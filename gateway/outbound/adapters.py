"""Keeps the adapters up: each in one process at a time, begun anew after a failure, alone in its troubles."""

from __future__ import annotations

import asyncio
import contextlib
import hashlib
from collections.abc import Awaitable, Callable, Collection, Mapping
from contextlib import AsyncExitStack
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import Any, NoReturn

import orjson
import structlog

import durable
from channels import plugins
from channels.base import Admins, Channel, Edits, Kind, Pulse, Registers, Site, Types, steady_s
from channels.errors import ChannelDown, ChannelError, CredentialsRefused, NewerFile, SendNever
from channels.limiter import Limiter, rates_of
from channels.media import MediaFolder
from channels.message import Outbound, now_text
from channels.pairing import AccessRequest, Pairing
from channels.storage import lease
from channels.tables import Platform
from gateway.dispatch.failures import HeldBack
from gateway.errors import GatewayError, MailboxError, NewerState, SendLogDown
from gateway.inbound.pipeline import Intake, Reception
from gateway.observer import Observer
from gateway.outbound.attachments import Folders, media_alone
from gateway.outbound.preview import LivePreviews
from gateway.outbound.send_log import SendLog
from gateway.outbound.sender import SEND_TIMEOUT_S, OutboundSender
from gateway.outbound.standing import menu, set_menu, set_standing
from gateway.queue.mailbox import Mailbox, Post, outbound
from gateway.queue.retry import back_off_s

log = structlog.get_logger("adapters")

# Before a token that was refused is tried again.
REFUSED_S = 300.0
# An adapter that ran this long begins its back-off anew.
LASTING_S = 60.0
LOOK_S = 1.0
SHOW_S = 1.0
ALIVE_S = 60.0
# For the calls that are under way when a run is over: as long as a text may take.
REST_S = SEND_TIMEOUT_S
# One more whenever an adapter makes another menu of the same commands: each is shown anew, once.
MENUS = 1
# Whoever approves does so in a process of its own, of which only the database tells.
WELCOME_S = 3.0
PERSON_SAID = "You are approved. I will answer you here from now on."
GROUP_SAID = "This group is approved. I will answer here from now on."


@dataclass(frozen=True, slots=True)
class AdapterContext:
    """What the adapters of one process share.

    ``restricted`` are commands besides the usual ones that not everybody in a group may give. ``held`` says
    why letters of a channel wait for the workspace. ``command`` is how the operator calls this program.
    """

    mailbox: Mailbox
    intake: Intake
    workspace: Path
    max_mb: int
    media_timeout_s: float
    turn_timeout_s: float
    commands: Mapping[str, str]
    restricted: Collection[str] = ()
    command: str = "chat-gateway"
    held: Callable[[str], str] = lambda channel: ""
    folders: Folders = media_alone
    observer: Observer = field(default_factory=Observer)


class Adapter:
    """One enabled channel: its ingress, its sender, and how it stands.

    Args:
        pulse: where the channel says that it lives.
        sleep: waits some seconds.
    """

    def __init__(
        self,
        kind: Kind,
        table: Platform,
        context: AdapterContext,
        *,
        build: Callable[[Kind, Platform, Site], Channel] = plugins.build,
        pulse: Pulse | None = None,
        sleep: Callable[[float], Awaitable[object]] = asyncio.sleep,
    ) -> None:
        self.name = kind.name
        self.pulse = pulse or Pulse()
        self.pulse.fail("not started yet")
        self._kind = kind
        self._table = table
        self._context = context
        self._build = build
        self._sleep = sleep
        self._state = context.workspace / "state"
        self._receiving: asyncio.Task[None] | None = None
        self._began, self._mark_s = durable.now(), steady_s()
        self._closing = False
        self._leased = False
        self._held_back = HeldBack()
        self._menu_error = ""
        self._stood = self.pulse.up, self.pulse.since

    def part(self) -> dict[str, Any]:
        """Say whether it is up, since when, and its last error; down while what came by it is held back."""
        trip = self.pulse.last_round_trip
        cause = self._held_back.cause or self._context.held(self.name)
        up, (stood, since) = self.pulse.up and not cause, self._stood
        if up != stood:
            # The pulse does not know when messages began to be held back; ``_show`` looks every second.
            by_pulse = self.pulse.up == up and self.pulse.since > since
            self._stood = up, self.pulse.since if by_pulse else self.pulse.now()
        elif up:
            self._stood = up, max(since, self.pulse.since)
        return {
            "up": up,
            "since": self._stood[1].isoformat(),
            "error": self.pulse.error or cause or self._menu_error,
            "last_round_trip": trip.isoformat() if trip is not None else None,
        }

    async def run(self) -> None:
        """Keep it up until cancelled."""
        async with asyncio.TaskGroup() as group:
            group.create_task(self._keep_up(), name=f"{self.name} adapter")
            group.create_task(self._show(), name=f"{self.name} standing")

    async def _show(self) -> NoReturn:
        """Write how it stands for the other processes of the workspace: each change, and a sign of life."""
        loop = asyncio.get_running_loop()
        shown, at = (False, ""), -ALIVE_S
        while True:
            part = self.part()
            now = (part["up"], part["error"])
            if self._leased and (now != shown or loop.time() - at >= ALIVE_S):
                shown, at = now, loop.time()
                await _written(partial(set_standing, self._state, self.name, part))
            await asyncio.sleep(SHOW_S)

    async def _keep_up(self) -> NoReturn:
        tries = 0
        while True:
            self.pulse.fail("it runs in another process of this workspace")
            try:
                # Two processes with one token would take each other's messages.
                async with lease(self._state, self.name):
                    self._leased = True
                    await self._keep_running()
            except OSError as error:
                # A full disk, a share that gives no locks, a file of somebody else: the other channels go on.
                self._leased = False
                tries += 1
                await self._failed(_unleased(self.name, error), back_off_s(tries))

    async def _keep_running(self) -> NoReturn:
        self.pulse.fail("not connected yet")
        tries = 0
        loop = asyncio.get_running_loop()
        while True:
            began = loop.time()
            error = await self._once()
            tries = 1 if loop.time() - began > LASTING_S else tries + 1
            lasting = isinstance(error, CredentialsRefused | NewerFile | NewerState)
            await self._failed(error, REFUSED_S if lasting else back_off_s(tries))

    async def _failed(self, error: BaseException, again_s: float) -> None:
        """Show why it does not run, and wait for the next try."""
        self.pulse.fail(str(error))
        log.error(
            "adapter.failed",
            channel=self.name,
            error=str(error),
            hint=getattr(error, "hint", ""),
            again_s=round(again_s, 1),
        )
        await self._sleep(again_s)

    def stop_receiving(self) -> None:
        """Take nothing new from the platform; what is to be sent still is."""
        self._closing = True
        if self._receiving is not None:
            self._receiving.cancel()

    async def _once(self) -> BaseException:
        """Run it until it fails; return why."""
        try:
            await self._live()
        except* (ChannelError, GatewayError) as group:
            error: BaseException = _first(group)
        except* Exception as group:
            # One channel ends here, and is begun anew.
            log.exception("adapter.crashed", channel=self.name)
            error = ChannelDown(_said(group))
        else:
            error = ChannelDown("it ended unexpectedly")
        return error

    async def _live(self) -> None:
        context = self._context
        async with AsyncExitStack() as stack:
            site = Site(
                state=self._state,
                pulse=self.pulse,
                commands=context.commands,
                began=self._began,
                mark_s=self._mark_s,
            )
            channel = await asyncio.to_thread(self._build, self._kind, self._table, site)
            stack.push_async_callback(channel.aclose)
            send_log = await stack.enter_async_context(SendLog(self._state, self.name))
            limiter = await _limiter(self.name, send_log)
            self.pulse.begin()
            # A group cuts off all that is left in it: the work on the chats is ended by their sender alone.
            async with asyncio.TaskGroup() as chats, asyncio.TaskGroup() as group:
                previews = self._previews(channel, send_log, limiter)
                sender = OutboundSender(
                    channel=channel,
                    mailbox=context.mailbox,
                    send_log=send_log,
                    limiter=limiter,
                    workspace=context.workspace,
                    state=self._state,
                    group=chats,
                    previews=previews,
                    max_file_mb=context.max_mb,
                    folders=context.folders,
                    observer=context.observer,
                )
                if not self._closing:
                    receiving = self._receive(channel, sender)
                    self._receiving = group.create_task(receiving, name=f"{self.name} ingress")
                group.create_task(sender.run(), name=f"{self.name} sender")
                group.create_task(self._watch(sender), name=f"{self.name} watch")
                welcomes = PairingWelcomes(self.name, state=self._state, mailbox=context.mailbox)
                group.create_task(welcomes.run(), name=f"{self.name} welcomes")
                if previews is not None:
                    group.create_task(previews.run(), name=f"{self.name} previews")
                if isinstance(channel, Registers):
                    group.create_task(self._register(channel), name=f"{self.name} commands")

    def _previews(self, channel: Channel, send_log: SendLog, limiter: Limiter) -> LivePreviews | None:
        if not isinstance(channel, Types | Edits):
            return None
        return LivePreviews(
            channel=channel,
            mailbox=self._context.mailbox,
            send_log=send_log,
            limiter=limiter,
            stream=self._table.stream,
            turn_timeout_s=self._context.turn_timeout_s,
        )

    async def _receive(self, channel: Channel, sender: OutboundSender) -> NoReturn:
        context = self._context
        reception = Reception(
            name=self.name,
            table=self._table,
            intake=context.intake,
            mailbox=context.mailbox,
            state=self._state,
            media=MediaFolder(context.workspace, max_mb=context.max_mb, timeout_s=context.media_timeout_s),
            is_admin=channel.is_admin if isinstance(channel, Admins) else None,
            held=self._held_back,
            restricted=context.restricted,
            command=context.command,
        )
        try:
            await channel.run(reception.accept)
            raise ChannelDown("it stopped receiving")
        except Exception as error:
            # There is nothing to stop any more: this run has still to fail, so that the next one goes on.
            self._receiving = None
            await self._rest(error, sender)
            raise

    async def _watch(self, sender: OutboundSender) -> NoReturn:
        """Begin anew when no round trip came to an end for too long."""
        while True:
            await self._sleep(LOOK_S)
            if self.pulse.stalled() and not self._closing:
                error = ChannelDown(f"no contact for over {self.pulse.within_s:.0f} s")
                await self._rest(error, sender)
                raise error

    async def _rest(self, error: Exception, sender: OutboundSender) -> None:
        """Show what ends this run, and let the calls under way end before it does.

        Of one that is cut off nobody knows what became of it.
        """
        self.pulse.fail(_said(error))
        await sender.rest(REST_S)

    async def _register(self, channel: Registers) -> None:
        """Show the menu of commands, if another one was shown last."""
        self._menu_error = ""
        wanted = dict(self._context.commands)
        mark = hashlib.sha256(
            orjson.dumps([MENUS, self._table.token.get_secret_value(), wanted], option=orjson.OPT_SORT_KEYS)
        ).hexdigest()[:16]
        # Where that cannot be read, the menu is shown anew.
        with contextlib.suppress(ChannelError):
            if await asyncio.to_thread(menu, self._state, self.name) == mark:
                return
        tries = 0
        while True:
            try:
                await channel.register(wanted)
            except CredentialsRefused:
                # The ingress meets the same refusal, and says so.
                return
            except SendNever as error:
                # The same list would be refused for ever; another one, after a change, is offered at a start.
                hint = error.hint or "remove the cause and restart the gateway; messages are not affected"
                log.error("commands.refused", channel=self.name, error=str(error), hint=hint)
                self._menu_error = f"the menu of commands was refused: {error}"
                return
            except ChannelError as error:
                tries += 1
                log.warning("commands.unregistered", channel=self.name, error=str(error))
                await asyncio.sleep(back_off_s(tries))
            else:
                await _written(partial(set_menu, self._state, self.name, mark))
                return


async def _written(write: Callable[[], None]) -> None:
    """Write what only shows or spares something: a disk that refuses ends nothing."""
    try:
        await asyncio.to_thread(write)
    except ChannelError as error:
        # Messages go on: it is written again at the next change.
        log.warning("state.unwritten", error=str(error), hint=error.hint)


async def _limiter(name: str, send_log: SendLog) -> Limiter:
    """Build the limiter of a channel, with what is known of it from before a restart."""

    async def noted(chat: str, after_s: float) -> None:
        # This process knows it; only the next one would ask the platform too early.
        with contextlib.suppress(SendLogDown):
            await send_log.pause(chat, after_s)

    rates = rates_of(name)
    sent, paused = await send_log.recent(rates.window_s)
    return Limiter(rates, sent=sent, paused=paused, noted=noted)


def _unleased(name: str, error: OSError) -> ChannelDown:
    file = f"state/{name}.lease"
    why = error.strerror or type(error).__name__
    return ChannelDown(f"{file} cannot be locked: {why}", hint=f"check {file} in the workspace, and its disk")


def _said(error: BaseException) -> str:
    """Say in words without secrets why a run has ended."""
    error = _first(error)
    known = isinstance(error, ChannelError | GatewayError)
    return str(error) if known else f"it crashed: {type(error).__name__}"


def _first(error: BaseException) -> BaseException:
    while isinstance(error, BaseExceptionGroup):
        error = error.exceptions[0]
    return error


class PairingWelcomes:
    """Tells those who were approved on one channel and do not know it yet."""

    def __init__(
        self,
        name: str,
        *,
        state: Path,
        mailbox: Mailbox,
        sleep: Callable[[float], Awaitable[object]] = asyncio.sleep,
    ) -> None:
        self._name = name
        self._pairing = Pairing(state)
        self._mailbox = mailbox
        self._sleep = sleep

    async def run(self) -> None:
        """Tell everybody until cancelled; what fails is tried again at the next look."""
        while True:
            try:
                await self._look()
            except (ChannelError, MailboxError) as error:
                log.warning("greeting.waits", channel=self._name, error=str(error))
            await self._sleep(WELCOME_S)

    async def _look(self) -> None:
        for entry in await asyncio.to_thread(self._pairing.to_greet, self._name):
            await self._mailbox.put(_post(entry))
            # A kill in between puts it again under the same id, which is in the send log.
            await asyncio.to_thread(self._pairing.greeted, entry)
            log.info("greeting.put", channel=self._name, id=entry.greet)


def _post(entry: AccessRequest) -> Post:
    key = f"{entry.channel}:{entry.chat}"
    out = Outbound(
        id=entry.greet,
        key=key,
        channel=entry.channel,
        chat_id=entry.chat,
        text=GROUP_SAID if entry.kind == "group" else PERSON_SAID,
        kind="proactive",
        created_at=now_text(),
    )
    return Post(outbound(entry.channel), key, out.id, out.to_bytes())
