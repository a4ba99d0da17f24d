"""What Tab completes in a conversation: commands, conversations, ended sessions, and files."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

from prompt_toolkit.completion import CompleteEvent, Completer, Completion, PathCompleter
from prompt_toolkit.document import Document

from gateway.cli import known
from gateway.cli.enclosing import WORD
from session.turn.command_names import DESCRIPTIONS

SESSIONS = "/sessions"
_COMMANDS = {f"/{name}": text for name, text in DESCRIPTIONS.items()} | {
    SESSIONS: "switch to another chat of this terminal",
    WORD: "attach a file: !file PATH",
}


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
        elif command == WORD:
            yield from self._paths.get_completions(Document(rest.lstrip()), complete_event)
        elif command == SESSIONS:
            keys = known.keys(self._workspace)
            yield from _fitting({key: name for key, name in keys.items() if key.startswith("cli:")}, rest)
        elif command == "/resume":
            yield from _fitting(known.ended(self._workspace, None), rest.upper())


def _fitting(words: known.Names, begun: str) -> Iterator[Completion]:
    for word, meaning in words.items():
        if word.startswith(begun):
            yield Completion(word, start_position=-len(begun), display_meta=meaning)
