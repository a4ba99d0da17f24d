"""``chat``: one message with ``-m``, else a conversation in this terminal."""

from __future__ import annotations

import argparse
import asyncio
import signal
import sys
from collections.abc import AsyncGenerator, AsyncIterator
from contextlib import aclosing, asynccontextmanager
from functools import partial
from typing import TYPE_CHECKING

from ulid import ULID

from gateway.app import log as logs
from gateway.app.model import build_model
from gateway.cli import attach, output, piped
from gateway.cli.chat_log import ChatLog
from gateway.cli.looking import look_on
from gateway.cli.once import ask_once, asks_model, no_answer, unreachable
from gateway.cli.screen import Screen
from gateway.cli.talk import Talk
from gateway.cli.typed import Typed, open_typed
from gateway.config.load import load
from gateway.config.settings import Settings
from gateway.errors import GatewayError, Unreachable
from gateway.service.client_message import NoAddress, inbound, is_kept
from gateway.service.outcome import Outcome, ToldAway
from gateway.turns.event import Event
from gateway.turns.model_standing import ModelStanding, standing_of
from session.errors import SessionError
from session.store.store import Store

if TYPE_CHECKING:
    from gateway.service.chats import ChatService

ECHO = "the model is `echo`, which repeats what it is told, until model.name is set"
HELP = "Enter sends, Alt-Enter begins a new line, Ctrl-C stops an answer, Ctrl-D leaves, /help lists commands"


def chat(args: argparse.Namespace) -> int:
    """Talk; return 0, or 1 where a message given by ``-m`` got no reply."""
    settings = load(args.config, args.workspace)
    log = ChatLog(settings.state / "chat.log")
    logs.setup(settings, stream=log, at_least="warning")
    if _valid(args.key) != args.key:
        raise NoAddress(f"{args.key!r} is no key", hint="a key is channel:chat_id, as cli:direct")
    # A key that no letter can have is refused here for every partner, before anything is opened.
    inbound(args.key, "", kept=attach.complete(_is_kept(settings, args.key)))
    if args.message is not None:
        args.message = _valid(piped.message(args.message))
        if not args.message.strip():
            raise GatewayError("the message is empty", hint="chat-gateway chat -m TEXT")
    code = attach.complete(_chat(settings, args))
    if code and log.used:
        output.words(f"more is in {log.path}")
    return code


async def _is_kept(settings: Settings, key: str) -> bool:
    if ":" in key:
        return False
    async with aclosing(Store(settings.workspace, zone=settings.zone)) as store:
        return await is_kept(store, key)


def _valid(text: str) -> str:
    """Replace what is no text, such as bytes of another encoding than the terminal's."""
    return text.encode("utf-8", "replace").decode()


async def _chat(settings: Settings, args: argparse.Namespace) -> int:
    async with attach.daemon_or(settings, partial(_here, message=args.message)) as talk:
        if settings.model.name == "echo":
            output.words(ECHO)
        if args.message is not None:
            return await ask_once(talk, args.key, args.message, within_s=args.timeout)
        async with open_typed(settings.workspace / "state") as typed:
            if sys.stdin.isatty():
                output.words(HELP)
            if (standing := await talk.model()).foreseen:
                unreachable(standing)
            return await _Conversation(talk, args.key, typed, within_s=args.timeout).run()


@asynccontextmanager
async def _here(settings: Settings, *, message: str | None) -> AsyncIterator[_Here]:
    """Open an application in this process.

    Raises:
        Unreachable: the queue needs a daemon, or no model can answer the one ``message``.
    """
    if not settings.broker.embedded:
        raise Unreachable("no daemon of this workspace answers", hint="chat-gateway run")
    # Importing and opening an application takes longer than to see that the model has no key.
    if (
        message is not None
        and asks_model(message)
        and (standing := standing_of(build_model(settings))).foreseen
    ):
        raise no_answer(standing)
    # `chat` starts sooner without an application in this process where a daemon answers.
    from gateway.app.app import Application
    from gateway.service.chats import ChatService

    application = Application(settings, role="all")
    async with application.open():
        chats = ChatService(application)
        here = _Here(chats)
        try:
            yield here
        finally:
            chats.closing.set()
            if here.unanswered:
                # Nobody waits here any more; the letter comes again.
                await application.end_now()


class _Here:
    """An application in this process."""

    def __init__(self, chats: ChatService) -> None:
        self._chats = chats
        self.unanswered = False

    async def ask(
        self, key: str, text: str, message_id: str, *, within_s: float | None = None, away: ToldAway = None
    ) -> Outcome | None:
        self.unanswered = True
        outcome = await self._chats.ask(
            inbound(key, text, message_id, kept=":" not in key), within_s=within_s
        )
        self.unanswered = outcome is None
        return outcome

    async def events(self, key: str) -> AsyncGenerator[Event]:
        async with aclosing(self._chats.stream(key, drafts=True)) as stream:
            async for event, _ in stream:
                if event is not None:
                    yield event

    async def stop(self, key: str) -> None:
        await self._chats.stop(key)

    async def model(self) -> ModelStanding:
        return self._chats.application.model_standing()


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
                looking = group.create_task(look_on(self._talk, self._key, self._screen.see), name="look on")
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
        # As ``inbound`` names it: a key without a colon belongs to the terminal, too.
        own = self._key.startswith("cli:") or ":" not in self._key
        self._screen.begin(("cli:" if own else "web:") + message_id, text)
        self._stopping = None
        try:
            outcome = await self._talk.ask(
                self._key, text, message_id, within_s=self._within_s, away=self._away
            )
        except (GatewayError, SessionError) as error:
            self._screen.give_up()
            output.error(str(error), error.hint)
            return
        if outcome is None:
            self._screen.give_up()
            output.words(f"no reply within {self._within_s:g} s; it is shown here when it comes")
        else:
            self._screen.end(outcome)

    def _away(self, reason: str) -> None:
        self._screen.say(f"{reason}; trying again")

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
