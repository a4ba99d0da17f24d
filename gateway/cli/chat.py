"""``chat``: one message with ``-m``, else a conversation in this terminal."""

from __future__ import annotations

import asyncio
import io
import os
import select
import shlex
import stat
import sys
from contextlib import aclosing
from pathlib import Path
from typing import TYPE_CHECKING

import click

from durable import make_folder, open_private
from gateway.cli import output
from gateway.cli.config import name_place
from gateway.cli.root import FILE, PROGRAM, GlobalOptions, Misused, Seconds, Verb, complete_keys
from gateway.errors import GatewayError

if TYPE_CHECKING:
    from gateway.config.settings import Settings

MAX_LOG_BYTES = 2**20
MAX_BYTES = 2**21
SILENT_S = 2.0
STDIN = "-"


@click.command(cls=Verb, context_settings={"allow_extra_args": True})
@click.option(
    "-m",
    "--message",
    metavar="TEXT",
    help="send one message, print the answer and exit; piped input is appended to TEXT; "
    "- sends only the piped input",
)
@click.option(
    "--key",
    metavar="KEY",
    default="cli:direct",
    show_default=True,
    help="the chat, as channel:chat_id",
    shell_complete=complete_keys,
)
@click.option("--list", "chooses", is_flag=True, help="choose one of the terminal's chats first")
@click.option(
    "--file",
    "paths",
    metavar="PATH",
    multiple=True,
    type=FILE,
    help="attach a file to the first message; may be repeated",
)
@click.option("--json", "as_json", is_flag=True, help="print one JSON object per line, for programs")
@click.option(
    "--timeout",
    "within_s",
    metavar="S",
    type=Seconds(),
    help="seconds to wait for the answer (default: no limit)",
)
def chat(
    opts: GlobalOptions,
    message: str | None,
    key: str,
    chooses: bool,
    paths: tuple[Path, ...],
    as_json: bool,
    within_s: float | None,
) -> int:
    """Talk to the gateway in this terminal.

    Connects to the gateway that runs on this workspace. If none runs and the queue is embedded, answers in
    its own process.
    """
    from gateway.app import logging as logs
    from gateway.cli.conversation import converse
    from gateway.config.load import load
    from gateway.service.client_message import NoAddress, inbound

    if words := click.get_current_context().args:
        text = shlex.quote(" ".join(words))
        hint = f"{PROGRAM} chat -m {text}" if message is None else f"{PROGRAM} chat --help"
        raise Misused(f"unexpected words: {' '.join(words)}", hint)
    settings = load(opts.config, opts.workspace)
    name_place(opts, None)
    log = ChatLog(settings.state / "chat.log")
    logs.setup(settings, stream=log, at_least="warning")
    if _valid(key) != key:
        raise NoAddress(f"{key!r} is not a chat key", hint="a key is channel:chat_id, such as cli:direct")
    # A key that no letter can have is refused here for every partner, before anything is opened.
    inbound(key, "", kept=asyncio.run(_is_kept(settings, key)))
    if message is not None:
        message = _valid(with_stdin(message))
        if not message.strip():
            raise GatewayError("the message is empty", hint="chat-gateway chat -m TEXT")
    code = asyncio.run(
        converse(
            settings, key, message=message, chooses=chooses, paths=paths, as_json=as_json, within_s=within_s
        )
    )
    if code and log.used:
        output.words(f"details are in {log.path}")
    return code


def _valid(text: str) -> str:
    """Replace what is no text, such as bytes of another encoding than the terminal's."""
    return text.encode("utf-8", "replace").decode()


async def _is_kept(settings: Settings, key: str) -> bool:
    from gateway.service.client_message import is_kept
    from session.store.store import Store

    if ":" in key:
        return False
    async with aclosing(Store(settings.workspace, zone=settings.zone)) as store:
        return await is_kept(store, key)


class ChatLog(io.TextIOBase):
    """The log of ``chat``, which has the terminal for the conversation: appends to a file.

    Makes it with the first line, and renames a large one to ``chat.log.1``.
    """

    def __init__(self, path: Path) -> None:
        self.path = path
        self.used = False
        self._file: io.TextIOWrapper | None = None

    def write(self, text: str) -> int:
        """Write at once.

        Raises:
            OSError: the folder takes no file.
        """
        if self._file is None:
            self._file = self._open()
        self.used = True
        return self._file.write(text)

    def flush(self) -> None:
        """Hand on what was written."""
        if self._file is not None:
            self._file.flush()

    def isatty(self) -> bool:
        """Say no."""
        return False

    def _open(self) -> io.TextIOWrapper:
        make_folder(self.path.parent)
        if self.path.exists() and self.path.stat().st_size > MAX_LOG_BYTES:
            self.path.replace(self.path.with_suffix(".log.1"))
        # As root's in the folder of a service's user it would stop that user's next chat.
        fd = open_private(self.path, os.O_WRONLY | os.O_APPEND)
        return open(fd, "a", encoding="utf-8", errors="backslashreplace")  # noqa: PTH123 - by its descriptor


def with_stdin(given: str) -> str:
    """Return the text to send: ``given``, with the text of a piped stdin below it; ``-`` is stdin alone.

    A pipe that stays silent for two seconds is left out, and that is said: it may be one that whoever started
    this process never closes.

    Raises:
        GatewayError: more than 2 MiB are piped.
    """
    if given == STDIN:
        return _read() if sys.stdin is not None else ""
    if not _is_piped():
        return given
    ready, _, _ = select.select([sys.stdin], [], [], SILENT_S)
    if not ready:
        output.words(f"stdin is open but sent nothing, so it is ignored; `-m {STDIN}` waits for it")
        return given
    text = _read()
    return f"{given}\n\n{text}" if text.strip() else given


def _is_piped() -> bool:
    try:
        mode = os.fstat(sys.stdin.fileno()).st_mode
    except (AttributeError, OSError, ValueError):
        return False
    return stat.S_ISFIFO(mode) or stat.S_ISREG(mode) or stat.S_ISSOCK(mode)


def _read() -> str:
    data = sys.stdin.buffer.read(MAX_BYTES + 1)
    if len(data) > MAX_BYTES:
        raise GatewayError(f"stdin is larger than {MAX_BYTES // 2**20} MiB", hint="send less")
    return data.decode("utf-8", "replace").rstrip("\n")
