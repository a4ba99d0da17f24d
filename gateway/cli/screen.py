"""What a conversation looks like in a terminal: pieces of an answer as they come, each text once."""

from __future__ import annotations

import shutil
import sys

from durable import BoundedDict
from gateway.cli import output
from gateway.cli.growing import GrowingAnswer
from gateway.cli.markdown import MarkdownInk, clean
from gateway.service.outcome import Outcome
from gateway.turns.event import Event

QUOTED_CHARS = 50
QUESTIONS_MAX = 100
THINKING = "…"


class Screen:
    """Writes one conversation to stdout; the turn of this terminal's own message is the running one.

    Args:
        ink: draws answers in colour; None writes them as they came.
    """

    def __init__(self, ink: MarkdownInk | None = None) -> None:
        self._ink = ink
        # The id of our own message, while its turn runs.
        self._running = ""
        self._answer = GrowingAnswer()
        self._mid_line = False
        self._previews = False
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
        self._running, self._text = message_id, text
        self._answer.forget()
        self._ours.add(message_id)
        self._preview()

    def see(self, event: Event) -> None:
        """Show an event; the end of our own message is left to ``end``."""
        if self._running and event.in_reply_to == self._running:
            self._see_running(event)
            self._preview()
        match event.kind:
            case "notice" if not event.ends or event.in_reply_to not in self._ours:
                self._line(f"! {self._to(event)}{event.text}")
            case "reply" if event.in_reply_to not in self._ours:
                self._whole(self._to(event), event.text)

    def end(self, outcome: Outcome) -> None:
        """Show how our message ended, without what is on the screen already."""
        self._put_away()
        shown, self._running = self._answer.shown, ""
        self._answer.forget()
        if outcome.kind == "reply" and shown and outcome.text.startswith(shown):
            self._more(outcome.text[len(shown) :])
            self._end_answer()
        elif outcome.kind == "reply":
            self._whole("", outcome.text)
        else:
            self._line(f"! {outcome.text}")

    def give_up(self) -> None:
        """Wait no longer; a later answer is shown with the question that it answers."""
        self._ours.discard(self._running)
        self._given_up[self._running] = self._text
        self._break()
        self._running = ""
        self._answer.forget()

    def fail(self, text: str, hint: str) -> None:
        """Say why our message was not handed in, and wait no longer."""
        self.give_up()
        output.error(text, hint)

    def late(self, within_s: float) -> None:
        """Say that the time ran out, and wait no longer; the answer is shown when it comes."""
        self.give_up()
        output.words(f"no reply within {within_s:g} s; it will be shown here when it arrives")

    def say(self, text: str) -> None:
        """Show words of our own; an answer that is being written goes on below them."""
        self._line(text)

    def _see_running(self, event: Event) -> None:
        if event.kind == "tool":
            self._line(f"[{event.text}]")
            self._answer.forget()
            return
        anew, text = self._answer.see(event)
        if anew:
            self._line("[starting over]")
        self._more(text)

    def _to(self, event: Event) -> str:
        """Name the question of an answer that does not stand below it."""
        asked = self._given_up.get(event.in_reply_to or "")
        if asked is not None:
            line = " ".join(asked.split())
            return f"(to “{line if len(line) <= QUOTED_CHARS else line[:QUOTED_CHARS] + '…'}”) "
        own = event.in_reply_to in (None, self._running)
        return "(to another message) " if self.busy and not own else ""

    def _whole(self, before: str, text: str) -> None:
        """Write an answer of which nothing is shown yet."""
        self._break()
        if before:
            self._write(f"{before}\n" if self._ink else before)
        self._more(text)
        self._end_answer()

    def _more(self, text: str) -> None:
        """Write more of an answer; in colour it may be held back until a block of it is whole."""
        if self._ink is None:
            self._write(text)
        else:
            self._put(self._ink.feed(text))

    def _end_answer(self) -> None:
        if self._ink is None:
            self._write("\n")
        else:
            self._put(self._ink.end())

    def _line(self, text: str) -> None:
        """Write a line of its own; an answer that is being written goes on below it."""
        self._break()
        self._write(f"{text}\n")

    def _break(self) -> None:
        """Begin a line, behind what is held back."""
        self._put_away()
        if self._ink is not None:
            self._put(self._ink.end())
        if self._mid_line:
            self._write("\n")

    def _write(self, text: str) -> None:
        """Write text of others: no control character reaches the terminal; what it cannot show is a ``?``."""
        self._put(clean(text))

    def _preview(self) -> None:
        """Show below the answer what of it is held back: its newest words, or that it is awaited."""
        if self._ink is None or not self._running:
            return
        # Loading it takes long, and only colours need it.
        from rich.cells import cell_len

        text, room = self._ink.waiting or THINKING, shutil.get_terminal_size().columns - 1
        text = text[-room:]
        while cell_len(text) > room:
            text = text[1:]
        self._put_away()
        self._previews = True
        sys.stdout.write(_encoded(f"\x1b[2m{text}\x1b[0m"))
        sys.stdout.flush()

    def _put_away(self) -> None:
        if self._previews:
            self._previews = False
            sys.stdout.write("\r\x1b[K")
            sys.stdout.flush()

    def _put(self, text: str) -> None:
        if not text:
            return
        self._put_away()
        self._mid_line = not text.endswith("\n")
        sys.stdout.write(_encoded(text))
        sys.stdout.flush()


def _encoded(text: str) -> str:
    encoding = sys.stdout.encoding or "utf-8"
    return text.encode(encoding, "replace").decode(encoding)
