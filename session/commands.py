"""What a person can ask of the gateway itself: ``/new``, ``/stop``, ``/status``, ``/memory``, ``/help``."""

from __future__ import annotations

import difflib
import re
from collections.abc import Awaitable, Callable
from dataclasses import dataclass

from session.store import Session
from session.turn import Request

_FORM = re.compile(r"/([A-Za-z][A-Za-z0-9_]*)(?:@[A-Za-z0-9_]+)?(?:\s+(.*))?", re.DOTALL)

DESCRIPTIONS = {
    "new": "ends this conversation and begins a fresh one",
    "stop": "stops the answer that is being written; waiting messages stay",
    "status": "shows the model, this conversation and what waits",
    "memory": "shows what is remembered about this chat",
    "help": "shows these commands",
}
_ALIASES = {"start": "help"}
_MAX_MEMORY_CHARS = 3_500

NOTHING_RUNS = "Nothing is running."
STOPPED = "Stopped."
BEGUN = "A new conversation begins. The one before is kept, and goes into memory in the background."
BEGUN_EMPTY = "A new conversation begins."


@dataclass(frozen=True, slots=True)
class Command:
    """A command as typed: its name in lower case without the slash, and what follows it."""

    name: str
    rest: str = ""


def parse(text: str) -> Command | None:
    """Read a text that begins with ``/`` and a letter; None where it is no command."""
    match = _FORM.fullmatch(text.strip())
    if match is None:
        return None
    name = match[1].lower()
    return Command(_ALIASES.get(name, name), (match[2] or "").strip())


class Commands:
    """Runs commands on the open session of their chat.

    Args:
        status: lines of the daemon for a key (model, waiting letters).
        memory: the MEMORY.md of the scope of session and request, empty where there is none.
        ended: makes the background work for an ended session durable; called with the session that ended it.
    """

    def __init__(
        self,
        *,
        status: Callable[[str], list[str]],
        memory: Callable[[Session, Request], Awaitable[str]],
        ended: Callable[[Session], Awaitable[bool]],
    ) -> None:
        self._status = status
        self._memory = memory
        self._ended = ended

    async def run(self, session: Session, command: Command, request: Request) -> str:
        """Do what ``command`` says and return the answer's text. Doing it twice does no harm."""
        match command.name:
            case "new":
                await session.end()
                return BEGUN if await self._ended(session) else BEGUN_EMPTY
            case "stop":
                return NOTHING_RUNS  # a running turn was stopped out of line, before this letter's turn came
            case "status":
                return "\n".join([*self._status(session.key), *_of_session(session)])
            case "memory":
                return (
                    _shortened(await self._memory(session, request))
                    or "Nothing is remembered about this chat yet."
                )
            case "help":
                return "\n".join(f"/{name} {what}" for name, what in DESCRIPTIONS.items())
            case _:
                return _unknown(command.name)


def _of_session(session: Session) -> list[str]:
    name = session.metadata.get("name")
    return [f"session: {session.session_id}{f' ({name})' if name else ''}, {len(session)} messages"]


def _shortened(text: str) -> str:
    text = text.strip()
    if len(text) <= _MAX_MEMORY_CHARS:
        return text
    return f"{text[:_MAX_MEMORY_CHARS]}\n… ({len(text) - _MAX_MEMORY_CHARS} more characters)"


def _unknown(name: str) -> str:
    near = difflib.get_close_matches(name, DESCRIPTIONS, n=1, cutoff=0.4)
    return f"There is no command /{name}. Did you mean /{near[0] if near else 'help'}?"
