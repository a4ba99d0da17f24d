"""How a conversation looks: answers as they come, in colour or plain, or as lines for a program."""

from __future__ import annotations

import json
import os
import re
import shutil
import sys
from collections.abc import Iterator
from io import StringIO
from typing import TYPE_CHECKING

from durable import BoundedDict
from gateway.cli import output
from gateway.dispatch.events import Event
from gateway.service.outcome import Outcome

if TYPE_CHECKING:
    from markdown_it.token import Token


MAX_WIDTH = 100
_FENCE = re.compile(r" {0,3}(`{3,}|~{3,})")
_TRAILING = re.compile(r"(?<![ \t])[ \t]++(?=(?:\x1b\[0m)?$)", re.MULTILINE)


def wanted() -> bool:
    """Say whether stdout is a terminal that shows colours, and nobody asked for none."""
    return (
        sys.stdout is not None
        and sys.stdout.isatty()
        and os.environ.get("TERM", "dumb") != "dumb"
        and not os.environ.get("NO_COLOR")
    )


def clean(text: str) -> str:
    """Replace what is no character to be seen, line breaks and tabs aside."""
    return "".join(c if c.isprintable() or c in "\n\t" else "\ufffd" for c in text)


def whole_blocks(text: str) -> tuple[str, str]:
    """Cut a text that grows into the blocks that are whole, and the rest, which may go on.

    A block ends at an empty line outside of fenced code, once the next line begins without an indent: what is
    indented may be part of a list.
    """
    cut = at = 0
    fence, gap = "", False
    for line in text.splitlines(keepends=True):
        found = _FENCE.match(line)
        if fence:
            if found and found[1].startswith(fence) and not line.strip().strip(fence[0]):
                fence = ""
        elif not line.strip():
            gap = line.endswith("\n")
        else:
            if gap and not line[0].isspace():
                cut = at
            gap = False
            fence = found[1] if found else ""
        at += len(line)
    return text[:cut], text[cut:]


class MarkdownInk:
    """Draws one answer after the other; holds back what is no whole block yet."""

    def __init__(self) -> None:
        self._waiting = ""
        self._drawn = False

    @property
    def waiting(self) -> str:
        """What is held back, on one line."""
        return " ".join(clean(self._waiting).split())

    def feed(self, text: str) -> str:
        """Take more of an answer; return what can be shown now, whole lines or nothing."""
        done, self._waiting = whole_blocks(self._waiting + text)
        return self._draw(done)

    def end(self) -> str:
        """Return what was held back; what is fed next is another answer."""
        waiting, self._waiting = self._waiting, ""
        drawn = self._draw(waiting)
        self._drawn = False
        return drawn

    def _draw(self, text: str) -> str:
        if not text.strip():
            return ""
        gap, self._drawn = "\n" if self._drawn else "", True
        return gap + _drawn(text)


def _drawn(text: str) -> str:
    # Loading it takes longer than all else that a chat needs to begin.
    from markdown_it import MarkdownIt
    from rich.console import Console
    from rich.markdown import Markdown

    markdown = Markdown("", hyperlinks=False)
    # Answers hold ``<url>`` and ``List<T>``: no tag is dropped as HTML, no definition of a link is unseen.
    parser = MarkdownIt("commonmark", {"html": False}).enable(["strikethrough", "table"]).disable("reference")
    markdown.parsed = parser.parse(clean(text))
    for token in _all(markdown.parsed):
        if token.type == "image":
            token.type, token.content = "text", f"{token.content} ({token.attrs.get('src', '')})"
        token.content = clean(token.content)
        token.attrs = {name: clean(at) if isinstance(at, str) else at for name, at in token.attrs.items()}
        if token.type == "softbreak":
            # A chat keeps the lines as they were written.
            token.type = "hardbreak"
    width = min(shutil.get_terminal_size().columns, MAX_WIDTH)
    lines = StringIO()
    Console(file=lines, force_terminal=True, width=width, highlight=False).print(markdown)
    return _TRAILING.sub("", lines.getvalue()).strip("\n") + "\n"


def _all(tokens: list[Token]) -> Iterator[Token]:
    for token in tokens:
        yield token
        yield from _all(token.children or [])


QUOTED_CHARS = 50
QUESTIONS_MAX = 100
THINKING = "…"


class GrowingAnswer:
    """Follows one answer while it is written, over crashes; ``shown`` is what the reader has of it."""

    def __init__(self) -> None:
        self.shown = ""
        # What came of it in the try that runs now, since after a crash the answer is written anew.
        self._came = ""

    def forget(self) -> None:
        """Begin another answer: a further one, or what follows a call of a tool."""
        self.shown = self._came = ""

    def see(self, event: Event) -> tuple[bool, str]:
        """Take an event; say whether it is another answer than the one shown, and what the reader lacks."""
        match event.kind:
            case "started":
                self._came = ""
                return False, ""
            case "draft":
                self._came = event.text
            case "delta":
                self._came += event.text
            case _:
                return False, ""
        if self.shown.startswith(self._came):
            return False, ""
        anew = not self._came.startswith(self.shown)
        lacking = self._came if anew else self._came[len(self.shown) :]
        self.shown = self._came
        return anew, lacking


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


class JsonLines:
    """Writes one JSON object a line to stdout, as ``docs/chat.md`` lists them."""

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
