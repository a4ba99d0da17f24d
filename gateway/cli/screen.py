"""What a conversation looks like in a terminal: pieces of an answer as they come, each text once."""

from __future__ import annotations

import sys

from durable import BoundedDict
from gateway.service.outcome import Outcome
from gateway.turns.event import Event

QUOTED_CHARS = 50
QUESTIONS_MAX = 100


class Screen:
    """Writes one conversation to stdout; the turn of this terminal's own message is the running one."""

    def __init__(self) -> None:
        # The id of our own message, while its turn runs.
        self._running = ""
        # What the screen shows of its answer.
        self._shown = ""
        # What came of its answer in the try that runs now, since after a crash the answer is written anew.
        self._came = ""
        self._mid_line = False
        self._ours: set[str] = set()
        # Texts of ours that are no longer waited for.
        self._given_up: BoundedDict[str, str] = BoundedDict(QUESTIONS_MAX)
        self._text = ""

    @property
    def busy(self) -> bool:
        """Whether a message of ours waits for its answer."""
        return bool(self._running)

    def begin(self, message_id: str, text: str) -> None:
        """Expect the answer of a message that is about to be sent."""
        self._running, self._text, self._shown, self._came = message_id, text, "", ""
        self._ours.add(message_id)

    def see(self, event: Event) -> None:
        """Show an event; the end of our own message is left to ``end``."""
        if self._running and event.in_reply_to == self._running:
            self._see_running(event)
        match event.kind:
            case "notice" if not event.ends or event.in_reply_to not in self._ours:
                self._line(f"! {self._to(event)}{event.text}")
            case "reply" if event.in_reply_to not in self._ours:
                self._line(f"{self._to(event)}{event.text}")

    def end(self, outcome: Outcome) -> None:
        """Show how our message ended, without what is on the screen already."""
        shown, self._running, self._shown, self._came = self._shown, "", "", ""
        if outcome.kind == "reply" and shown and outcome.text.startswith(shown):
            self._write(f"{outcome.text[len(shown) :]}\n")
            return
        self._line(f"{'! ' if outcome.kind == 'notice' else ''}{outcome.text}")

    def give_up(self) -> None:
        """Wait no longer; a later answer is shown with the question that it answers."""
        self._ours.discard(self._running)
        self._given_up[self._running] = self._text
        if self._mid_line:
            self._write("\n")
        self._running, self._shown, self._came = "", "", ""

    def say(self, text: str) -> None:
        """Show words of our own; an answer that is being written goes on below them."""
        self._line(text)

    def _see_running(self, event: Event) -> None:
        match event.kind:
            case "started":
                self._came = ""
            case "draft":
                self._came = event.text
                self._go_on()
            case "delta":
                self._came += event.text
                self._go_on()
            case "tool":
                self._line(f"[{event.text}]")
                self._shown = self._came = ""

    def _go_on(self) -> None:
        """Write what the screen lacks of the answer; another answer than the one begun is written whole."""
        if self._shown.startswith(self._came):
            return
        if self._came.startswith(self._shown):
            self._write(self._came[len(self._shown) :])
        else:
            self._line("[begun anew]")
            self._write(self._came)
        self._shown = self._came

    def _to(self, event: Event) -> str:
        """Name the question of an answer that does not stand below it."""
        asked = self._given_up.get(event.in_reply_to or "")
        if asked is not None:
            line = " ".join(asked.split())
            return f"(to “{line if len(line) <= QUOTED_CHARS else line[:QUOTED_CHARS] + '…'}”) "
        own = event.in_reply_to in (None, self._running)
        return "(to another message) " if self.busy and not own else ""

    def _line(self, text: str) -> None:
        """Write a line of its own; an answer that is being written goes on below it."""
        if self._mid_line:
            self._write("\n")
        self._write(f"{text}\n")

    def _write(self, text: str) -> None:
        """Write text of others: no control character reaches the terminal; what it cannot show is a ``?``."""
        if not text:
            return
        self._mid_line = not text.endswith("\n")
        encoding = sys.stdout.encoding or "utf-8"
        safe = "".join(c if c.isprintable() or c in "\n\t" else "\ufffd" for c in text)
        sys.stdout.write(safe.encode(encoding, "replace").decode(encoding))
        sys.stdout.flush()
