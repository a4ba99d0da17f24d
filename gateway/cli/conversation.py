"""A conversation in this terminal or through a pipe: reads, asks and shows until the person leaves."""

from __future__ import annotations

import asyncio
import mimetypes
import os
import re
import signal
import sys
import threading
from collections.abc import AsyncGenerator, AsyncIterator, Callable, Sequence
from contextlib import aclosing, asynccontextmanager, suppress
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeAlias

import durable
from channels.message import Attachment
from gateway.app.wiring_model import build_model
from gateway.cli import attach, output
from gateway.cli.root import FILE_WORD
from gateway.cli.root import plain as plain
from gateway.cli.screen import JsonLines, MarkdownInk, Screen, wanted
from gateway.config.settings import Settings
from gateway.dispatch.events import FILES, Event
from gateway.dispatch.policy import LASTING, ModelStanding, standing_of
from gateway.errors import GatewayError, Unreachable
from gateway.service.client_message import inbound
from gateway.service.outcome import Outcome, ToldAway
from session.errors import SessionError
from session.store.store import Store
from session.transcript.key import split
from session.turn.commands import parse

if TYPE_CHECKING:
    from gateway.cli.line_editor import LineEditor
    from gateway.http.client import Client
    from gateway.service.chats import ChatService
    from session.store.listing import SessionRow

    Talk: TypeAlias = "Client | _Here"
    Typed: TypeAlias = "LineEditor | _Plain"


_BLOCK_BYTES = 2**20


def split_files(text: str) -> tuple[list[str], str]:
    """Take the lines ``!file PATH`` off the head of a message; return the paths, and the text left."""
    paths = []
    lines = text.split("\n")
    while lines and (lines[0] == FILE_WORD or lines[0].startswith(f"{FILE_WORD} ")):
        paths.append(lines.pop(0).removeprefix(FILE_WORD).strip())
    return paths, "\n".join(lines)


async def enclose(settings: Settings, path: Path) -> Attachment:
    """Store a file in ``media/``, as every channel does.

    Raises:
        GatewayError: there is none, it cannot be read, is empty, or larger than ``media.max_mb``.
    """
    # Only who sends a file waits for this import.
    from channels.base import File, FileKind
    from channels.media import FileRefused, MediaFolder

    path, size = await asyncio.to_thread(_readable, path)
    if size > settings.media.max_mb * 2**20:
        raise GatewayError(
            f"{path} has {size / 2**20:.1f} MB; the limit is media.max_mb = {settings.media.max_mb}",
            hint="send part of it, or raise media.max_mb",
        )
    mime = mimetypes.guess_type(path.name)[0] or ""

    async def fetch() -> AsyncIterator[bytes]:
        with await asyncio.to_thread(path.open, "rb") as file:
            while block := await asyncio.to_thread(file.read, _BLOCK_BYTES):
                yield block

    kind: FileKind = "photo" if mime.startswith("image/") else "document"
    folder = MediaFolder(settings.workspace, settings.media.max_mb, settings.media.timeout_s)
    saved = await folder.save(File(kind, path.name, mime, size, fetch))
    if isinstance(saved, FileRefused):
        raise GatewayError(f"{path}: {saved.text.strip('[]')}", hint="chat-gateway doctor")
    return saved


def _readable(path: Path) -> tuple[Path, int]:
    path = path.expanduser()
    if not path.is_file():
        what = "is not a file" if path.exists() else "does not exist"
        raise GatewayError(f"{path} {what}", hint="enter the path of a file; Tab completes it")
    try:
        with path.open("rb") as file:
            if not file.read(1):
                raise GatewayError(f"{path} is empty", hint="choose another file")
        return path, path.stat().st_size
    except OSError as error:
        raise GatewayError(
            f"{path} cannot be read: {error.strerror}", hint="check its permissions"
        ) from error


ECHO = "the model is `echo`, which only repeats each message; set model.name to use a real one"
HELP = (
    "Enter sends, Alt-Enter adds a line, Ctrl-C stops an answer, Ctrl-D or quit exits, Tab completes, "
    "/help lists commands, /sessions switches to another chat, !file PATH attaches a file"
)
SHOWN_MAX = 30
_COLUMNS = ("no", "key", "name", "last_message_at", "messages", "state")

# What people type to leave, though Ctrl-D does.
_LEAVES = frozenset({"quit", "exit", "/quit", "/exit"})
_SESSIONS = re.compile(r"/sessions(?:\s+(\S+))?\s*")
PROMPT = "> "
# How long a model that is away is waited for where it may come back by itself.
PATIENT_S = 15.0
MODEL_AWAY = "model_away"
_LOOKS, _LOOK_S = 10, 0.1
_KEPT = "the message is kept and will be answered; see `chat-gateway sessions show {}` later"


async def look_on(talk: Talk, key: str, see: Callable[[Event], None]) -> None:
    """Show what happens; where it cannot be seen, the answers come all the same."""
    with suppress(GatewayError):
        async with aclosing(talk.events(key)) as events:
            async for event in events:
                see(event)


def names(event: Event, message_id: str) -> bool:
    """Say whether an event is about our message, whose Inbound id has its channel in front."""
    return event.in_reply_to is not None and event.in_reply_to.partition(":")[2] == message_id


@asynccontextmanager
async def open_typed(workspace: Path, *, prompts: bool = True) -> AsyncIterator[Typed]:
    """Read from this process's stdin, in the way that suits it.

    Args:
        workspace: what Tab completes is found there; a terminal's history is kept in its ``state/``.
        prompts: stdout may have a prompt, where it is a terminal.
    """
    terminal = prompts and sys.stdin.isatty() and sys.stdout.isatty()
    if terminal and os.environ.get("TERM", "dumb") != "dumb":
        from gateway.cli.line_editor import LineEditor

        yield LineEditor(workspace)
    else:
        yield _Plain(asyncio.get_running_loop(), prompt=PROMPT if terminal else "")


class _Plain:
    """Reads lines in a thread that the end of the program need not wait for."""

    def __init__(self, loop: asyncio.AbstractEventLoop, *, prompt: str) -> None:
        self._loop = loop
        self._prompt = prompt
        self._lines: asyncio.Queue[str] = asyncio.Queue()
        self._asked = threading.Semaphore(0)
        threading.Thread(target=self._run, name="stdin", daemon=True).start()

    async def read(self) -> str | None:
        parts: list[str] = []
        while True:
            if self._prompt:
                print("  " if parts else self._prompt, end="", flush=True)
            self._asked.release()
            line = await self._lines.get()
            if not line:
                return "\n".join(parts) if parts else None
            line = line.rstrip("\r\n")
            if not line.endswith("\\"):
                return "\n".join([*parts, line])
            parts.append(line[:-1])

    def _run(self) -> None:
        while True:
            self._asked.acquire()
            try:
                line = sys.stdin.readline()
            except (OSError, ValueError):
                line = ""
            try:
                self._loop.call_soon_threadsafe(self._lines.put_nowait, line)
            except RuntimeError:
                # The conversation has ended.
                return


@dataclass(frozen=True, slots=True)
class Chosen:
    """A conversation, and the ULID of its ended session that is to go on, if one was meant."""

    key: str
    resumes: str = ""


class Picker:
    """Shows conversations and asks which is meant.

    Args:
        asks: somebody can answer; else the conversations are only shown.
        lines: where they are written for a program instead.
    """

    def __init__(self, settings: Settings, *, asks: bool, lines: JsonLines | None = None) -> None:
        self.settings = settings
        self._asks = asks
        self._lines = lines

    async def show(self) -> Sequence[SessionRow]:
        """Write this terminal's conversations, newest first, and return them."""
        async with aclosing(Store(self.settings.workspace, zone=self.settings.zone)) as store:
            rows = [row for row in await store.rows() if split(row.key)[0] == "cli"]
        rows = rows[:SHOWN_MAX]
        if self._lines is not None:
            self._lines.rows([row.as_dict() for row in rows])
        elif rows:
            output.rows([_shown(number, row) for number, row in enumerate(rows, 1)], _COLUMNS)
        else:
            output.words("no chats yet")
        return rows

    async def choose(self, typed: Typed, wanted: str = "") -> Chosen | None:
        """Return what ``wanted`` means, a key or a number; without it show all and ask."""
        if ":" in wanted:
            return Chosen(wanted)
        rows = await self.show()
        if not wanted:
            if not rows or not self._asks:
                return None
            output.words(
                f"Which one? 1 to {len(rows)}, or a key such as cli:garden for a new chat; Enter cancels"
            )
            wanted = (await typed.read() or "").strip()
        if not wanted:
            return None
        if ":" in wanted:
            return Chosen(wanted)
        if wanted.isascii() and wanted.isdigit() and 0 < int(wanted[:9]) <= len(rows):
            row = rows[int(wanted[:9]) - 1]
            return Chosen(row.key, "" if row.active else row.id)
        output.error(
            f"{plain(wanted)!r} is not in the list", "enter a number from the list, or channel:chat_id"
        )
        return None

    def entered(self, key: str) -> None:
        """Say which conversation goes on."""
        if self._lines is not None:
            self._lines.key = key
        else:
            output.words(f"now in {key}")


def _shown(number: int, row: SessionRow) -> dict[str, Any]:
    fields = {"key": row.key, "name": row.name, "last_message_at": row.last_message_at[:16]}
    return {"no": number, **fields, "messages": row.message_count, "state": "" if row.active else "ended"}


class Conversation:
    """One person's conversation with one key, until they choose another.

    Args:
        files: go along with the first message.
        at_terminal: ``!file`` is understood; in what is piped in anybody may have written it.
    """

    def __init__(
        self,
        talk: Talk,
        key: str,
        *,
        typed: Typed,
        screen: Screen | JsonLines,
        picker: Picker,
        files: Sequence[Attachment] = (),
        within_s: float | None = None,
        at_terminal: bool = False,
    ) -> None:
        self._talk = talk
        self._key = key
        self._typed = typed
        self._screen = screen
        self._picker = picker
        self._files = list(files)
        self._within_s = within_s
        self._at_terminal = at_terminal
        self._looking: asyncio.Task[None] | None = None
        self._stopping: asyncio.Task[None] | None = None
        self._left = False

    async def run(self, *, resumes: str = "") -> int:
        """Go on with the ended session ``resumes``, if one is named, then with what is typed.

        Returns:
            0 when the person left, 130 where they did so by Ctrl-C.
        """
        loop, me = asyncio.get_running_loop(), asyncio.current_task()
        assert me is not None
        try:
            async with asyncio.TaskGroup() as group:
                loop.add_signal_handler(signal.SIGINT, self._interrupt, group, me)
                try:
                    self._look(group)
                    if resumes:
                        await self._turn(f"/resume {resumes}")
                    while (text := await self._typed.read()) is not None:
                        if self._at_terminal and text.strip().lower() in _LEAVES:
                            break
                        if text.strip():
                            await self._take(group, text.encode("utf-8", "replace").decode())
                finally:
                    loop.remove_signal_handler(signal.SIGINT)
                    if self._looking is not None:
                        self._looking.cancel()
        except asyncio.CancelledError:
            if not self._left:
                raise
            me.uncancel()
            return 130
        return 0

    def _look(self, group: asyncio.TaskGroup) -> None:
        if self._looking is not None:
            self._looking.cancel()
        self._looking = group.create_task(look_on(self._talk, self._key, self._screen.see), name="look on")

    async def _take(self, group: asyncio.TaskGroup, text: str) -> None:
        if choice := _SESSIONS.fullmatch(text):
            chosen = await self._picker.choose(self._typed, choice[1] or "")
            if chosen is not None:
                await self._go_to(group, chosen)
            return
        if self._at_terminal:
            paths, text = split_files(text)
            if not await self._enclose(self._picker.settings, paths) or not text.strip():
                return
        await self._turn(text)

    async def _go_to(self, group: asyncio.TaskGroup, chosen: Chosen) -> None:
        if chosen.key != self._key:
            self._key = chosen.key
            self._picker.entered(chosen.key)
            self._look(group)
        if chosen.resumes:
            await self._turn(f"/resume {chosen.resumes}")

    async def _enclose(self, settings: Settings, paths: Sequence[str]) -> bool:
        """Store files for the next message; False where one of them cannot be taken along."""
        for path in paths:
            try:
                file = await enclose(settings, Path(path))
            except GatewayError as error:
                self._screen.fail(str(error), error.hint)
                return False
            self._files.append(file)
            output.words(f"{file.name} ({file.size:,} bytes) is attached to this message or the next")
        return True

    async def _turn(self, text: str) -> None:
        message_id = durable.new_id()
        # As ``inbound`` names it: a key without a colon belongs to the terminal, too.
        own = self._key.startswith("cli:") or ":" not in self._key
        self._screen.begin(("cli:" if own else "web:") + message_id, text)
        self._stopping = None
        files = [] if text.startswith("/") else self._files
        try:
            outcome = await self._talk.ask(
                self._key, text, message_id, files=files, within_s=self._within_s, away=self._away
            )
        except (GatewayError, SessionError) as error:
            self._screen.fail(str(error), error.hint)
            return
        if files:
            self._files = []
        if outcome is None:
            assert self._within_s is not None
            self._screen.late(self._within_s)
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


async def converse(
    settings: Settings,
    key: str,
    *,
    message: str | None,
    chooses: bool,
    paths: Sequence[Path],
    as_json: bool,
    within_s: float | None,
) -> int:
    """Ask once, or until the person leaves; return the exit code."""
    lines = JsonLines(key) if as_json else None
    asks = sys.stdin.isatty() and sys.stdout.isatty() and lines is None
    picker = Picker(settings, asks=asks, lines=lines)
    if chooses and not asks:
        await picker.show()
        return 0
    files = [await enclose(settings, path) for path in paths]
    async with attach.daemon_or(settings, partial(_here, message=message)) as talk:
        if settings.model.name == "echo":
            output.words(ECHO)
        if message is not None:
            return await ask_once(talk, key, message, files=files, within_s=within_s, lines=lines)
        async with open_typed(settings.workspace, prompts=lines is None) as typed:
            resumes = ""
            if chooses and (chosen := await picker.choose(typed)) is not None:
                key, resumes = chosen.key, chosen.resumes
            if sys.stdin.isatty():
                output.words(HELP)
            if (standing := await talk.model()).foreseen:
                unreachable(standing)
            conversation = Conversation(
                talk,
                key,
                typed=typed,
                screen=lines or Screen(MarkdownInk() if wanted() else None),
                picker=picker,
                files=files,
                within_s=within_s,
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
    from gateway.app.application import Application
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
        from gateway.app.status import model_standing

        return model_standing(self._chats.application)


async def ask_once(
    talk: Talk,
    key: str,
    text: str,
    *,
    files: Sequence[Attachment] = (),
    within_s: float | None,
    lines: JsonLines | None = None,
) -> int:
    """Send one message and print its reply; return 0, 1 where none came, 69 where the model is away.

    A message that no model can answer while this daemon runs is not sent. With ``lines`` what happens to it
    is written there, in place of the bare reply.
    """
    standing = await _standing(talk)
    if standing.foreseen and asks_model(text):
        return unreachable(standing)
    message_id = durable.new_id()
    told_away = asyncio.Event()

    if lines is not None:
        lines.begin(("cli:" if key.startswith("cli:") or ":" not in key else "web:") + message_id, text)

    def see(event: Event) -> None:
        if lines is not None:
            lines.see(event)
        # Where files lie is said with the answer.
        if names(event, message_id) and event.kind == "notice" and not event.ends and event.reason != FILES:
            output.words(event.text)
            if event.reason == MODEL_AWAY:
                told_away.set()

    async with asyncio.TaskGroup() as group:
        looking = group.create_task(look_on(talk, key, see), name="look on")
        gone = group.create_task(_gone(talk, standing, told_away), name="model away")
        asking = group.create_task(
            talk.ask(key, text, message_id, files=files, within_s=within_s, away=away), name="ask"
        )
        await asyncio.wait((asking, gone), return_when=asyncio.FIRST_COMPLETED)
        for task in (looking, gone, asking):
            task.cancel()
    if asking.cancelled():
        code = unreachable(gone.result())
        output.words(_KEPT.format(key))
        return code
    outcome = asking.result()
    code = _ended(outcome, key, within_s, lines)
    if outcome is None or outcome.kind == "notice":
        await _explain(talk, message_id)
    return code


async def _explain(talk: Talk, message_id: str) -> None:
    standing = await _standing(talk)
    if not standing.up:
        unreachable(standing)
        return
    # The notice goes out just before the message is parked.
    for _ in range(_LOOKS):
        with suppress(GatewayError):
            for row in await talk.parked():
                if str(row["id"]).endswith(message_id):
                    cure = f"chat-gateway parked retry {row['id']}, once that is fixed"
                    output.error(str(row["reason"]), cure)
                    return
        await asyncio.sleep(_LOOK_S)


def _ended(outcome: Outcome | None, key: str, within_s: float | None, lines: JsonLines | None) -> int:
    if lines is not None and outcome is not None:
        lines.end(outcome)
        return 0 if outcome.kind == "reply" else 1
    if outcome is None:
        if lines is not None and within_s is not None:
            lines.late(within_s)
        output.error(f"no reply within {within_s:g} s", _KEPT.format(key))
        return 1
    if outcome.kind == "notice":
        output.words(outcome.text)
        return 1
    output.data(outcome.text)
    if outcome.files:
        output.words(outcome.files)
    return 0


async def _gone(talk: Talk, standing: ModelStanding, told_away: asyncio.Event) -> ModelStanding:
    """Return how the model stands once there is no sense in waiting for it here any longer.

    A chat that was told of this outage by an earlier message is not told again, so the time counts at once
    where the model was away before.
    """
    if standing.up:
        await told_away.wait()
        standing = await _standing(talk)
        if standing.cause in LASTING:
            return standing
    while True:
        await asyncio.sleep(PATIENT_S)
        standing = await _standing(talk)
        # A limited rate is an answer: the provider says by itself when it takes the next request.
        if not standing.up and standing.cause != "rate_limit":
            return standing


def asks_model(text: str) -> bool:
    """Say whether this text is a question for the model; no command is but ``/retry``."""
    command = parse(text)
    return command is None or command.name == "retry"


async def _standing(talk: Talk) -> ModelStanding:
    try:
        return await talk.model()
    except GatewayError:
        # Whoever asks finds out the same, and says it.
        return ModelStanding()


def unreachable(standing: ModelStanding) -> int:
    """Say why the model does not answer, and the cure; return the exit code."""
    error = no_answer(standing)
    output.error(str(error), error.hint)
    return error.exit_code


def no_answer(standing: ModelStanding) -> Unreachable:
    """Put into words why the model does not answer, with the cure."""
    why = f" ({standing.cause.replace('_', ' ')})" if standing.cause else ""
    return Unreachable(f"the language model does not answer{why}: {standing.error}", hint=standing.hint)


def away(reason: str) -> None:
    """Say that the message cannot be handed in just now."""
    output.words(f"{reason}; trying again")
