"""What a person types: a line editor with history in a terminal, plain lines from anything else."""

from __future__ import annotations

import asyncio
import os
import signal
import sys
import threading
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Protocol

import durable

if TYPE_CHECKING:
    from prompt_toolkit import PromptSession
    from prompt_toolkit.key_binding import KeyBindings, KeyPressEvent

PROMPT = "> "


class Typed(Protocol):
    """The messages of one person, one after the other."""

    async def read(self) -> str | None:
        """Return the next message, empty where the person thought better of it; None at the end."""
        ...


@asynccontextmanager
async def open_typed(workspace: Path, *, prompts: bool = True) -> AsyncIterator[Typed]:
    """Read from this process's stdin, in the way that suits it.

    Args:
        workspace: what Tab completes is found there; a terminal's history is kept in its ``state/``.
        prompts: stdout may have a prompt, where it is a terminal.
    """
    terminal = prompts and sys.stdin.isatty() and sys.stdout.isatty()
    if terminal and os.environ.get("TERM", "dumb") != "dumb":
        yield _Edited(_history_file(workspace / "state"), workspace)
    else:
        yield _Plain(asyncio.get_running_loop(), prompt=PROMPT if terminal else "")


class _Edited:
    def __init__(self, history: Path, workspace: Path) -> None:
        from prompt_toolkit import PromptSession
        from prompt_toolkit.history import FileHistory

        from gateway.cli.chat_words import ChatWords

        self._session: PromptSession[str] = PromptSession(
            history=FileHistory(str(history)),
            key_bindings=_keys(),
            prompt_continuation="  ",
            completer=ChatWords(workspace),
            complete_while_typing=False,
        )

    async def read(self) -> str | None:
        from prompt_toolkit.patch_stdout import patch_stdout

        try:
            with patch_stdout(raw=True):
                return await self._session.prompt_async(PROMPT, handle_sigint=False)
        except EOFError:
            return None
        except KeyboardInterrupt:
            # The editor has taken the key: it drops what is typed, and where nothing is it means the program.
            if not self._session.default_buffer.text:
                os.kill(os.getpid(), signal.SIGINT)
            return ""


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


def _keys() -> KeyBindings:
    from prompt_toolkit.key_binding import KeyBindings

    keys = KeyBindings()

    @keys.add("escape", "enter")
    def _(event: KeyPressEvent) -> None:
        event.current_buffer.insert_text("\n")

    @keys.add("enter")
    def _(event: KeyPressEvent) -> None:
        buffer = event.current_buffer
        if buffer.document.text_before_cursor.endswith("\\"):
            buffer.delete_before_cursor()
            buffer.insert_text("\n")
        else:
            buffer.validate_and_handle()

    return keys


def _history_file(state: Path) -> Path:
    durable.make_folder(state)
    path = state / "chat_history"
    durable.touch(path)
    path.chmod(0o600)
    return path
