"""A conversation in this terminal or through a pipe: reads, asks and shows until the person leaves."""

from __future__ import annotations

import asyncio
import re
import signal
from collections.abc import Sequence
from pathlib import Path
from typing import Protocol

from ulid import ULID

from channels.message import Attachment
from gateway.cli import enclosing, output
from gateway.cli.choosing import Chosen, Picker
from gateway.cli.looking import look_on
from gateway.cli.talk import Talk
from gateway.cli.typed import Typed
from gateway.config.settings import Settings
from gateway.errors import GatewayError
from gateway.service.outcome import Outcome
from gateway.turns.event import Event
from session.errors import SessionError

# What people type to leave, though Ctrl-D does.
_LEAVES = frozenset({"quit", "exit", "/quit", "/exit"})
_SESSIONS = re.compile(r"/sessions(?:\s+(\S+))?\s*")


class Shows(Protocol):
    """Where a conversation appears: a screen, or lines for a program."""

    @property
    def busy(self) -> bool:
        """Whether a message of ours waits for its answer."""
        ...

    def begin(self, message_id: str, text: str) -> None:
        """Expect the answer of a message that is about to be sent."""
        ...

    def see(self, event: Event) -> None:
        """Show an event."""
        ...

    def end(self, outcome: Outcome) -> None:
        """Show how our message ended."""
        ...

    def fail(self, text: str, hint: str) -> None:
        """Say why our message was not handed in."""
        ...

    def late(self, within_s: float) -> None:
        """Say that the time ran out."""
        ...

    def say(self, text: str) -> None:
        """Show words of our own."""
        ...


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
        screen: Shows,
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
                            await self._take(group, valid(text))
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
        """Do what a typed text means: choose a conversation, take a file along, or ask."""
        if choice := _SESSIONS.fullmatch(text):
            chosen = await self._picker.choose(self._typed, choice[1] or "")
            if chosen is not None:
                await self._go_to(group, chosen)
            return
        if self._at_terminal:
            paths, text = enclosing.split(text)
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
                file = await enclosing.enclose(settings, Path(path))
            except GatewayError as error:
                self._screen.fail(str(error), error.hint)
                return False
            self._files.append(file)
            output.words(f"{file.name} ({file.size:,} bytes) is attached to this message or the next")
        return True

    async def _turn(self, text: str) -> None:
        message_id = str(ULID())
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


def valid(text: str) -> str:
    """Replace what is no text, such as bytes of another encoding than the terminal's."""
    return text.encode("utf-8", "replace").decode()
