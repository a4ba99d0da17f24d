"""One Markdown page, parsed: its headings, links, code and tables, and what is wrong with them."""

from __future__ import annotations

import ast
import contextlib
import io
import itertools
import json
import re
import shlex
import tomllib
from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass, field
from functools import cache
from pathlib import Path
from typing import Any

import click
import pyromark

from gateway.config.schema import Schema
from gateway.config.settings import Channels, Settings
from tests.support.command_line import parsed

OPTIONS = pyromark.Options.ENABLE_TABLES
# No language: a picture, a layout of files, a synopsis.
LANGUAGES = frozenset({"", "toml", "json", "jsonl", "python", "markdown", "sh", "text", "ini", "sql"})
# A command of ours that is no synopsis such as "export KEY [-o PATH]".
_COMMAND = r"^ *(\.venv/bin/)?chat-gateway (?!.*(\[|\b[A-Z]{2,}\b))"
PROGRAMS = ("chat-gateway", ".venv/bin/chat-gateway")


@dataclass
class Code:
    """A block of code; ``language`` is empty where it names none."""

    language: str
    text: str
    line: int


@dataclass
class Page:
    """What the checks look at."""

    path: Path
    anchors: set[str] = field(default_factory=set)
    links: list[str] = field(default_factory=list)
    code: list[Code] = field(default_factory=list)
    # What stands as code within sentences.
    spans: list[str] = field(default_factory=list)
    faults: list[str] = field(default_factory=list)


@cache
def read(path: Path) -> Page:
    """Read a page from its file."""
    return parse(path.read_text(encoding="utf-8"), path)


def parse(text: str, path: Path) -> Page:
    """Read a page; faults of its form are among ``faults``."""
    page = Page(path)
    source = text.encode()
    seen: Counter[str] = Counter()
    parts: list[str] | None = None
    for event, span in pyromark.events_with_range(text, options=OPTIONS):
        raw = source[span["start"] : span["end"]].decode(errors="replace")
        line = source.count(b"\n", 0, span["start"]) + 1
        if isinstance(event, dict) and "Code" in event:
            page.spans.append(event["Code"])
        match event:
            case {"Start": {"Heading": _}} | {"Start": {"CodeBlock": _}}:
                parts = []
            case {"Text": str(words)} | {"Code": str(words)} if parts is not None:
                parts.append(words)
            case {"End": {"Heading": _}}:
                slug = re.sub(r"[^\w\- ]", "", "".join(parts or ()).lower()).strip().replace(" ", "-")
                page.anchors.add(f"{slug}-{seen[slug]}" if seen[slug] else slug)
                seen[slug] += 1
                parts = None
            case {"End": "CodeBlock"}:
                _add_code(page, raw, "".join(parts or ()), line)
                page.faults += _lost_on_the_site(text, raw, line)
                parts = None
            case {"Start": {"Link": {"dest_url": target}}} | {"Start": {"Image": {"dest_url": target}}}:
                page.links.append(target)
                if "Image" in event["Start"] and raw.startswith("![]"):
                    page.faults.append(f"line {line}: a picture without words in its place")
            case {"Start": {"List": _}}:
                page.faults += _lost_on_the_site(text, raw, line)
            case {"Start": {"Table": columns}}:
                page.faults += _uneven(raw, len(columns), line)
    pyromark.html(text, options=OPTIONS)
    return page


def _add_code(page: Page, raw: str, text: str, line: int) -> None:
    fenced = re.match(r"(`{3,}|~{3,})([^\n]*)", raw)
    code = Code(fenced[2].strip() if fenced else "", text, line)
    page.code.append(code)
    # Within a list a fence and its end are indented alike.
    if fenced and not re.search(rf"\n *{fenced[1]}\s*\Z", raw):
        page.faults.append(f"line {line}: a fence that is never closed")
    if re.search(r"^ {0,3}(```|~~~)", text, re.MULTILINE) and code.language != "markdown":
        page.faults.append(f"line {line}: a fence within a fence")


def _lost_on_the_site(text: str, raw: str, line: int) -> Iterator[str]:
    """Find lists and code in lists that GitHub shows, and Python-Markdown takes for a part of a paragraph."""
    above, own = ["", *text.split("\n")][line - 1 : line + 1]
    if re.match(" {1,3}[^ ]", own):
        yield f"line {line}: not indented by four spaces"
    elif above.strip() and not own.startswith((" ", "`")):
        yield f"line {line}: a list without a blank line before it"
    elif found := re.search(r"\n\n( +\S.*\n)+(?=([-*]|\d+\.) )", raw):
        yield f"line {line + raw.count(chr(10), 0, found.end())}: an item without a blank line before it"


def _uneven(raw: str, columns: int, line: int) -> Iterator[str]:
    """Find rows whose cells a reader would see cut off or shifted."""
    for number, row in enumerate(raw.rstrip("\n").split("\n"), line):
        if len(re.findall(r"(?<!\\)\|", row)) != columns + 1:
            yield f"line {number}: a row of a table with other than {columns} cells"


def faults(page: Page) -> list[str]:
    """List everything that is wrong with a page."""
    found = list(page.faults)
    for code in page.code:
        found += [f"line {code.line}: {fault}" for fault in _faults_of_code(code)]
    found += [fault for span in page.spans for fault in _wrong_span(span)]
    return found + list(_dead_links(page))


def _faults_of_code(code: Code) -> Iterator[str]:
    if code.language not in LANGUAGES:
        yield f"a fence of an unknown language: {code.language}"
    try:
        match code.language:
            case "toml":
                yield from unknown_keys(tomllib.loads(code.text))
            case "json":
                json.loads(code.text)
            case "jsonl":
                for line in code.text.splitlines():
                    json.loads(line)
            case "python":
                ast.parse(code.text)
    except (ValueError, SyntaxError) as error:
        yield f"not {code.language}: {error}"
    if code.language in ("", "sh"):
        wrong = list(_wrong_commands(code.text))
        yield from wrong
        # What stands elsewhere nobody types: tests/system/test_documented_commands.py.
        if not wrong and not code.language and re.search(_COMMAND, code.text, re.MULTILINE):
            yield "commands stand in a block of sh"


def _wrong_span(span: str) -> Iterator[str]:
    """Find commands within sentences that are none; there a verb may stand without what it needs."""
    if span.startswith("chat-gateway ") and any(_wrong_commands(span)):
        verbs = itertools.takewhile(re.compile(r"[a-z][a-z-]*$").match, span.split())
        yield from _wrong_commands(" ".join([*verbs, "--help"]))


def is_ours(document: dict[str, Any]) -> bool:
    """Say whether a piece of TOML is of our configuration: others have none of our tables."""
    return all(name in Settings.model_fields for name in document)


def unknown_keys(document: dict[str, Any]) -> Iterator[str]:
    """Find what is no key of ours in a piece of a configuration; other TOML has none of our tables."""
    schema = Schema(Settings)
    if not is_ours(document):
        return
    for path in _paths(document, ()):
        other_channel = path[0] == "channels" and path[1] not in Channels.model_fields
        if not other_channel and not schema.knows(path):
            yield f"no key of the configuration: {'.'.join(path)}"


def _paths(table: dict[str, Any], above: tuple[str, ...]) -> Iterator[tuple[str, ...]]:
    for name, value in table.items():
        if isinstance(value, dict):
            yield from _paths(value, (*above, name))
        else:
            yield (*above, name)


def _wrong_commands(text: str) -> Iterator[str]:
    """Find commands of ours that the program itself would refuse."""
    for line in text.replace("\\\n", " ").splitlines():
        if not line.lstrip(" $").startswith(PROGRAMS):
            continue
        words = _one_command(shlex.split(line.lstrip(" $"), comments=True)[1:])
        if any(word.startswith("[") for word in words):
            # A synopsis such as "export KEY [-o PATH]": its verb is asked for help.
            words = [*itertools.takewhile(str.isalpha, words), "--help"]
        try:
            with contextlib.redirect_stdout(io.StringIO()), contextlib.suppress(click.exceptions.Exit):
                parsed(words)
        except click.UsageError:
            yield f"not taken by the command line: {line.strip()}"


def _one_command(words: list[str]) -> list[str]:
    ends = [place for place, word in enumerate(words) if word in ("|", ">", "&&", ";", "&", "<")]
    return words[: ends[0]] if ends else words


def _dead_links(page: Page) -> Iterator[str]:
    for link in page.links:
        if re.match(r"(https?|mailto):", link):
            continue
        name, _, anchor = link.partition("#")
        target = (page.path.parent / name).resolve() if name else page.path
        if target != page.path and not target.exists():
            yield f"a link to nothing: {link}"
        elif anchor and target.suffix == ".md" and anchor not in _anchors(target, page):
            yield f"a link to no heading: {link}"


def _anchors(target: Path, page: Page) -> set[str]:
    return page.anchors if target == page.path else read(target).anchors
