"""``chat``: one message with ``-m``, else a conversation in this terminal."""

from __future__ import annotations

import argparse
import asyncio
import contextlib
import signal
import sys
from collections.abc import AsyncGenerator, AsyncIterator, Callable
from contextlib import aclosing, asynccontextmanager
from typing import TYPE_CHECKING, Protocol

from ulid import ULID

from gateway.cli import attach, output
from gateway.cli.config import settings_of
from gateway.cli.screen import Screen
from gateway.cli.typed import Typed, open_typed
from gateway.errors import GatewayError, Unreachable
from gateway.http.event import Event
from gateway.http.inbound import NoAddress, inbound
from gateway.http.outcome import Outcome
from gateway.settings import Settings
from session.errors import SessionError

if TYPE_CHECKING:
    from gateway.http.desk import Desk

ECHO = "the model is `echo`, which repeats what it is told, until model.name is set"
HELP = "Enter sends, Alt-Enter begins a new line, Ctrl-C stops an answer, Ctrl-D leaves, /help lists commands"


class Talk(Protocol):
    """One conversation partner: a running daemon, or a house in this process."""

    async def ask(
        self,
        key: str,
        text: str,
        message_id: str,
        *,
        within_s: float | None = None,
        away: Callable[[str], None] = ...,
    ) -> Outcome | None:
        """Send a message and wait for how it ends; None when the time ran out first.

        ``away`` is told once why the message cannot be handed in just now; it is tried again.
        """
        ...

    def events(self, key: str) -> AsyncGenerator[Event]:
        """Yield what happens in the chat from now on."""
        ...

    async def stop(self, key: str) -> None:
        """Stop the turn that runs."""
        ...


def chat(args: argparse.Namespace) -> int:
    """Talk; return 0, or 1 where a message given by ``-m`` got no reply."""
    settings = settings_of(args)
    if _valid(args.key) != args.key:
        raise NoAddress(f"{args.key!r} is no key", hint="a key is channel:chat_id, as cli:direct")
    inbound(args.key, "")  # refused here for every partner, before anything is opened
    if args.message is not None:
        args.message = _valid(args.message)
        if not args.message.strip():
            raise GatewayError("the message is empty", hint="chat-gateway chat -m TEXT")
    return attach.complete(_chat(settings, args))


def _valid(text: str) -> str:
    """Replace what is no text, such as bytes of another encoding than the terminal's."""
    return text.encode("utf-8", "replace").decode()


async def _chat(settings: Settings, args: argparse.Namespace) -> int:
    async with _partner(settings) as talk:
        if settings.model.name == "echo":
            output.words(ECHO)
        if args.message is not None:
            return await _once(talk, args.key, args.message, within_s=args.timeout)
        async with open_typed(settings.workspace / "state") as typed:
            if sys.stdin.isatty():
                output.words(HELP)
            return await _Conversation(talk, args.key, typed, within_s=args.timeout).run()


@asynccontextmanager
async def _partner(settings: Settings) -> AsyncIterator[Talk]:
    async with attach.daemon(settings) as client:
        if client is not None:
            yield client
            return
    if not settings.broker.embedded:
        raise Unreachable("no daemon of this workspace answers", hint="chat-gateway run")
    from gateway.house import House
    from gateway.http.desk import Desk

    house = House(settings, role="all")
    async with house.open():
        desk = Desk(house)
        here = _Here(desk)
        try:
            yield here
        finally:
            desk.closing.set()
            if here.unanswered:
                await house.end_now()  # nobody waits here any more; the letter comes again


class _Here:
    """A house in this process."""

    def __init__(self, desk: Desk) -> None:
        self._desk = desk
        self.unanswered = False

    async def ask(
        self,
        key: str,
        text: str,
        message_id: str,
        *,
        within_s: float | None = None,
        away: Callable[[str], None] = lambda _: None,
    ) -> Outcome | None:
        self.unanswered = True
        outcome = await self._desk.ask(inbound(key, text, message_id), within_s=within_s)
        self.unanswered = outcome is None
        return outcome

    async def events(self, key: str) -> AsyncGenerator[Event]:
        async with aclosing(self._desk.stream(key)) as stream:
            async for event, _ in stream:
                if event is not None:
                    yield event

    async def stop(self, key: str) -> None:
        await self._desk.stop(key)


async def _once(talk: Talk, key: str, text: str, *, within_s: float | None) -> int:
    """Send one message; its reply goes to stdout, everything else to stderr."""
    message_id = str(ULID())

    def see(event: Event) -> None:
        if _names(event, message_id) and event.kind == "notice" and not event.ends:
            output.words(event.text)

    async with asyncio.TaskGroup() as group:
        looking = group.create_task(_look_on(talk, key, see), name="look on")
        try:
            outcome = await talk.ask(key, text, message_id, within_s=within_s, away=_away)
        finally:
            looking.cancel()
    if outcome is None:
        output.error(
            f"no reply within {within_s:g} s",
            f"the message is kept and will be answered; `chat-gateway sessions show {key}` shows it then",
        )
        return 1
    if outcome.kind == "notice":
        output.words(outcome.text)
        return 1
    output.data(outcome.text)
    return 0


def _away(reason: str) -> None:
    output.words(f"{reason}; trying again")


async def _look_on(talk: Talk, key: str, see: Callable[[Event], None]) -> None:
    """Show what happens; where it cannot be seen, the answers come all the same."""
    with contextlib.suppress(GatewayError):
        async with aclosing(talk.events(key)) as events:
            async for event in events:
                see(event)


def _names(event: Event, message_id: str) -> bool:
    """Say whether an event is about our message, whose Inbound id has its channel in front."""
    return event.in_reply_to is not None and event.in_reply_to.partition(":")[2] == message_id


class _Conversation:
    """Reads, asks and shows until the person leaves."""

    def __init__(self, talk: Talk, key: str, typed: Typed, *, within_s: float | None) -> None:
        self._talk = talk
        self._key = key
        self._typed = typed
        self._within_s = within_s
        self._screen = Screen()
        self._stopping: asyncio.Task[None] | None = None
        self._left = False

    async def run(self) -> int:
        """Return 0 when the person left, 130 where they did so by Ctrl-C."""
        loop, me = asyncio.get_running_loop(), asyncio.current_task()
        assert me is not None
        try:
            async with asyncio.TaskGroup() as group:
                loop.add_signal_handler(signal.SIGINT, self._interrupt, group, me)
                looking = group.create_task(_look_on(self._talk, self._key, self._screen.see), name="look on")
                try:
                    while (text := await self._typed.read()) is not None:
                        if text.strip():
                            await self._turn(_valid(text))
                finally:
                    loop.remove_signal_handler(signal.SIGINT)
                    looking.cancel()
        except asyncio.CancelledError:
            if not self._left:
                raise
            me.uncancel()
            return 130
        return 0

    async def _turn(self, text: str) -> None:
        message_id = str(ULID())
        self._screen.begin(("cli:" if self._key.startswith("cli:") else "web:") + message_id)
        self._stopping = None
        try:
            outcome = await self._talk.ask(self._key, text, message_id, within_s=self._within_s, away=_away)
        except (GatewayError, SessionError) as error:
            self._screen.give_up()
            output.error(str(error), error.hint)
            return
        if outcome is None:
            self._screen.give_up()
            output.words(f"no reply within {self._within_s:g} s; it is shown here when it comes")
        else:
            self._screen.end(outcome)

    def _interrupt(self, group: asyncio.TaskGroup, me: asyncio.Task[object]) -> None:
        """Stop the running turn; a second time, or where none runs, leave."""
        if self._screen.busy and self._stopping is None:
            self._stopping = group.create_task(self._stop(), name="stop")
        else:
            self._left = True
            me.cancel()

    async def _stop(self) -> None:
        try:
            await self._talk.stop(self._key)
        except GatewayError as error:
            output.error(str(error), error.hint)
