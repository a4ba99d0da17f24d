"""Markdown of answers in colour: block by block as they come, each drawn once it is whole.

What a model wrote steers no terminal: the only control characters in what comes out are the colours of this
module, since each text is cleaned after it was parsed, when entities have become characters.
"""

from __future__ import annotations

import os
import re
import shutil
import sys
from collections.abc import Iterator
from io import StringIO
from typing import TYPE_CHECKING

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
