"""Rewrites Markdown that Discord does not render: tables, task lists, rules, images and others."""

from __future__ import annotations

import re
import string
from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Any, Final

import pyromark

from channels.text import Range, bars_escaped_in_code, events, fixed_width, meets, not_prose
from durable import is_blank

_OPTIONS: Final = pyromark.Options.ENABLE_TABLES | pyromark.Options.ENABLE_TASKLISTS
_FENCE: Final = re.compile(rb"(~{3,}|`{4,})")
_SMALL_HEADING: Final = re.compile(rb"(#{4,6}[ \t]+)[^\n]*?((?:[ \t]+#+)?[ \t]*)\n?\Z")
_UNDERLINE: Final = re.compile(rb"(?<![ \t])[ \t]*+\n[ \t>]*+(?:=++|-++)[ \t]*+(?=\n?\Z)")
# Marks in cells that a fence would show.
_CELL_MARKS: Final = re.compile(
    r"\*\*(?=\S)(?P<bold>[^*]+)(?<=\S)\*\*|(?<!`)(?P<tick>`{1,9})(?!`)(?P<code>[^`]+)(?P=tick)(?!`)|\\(?P<bar>\|)"
)
# To Discord a single underscore within a word is no mark.
_MARKED: Final = re.compile(rb"[*~\\]|__|\b_|_\b")
# Double bars that enclose no spoiler.
_BARS: Final = re.compile(rb"\|\|(?=[^\s|])[^\n|]*(?<=[^\s|\\])\|\|(?!\|)|(?P<stray>(?<!\\)\|{2,})")
_RULE: Final = "─" * 12

Edit = tuple[int, int, str]


def discord_markdown(text: str) -> str:
    """Return Markdown that Discord shows the way CommonMark with tables and task lists is meant.

    A table becomes one of fixed width in a fence; code stays as it is.
    """
    try:
        source = text.encode()
    except UnicodeEncodeError:
        return text
    rewriter = _Rewriter(source)
    edits = sorted(rewriter.edits())
    if (escaped := bars_escaped_in_code(source, rewriter.tables)) != source:
        return discord_markdown(escaped.decode())
    done, shown = 0, []
    for start, end, new in edits:
        # Edits within a table, which is replaced as a whole, are passed over.
        if start >= done:
            shown += [source[done:start], new.encode()]
            done = end
    whole = b"".join([*shown, source[done:]]).decode()
    return text if is_blank(whole) else whole


@dataclass(slots=True)
class _Rewriter:
    """Finds the edits of one text; places are of bytes."""

    source: bytes
    rows: list[list[str]] = field(default_factory=list)
    cell_end: int = 0
    in_cell: bool = False
    in_small_heading: bool = False
    in_link: bool = False
    # Addresses of the images in an open link.
    images: list[str] = field(default_factory=list)
    tables: list[Range] = field(default_factory=list)
    # Code, and addresses in angle brackets.
    kept: list[Range] = field(default_factory=list)

    def edits(self) -> Iterator[Edit]:
        for name, about, here in events(self.source.decode(), _OPTIONS):
            kind = next(iter(about)) if isinstance(about, dict) else about
            if name in ("Start", "End") and str(kind).startswith("Table"):
                yield from self._table(name, str(kind), here)
            elif self.in_cell:
                pass
            elif name == "Rule":
                yield here[0], here[0] + len(self._at(here).rstrip()), _RULE
            elif name == "TaskListMarker":
                yield *here, "☑" if about else "☐"
            elif name == "Code":
                self.kept.append(here)
            elif name == "Text" and self._at(here).startswith(b"&") and self._at(here) != str(about).encode():
                # Discord knows no character references.
                yield *here, f"\\{about}" if str(about) in string.punctuation else str(about)
            elif name == "Start":
                yield from self._start(str(kind), about, here)
            elif (name, kind) == ("End", "Link"):
                self.in_link = False
                yield here[1], here[1], "".join(f" <{url}>" for url in self.images)
        yield from self._as_written()

    def _at(self, here: Range) -> bytes:
        return self.source[here[0] : here[1]]

    def _start(self, kind: str, about: Any, here: Range) -> Iterator[Edit]:
        start, end = here
        if kind == "Heading":
            yield from self._heading(about["Heading"]["level"], here)
        elif kind == "Strong" and self.in_small_heading and self._at(here).startswith(b"**"):
            yield start, start + 2, ""
            yield end - 2, end, ""
        elif kind == "CodeBlock":
            self.kept.append(here)
            yield from self._code(here)
        elif kind == "Link":
            self.in_link, self.images = True, []
            if about["Link"]["link_type"] in ("Autolink", "Email"):
                self.kept.append(here)
        elif kind == "Image" and (url := about["Image"]["dest_url"]).startswith(("http://", "https://")):
            label = self._at(here)[2:].partition(b"]")[0].decode()
            if self.in_link:
                self.images.append(url)
                yield start, end, label or "image"
            else:
                yield start, end, f"[{label}]({url})" if label.strip() else url

    def _as_written(self) -> Iterator[Edit]:
        """Escape what is no mark: stars and underscores in paths and the like, bars around no spoiler."""
        literal = [
            (start, end, escaped.decode())
            for start, end, escaped in not_prose(self.source)
            if _MARKED.search(self.source, start, end)
        ]
        bars = (found for found in _BARS.finditer(self.source) if found["stray"])
        literal += [(*found.span(), "\\|" * len(found[0])) for found in bars]
        # Discord makes links of these, in which a backslash would be part of the address.
        links = [found.span() for found in re.finditer(rb"https?://\S+", self.source)]
        for start, end, escaped in literal:
            if not (meets(self.kept, (start, end)) or meets(links, (start, end))):
                yield start, end, escaped

    def _heading(self, level: str, here: Range) -> Iterator[Edit]:
        """Make a small heading bold, and write an underlined one with a number sign."""
        start, whole = here[0], self._at(here)
        self.in_small_heading = False
        if small := _SMALL_HEADING.match(whole):
            self.in_small_heading = True
            yield start, start + small.end(1), "**"
            yield start + small.start(2), start + small.end(2), "**"
        elif not whole.startswith(b"#") and (line := _UNDERLINE.search(whole)):
            yield start, start, "# " if level == "H1" else "## "
            for broken in re.finditer(rb"\n[ \t>]*", whole[: line.start()]):
                yield start + broken.start(), start + broken.end(), " "
            yield start + line.start(), start + line.end(), ""

    def _code(self, here: Range) -> Iterator[Edit]:
        """Give a fence three backticks, unless the code holds some itself."""
        start, whole = here[0], self._at(here).rstrip()
        opening = _FENCE.match(whole)
        if opening is None or b"```" in whole.replace(opening[1], b""):
            return
        yield start, start + opening.end(), "```"
        tail = len(whole) - len(whole.rstrip(opening[1][:1]))
        if tail >= len(opening[1]) and tail < len(whole):
            yield start + len(whole) - tail, start + len(whole), "```"

    def _table(self, name: str, kind: str, here: Range) -> Iterator[Edit]:
        match name, kind:
            case "Start", "Table":
                self.rows = []
            case "Start", "TableHead" | "TableRow":
                self.rows.append([])
                self.cell_end = here[0]
            case "Start", "TableCell":
                self.in_cell = True
                self.rows[-1].append(_CELL_MARKS.sub(_unmarked, self._at(here).decode()).strip())
            case "End", "TableCell":
                self.in_cell = False
                self.cell_end = here[1]
            case "End", "TableRow":
                # The parser drops cells beyond the columns of the header.
                if surplus := self.source[self.cell_end : here[1]].strip(b" \t|\r\n>"):
                    self.rows[-1][-1] += " | " + surplus.decode()
            case "End", "Table":
                self.tables.append(here)
                yield here[0], here[0] + len(self._at(here).rstrip()), self._drawn(here[0])

    def _drawn(self, start: int) -> str:
        before = self.source[self.source.rfind(b"\n", 0, start) + 1 : start]
        quote = "> " if b">" in before else ""
        lines = ["```", *fixed_width(self.rows).replace("```", "'''").split("\n"), "```"]
        # After the mark of a list item the fence begins on a line of its own.
        first = "\n" + quote if before.strip(b" \t>") else ""
        return first + ("\n" + quote).join(lines)


def _unmarked(mark: re.Match[str]) -> str:
    return (mark["bold"] or mark["code"] or mark["bar"]).replace("\\|", "|")
