"""A conversation for programs: one JSON object a line on stdout, as ``docs/chat.md`` lists them."""

from __future__ import annotations

import json
import sys

from gateway.cli.growing import GrowingAnswer
from gateway.service.outcome import Outcome
from gateway.turns.event import Event


class JsonLines:
    """Writes what happens in a chat; has the methods of ``Screen``."""

    def __init__(self, key: str) -> None:
        self.key = key
        self._running = ""
        self._answer = GrowingAnswer()
        self._ours: set[str] = set()

    @property
    def busy(self) -> bool:
        """Whether a message of ours waits for its answer."""
        return bool(self._running)

    def begin(self, message_id: str, text: str) -> None:
        """Say the id under which a message is sent."""
        self._running = message_id
        self._answer.forget()
        self._ours.add(message_id)
        self._write("sent", id=message_id, text=text)

    def see(self, event: Event) -> None:
        """Write an event; the end of our own message is left to ``end``."""
        if self._running and event.in_reply_to == self._running:
            self._see_running(event)
        ours = event.in_reply_to in self._ours
        if event.kind == "notice" and not (event.ends and ours):
            self._write("notice", id=event.in_reply_to, text=event.text, reason=event.reason, ends=event.ends)
        elif event.kind == "reply" and not ours:
            self._write("reply", id=event.in_reply_to, text=event.text, files=[])

    def end(self, outcome: Outcome) -> None:
        """Write how our message ended, whole."""
        id_, self._running = self._running, ""
        if outcome.kind == "reply":
            self._write("reply", id=id_, text=outcome.text, files=outcome.files.splitlines())
        else:
            self._write("notice", id=id_, text=outcome.text, reason="", ends=True)

    def give_up(self) -> None:
        """Wait no longer: a later answer is written as one of somebody else's message is."""
        self._ours.discard(self._running)
        self._running = ""

    def fail(self, text: str, hint: str) -> None:
        """Say why our message was not handed in."""
        id_ = self._running
        self.give_up()
        self._write("error", id=id_ or None, error=text, hint=hint)

    def late(self, within_s: float) -> None:
        """Say that the time ran out."""
        id_ = self._running
        self.give_up()
        self._write("late", id=id_, after_s=within_s)

    def say(self, text: str) -> None:
        """Write words of the program itself."""
        self._write("notice", id=None, text=text, reason="", ends=False)

    def rows(self, rows: list[dict[str, object]]) -> None:
        """Write the conversations to choose from."""
        self._write("sessions", sessions=rows)

    def _see_running(self, event: Event) -> None:
        if event.kind == "tool":
            self._answer.forget()
            self._write("tool", id=self._running, text=event.text)
            return
        anew, text = self._answer.see(event)
        if anew:
            self._write("restart", id=self._running)
        if text:
            self._write("delta", id=self._running, text=text)

    def _write(self, kind: str, **fields: object) -> None:
        # ASCII alone: whatever the encoding of the pipe, the values are exact, and no terminal is steered.
        sys.stdout.write(json.dumps({"type": kind, "key": self.key, **fields}, default=str) + "\n")
        sys.stdout.flush()
