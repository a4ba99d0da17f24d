"""``chat``: one message with ``-m``, else a conversation in this terminal."""

from __future__ import annotations

import argparse
import sys
from collections.abc import AsyncGenerator, AsyncIterator, Sequence
from contextlib import aclosing, asynccontextmanager
from functools import partial
from typing import TYPE_CHECKING, Any

from channels.message import Attachment
from gateway.app import log as logs
from gateway.app.model import build_model
from gateway.cli import attach, markdown, output, piped
from gateway.cli.chat_log import ChatLog
from gateway.cli.choosing import Picker
from gateway.cli.config import name_place
from gateway.cli.conversation import Conversation, valid
from gateway.cli.enclosing import enclose
from gateway.cli.json_lines import JsonLines
from gateway.cli.markdown import MarkdownInk
from gateway.cli.once import ask_once, asks_model, no_answer, unreachable
from gateway.cli.screen import Screen
from gateway.cli.typed import open_typed
from gateway.config.load import load
from gateway.config.settings import Settings
from gateway.errors import GatewayError, Unreachable
from gateway.service.client_message import NoAddress, inbound, is_kept
from gateway.service.outcome import Outcome, ToldAway
from gateway.turns.event import Event
from gateway.turns.model_standing import ModelStanding, standing_of
from session.store.store import Store

if TYPE_CHECKING:
    from gateway.service.chats import ChatService

ECHO = "the model is `echo`, which only repeats each message; set model.name to use a real one"
HELP = (
    "Enter sends, Alt-Enter adds a line, Ctrl-C stops an answer, Ctrl-D or quit exits, Tab completes, "
    "/help lists commands, /sessions switches to another chat, !file PATH attaches a file"
)


def chat(args: argparse.Namespace) -> int:
    """Talk; return 0, or 1 where a message given by ``-m`` got no reply."""
    settings = load(args.config, args.workspace)
    name_place(args, None)
    log = ChatLog(settings.state / "chat.log")
    logs.setup(settings, stream=log, at_least="warning")
    if valid(args.key) != args.key:
        raise NoAddress(
            f"{args.key!r} is not a chat key", hint="a key is channel:chat_id, such as cli:direct"
        )
    # A key that no letter can have is refused here for every partner, before anything is opened.
    inbound(args.key, "", kept=attach.complete(_is_kept(settings, args.key)))
    if args.message is not None:
        args.message = valid(piped.message(args.message))
        if not args.message.strip():
            raise GatewayError("the message is empty", hint="chat-gateway chat -m TEXT")
    code = attach.complete(_chat(settings, args))
    if code and log.used:
        output.words(f"details are in {log.path}")
    return code


async def _is_kept(settings: Settings, key: str) -> bool:
    if ":" in key:
        return False
    async with aclosing(Store(settings.workspace, zone=settings.zone)) as store:
        return await is_kept(store, key)


async def _chat(settings: Settings, args: argparse.Namespace) -> int:
    lines = JsonLines(args.key) if args.json else None
    asks = sys.stdin.isatty() and sys.stdout.isatty() and lines is None
    picker = Picker(settings, asks=asks, lines=lines)
    if args.list and not asks:
        await picker.show()
        return 0
    files = [await enclose(settings, path) for path in args.files]
    async with attach.daemon_or(settings, partial(_here, message=args.message)) as talk:
        if settings.model.name == "echo":
            output.words(ECHO)
        if args.message is not None:
            return await ask_once(
                talk, args.key, args.message, files=files, within_s=args.timeout, lines=lines
            )
        async with open_typed(settings.workspace, prompts=lines is None) as typed:
            key, resumes = args.key, ""
            if args.list and (chosen := await picker.choose(typed)) is not None:
                key, resumes = chosen.key, chosen.resumes
            if sys.stdin.isatty():
                output.words(HELP)
            if (standing := await talk.model()).foreseen:
                unreachable(standing)
            conversation = Conversation(
                talk,
                key,
                typed=typed,
                screen=lines or Screen(MarkdownInk() if markdown.wanted() else None),
                picker=picker,
                files=files,
                within_s=args.timeout,
                at_terminal=sys.stdin.isatty(),
            )
            return await conversation.run(resumes=resumes)


@asynccontextmanager
async def _here(settings: Settings, *, message: str | None) -> AsyncIterator[_Here]:
    """Open an application in this process.

    Raises:
        Unreachable: the queue needs a daemon, or no model can answer the one ``message``.
        StateInUse: a daemon is ending.
    """
    if not settings.broker.embedded:
        raise Unreachable("no gateway runs on this workspace", hint="chat-gateway run")
    # Importing and opening an application takes longer than to see that the model has no key.
    if (
        message is not None
        and asks_model(message)
        and (standing := standing_of(build_model(settings))).foreseen
    ):
        raise no_answer(standing)
    await attach.until_ended(settings)
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
        self,
        key: str,
        text: str,
        message_id: str,
        *,
        files: Sequence[Attachment] = (),
        within_s: float | None = None,
        away: ToldAway = None,
    ) -> Outcome | None:
        self.unanswered = True
        outcome = await self._chats.ask(
            inbound(key, text, message_id, kept=":" not in key, files=files), within_s=within_s
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

    async def parked(self) -> list[dict[str, Any]]:
        from gateway.service.parked import row

        return [row(one) for one in await self._chats.application.mailbox.parked()]

    async def model(self) -> ModelStanding:
        return self._chats.application.model_standing()
