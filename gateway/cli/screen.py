"""What a conversation looks like in a terminal: pieces of an answer as they come, each text once."""

from __future__ import annotations

import sys

from gateway.http.event import Event
from gateway.http.outcome import Outcome


class Screen:
    """Writes one conversation to stdout; the turn of this terminal's own message is the running one."""

    def __init__(self) -> None:
        self._running = ""  # id of our own message, while its turn runs
        self._shown = ""
        self._ours: set[str] = set()

    @property
    def busy(self) -> bool:
        """Whether a message of ours waits for its answer."""
        return bool(self._running)

    def begin(self, message_id: str) -> None:
        """Expect the answer of a message that is about to be sent."""
        self._running, self._shown = message_id, ""
        self._ours.add(message_id)

    def see(self, event: Event) -> None:
        """Show an event; the end of our own message is left to ``end``."""
        mine = self._running != "" and event.in_reply_to == self._running
        match event.kind:
            case "delta" if mine:
                self._shown += event.text
                _write(event.text)
            case "tool" if mine:
                self._line(f"[{event.text}]")
            case "notice" if not event.ends or event.in_reply_to not in self._ours:
                self._line(f"! {event.text}")
            case "reply" if event.in_reply_to not in self._ours:
                self._line(event.text)

    def end(self, outcome: Outcome) -> None:
        """Show how our message ended, without what is on the screen already."""
        shown, self._running, self._shown = self._shown, "", ""
        if outcome.kind == "reply" and shown and outcome.text.startswith(shown):
            _write(f"{outcome.text[len(shown) :]}\n")
            return
        if shown:
            _write("\n")
        _write(f"{'! ' if outcome.kind == 'notice' else ''}{outcome.text}\n")

    def give_up(self) -> None:
        """Wait no longer; a later answer is shown like that of anybody else's message."""
        self._ours.discard(self._running)
        if self._shown:
            _write("\n")
        self._running, self._shown = "", ""

    def _line(self, text: str) -> None:
        """Write a line of its own; an answer that is being written goes on below it."""
        if self._shown and not self._shown.endswith("\n"):
            _write("\n")
        _write(f"{text}\n")
        self._shown = ""


def _write(text: str) -> None:
    """Write text of others: no control characters reach the terminal, and what it cannot show is a ``?``."""
    encoding = sys.stdout.encoding or "utf-8"
    safe = "".join(c if c.isprintable() or c in "\n\t" else "\ufffd" for c in text)
    sys.stdout.write(safe.encode(encoding, "replace").decode(encoding))
    sys.stdout.flush()
