"""The line editor of a conversation in a terminal, and what Tab completes in it."""

from __future__ import annotations

import os
import signal
from collections.abc import Iterator
from pathlib import Path

from prompt_toolkit import PromptSession
from prompt_toolkit.completion import CompleteEvent, Completer, Completion, PathCompleter
from prompt_toolkit.document import Document
from prompt_toolkit.history import FileHistory
from prompt_toolkit.key_binding import KeyBindings, KeyPressEvent
from prompt_toolkit.patch_stdout import patch_stdout

import durable
from gateway.cli.root import FILE_WORD, Names, ended, keys
from session.turn.command_names import DESCRIPTIONS

PROMPT = "> "
SESSIONS = "/sessions"
_COMMANDS = {f"/{name}": text for name, text in DESCRIPTIONS.items()} | {
    SESSIONS: "switch to another chat of this terminal",
    FILE_WORD: "attach a file: !file PATH",
}


class LineEditor:
    """Reads messages with a history and completion; ``workspace`` has what Tab completes."""

    def __init__(self, workspace: Path) -> None:
        self._session: PromptSession[str] = PromptSession(
            history=FileHistory(str(_history_file(workspace / "state"))),
            key_bindings=_keys(),
            prompt_continuation="  ",
            completer=ChatWords(workspace),
            complete_while_typing=False,
        )

    async def read(self) -> str | None:
        """Return the next message, empty where the person thought better of it; None at the end."""
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


class ChatWords(Completer):
    """Completes the line at the cursor, where it begins with a command."""

    def __init__(self, workspace: Path) -> None:
        self._workspace = workspace
        self._paths = PathCompleter(expanduser=True)

    def get_completions(self, document: Document, complete_event: CompleteEvent) -> Iterator[Completion]:
        """Yield what may stand at the cursor."""
        before = document.current_line_before_cursor
        command, space, rest = before.partition(" ")
        if not space:
            if before[:1] in ("/", "!"):
                yield from _fitting(_COMMANDS, before)
        elif command == FILE_WORD:
            yield from self._paths.get_completions(Document(rest.lstrip()), complete_event)
        elif command == SESSIONS:
            own = {key: name for key, name in keys(self._workspace).items() if key.startswith("cli:")}
            yield from _fitting(own, rest)
        elif command == "/resume":
            yield from _fitting(ended(self._workspace, None), rest.upper())


def _fitting(words: Names, begun: str) -> Iterator[Completion]:
    for word, meaning in words.items():
        if word.startswith(begun):
            yield Completion(word, start_position=-len(begun), display_meta=meaning)


def _keys() -> KeyBindings:
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
