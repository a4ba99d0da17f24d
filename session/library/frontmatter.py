"""Reads the head of a Markdown file, between lines ``---``: the plain part of YAML that they use; pure."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence

Value = str | list[str]

_KEY = re.compile(r"([A-Za-z_][\w-]*)\s*:(?:\s+(.*)|)$")
_ESCAPE = re.compile(r"\\(.)", re.DOTALL)
# No part gives back what it took: blanks could be shared out in as many ways as there are.
_ITEM = re.compile(r"""\s*+("(?:[^"\\]|\\.)*+"|'(?:[^']|'')*+'|[^,\[\]{}"'\s][^,\[\]]*+|)\s*+([,\]])""")
_QUOTED = re.compile(r"'((?:[^']|'')*)'|\"((?:[^\"\\]|\\.)*)\"")
_COMMENT = re.compile(r"(?<!\s)\s+#")
_PLAIN = {"\\": "\\", '"': '"', "/": "/", "n": "\n", "t": "\t"}


class Broken(ValueError):
    """The head of a file cannot be read; the text says why."""


def split(text: str, keys: Sequence[str]) -> tuple[dict[str, Value], str]:
    """Return the values of the ``keys`` that are there, and the text below the head.

    A value is a text (plain, quoted, folded ``>`` or literal ``|``) or a list of them (``- one`` a line, or
    ``[one, two]``). Other keys may hold anything.

    Raises:
        Broken: there is no head, it has no end, or one of the values is neither.
    """
    lines = text.removeprefix("\ufeff").replace("\r\n", "\n").split("\n")
    if lines[0].rstrip() != "---":
        raise Broken("it does not begin with a line ---")
    end = next((i for i, line in enumerate(lines[1:], 1) if line.rstrip() in ("---", "...")), None)
    if end is None:
        raise Broken("the line --- that ends its head is missing")
    values: dict[str, Value] = {}
    for key, rest in _entries(lines[1:end]).items():
        if key in keys:
            try:
                values[key] = _value(rest)
            except Broken as error:
                raise Broken(f"{key}: {error}") from None
    return values, "\n".join(lines[end + 1 :]).strip()


def text_of(values: Mapping[str, Value], key: str) -> str:
    """Return a value that must be a text, on one line.

    Raises:
        Broken: it is missing, empty, or a list.
    """
    value = values.get(key, "")
    if not isinstance(value, str) or not value.strip():
        raise Broken(f"{key} is missing, or is no text")
    return " ".join(value.split())


def _entries(lines: Sequence[str]) -> dict[str, list[str]]:
    entries: dict[str, list[str]] = {}
    current: list[str] | None = None
    for line in lines:
        blank = not line.strip()
        if blank or line[0] in " \t-" or line.startswith("#"):
            if current is not None and not line.startswith("#"):
                current.append(line)
            elif not blank and not line.startswith("#"):
                raise Broken(f"no key stands before {line.strip()[:40]!r}")
            continue
        match = _KEY.match(line.rstrip())
        if match is None:
            raise Broken(f"{line.strip()[:40]!r} is no line of the form key: value")
        if match[1] in entries:
            raise Broken(f"{match[1]} stands there twice")
        current = entries[match[1]] = [match[2] or ""]
    return entries


def _value(lines: Sequence[str]) -> Value:
    head, rest = lines[0].strip(), [line for line in lines[1:] if line.strip()]
    if head.startswith("#"):
        head = ""
    if head[:1] in ("|", ">"):
        return _block(lines[1:], folded=head[0] == ">")
    if not head and rest and rest[0].lstrip().startswith("-"):
        return _items(rest)
    whole = " ".join([head, *(line.strip() for line in rest)]).strip()
    if whole.startswith("["):
        return _inline(whole)
    return _scalar(whole)


def _block(lines: Sequence[str], *, folded: bool) -> str:
    indents = [len(line) - len(line.lstrip()) for line in lines if line.strip()]
    cut = min(indents, default=0)
    return (" " if folded else "\n").join(line[cut:].rstrip() for line in lines).strip()


def _items(lines: Sequence[str]) -> list[str]:
    items: list[str] = []
    for line in lines:
        text = line.strip()
        if text == "-" or text.startswith("- "):
            items.append(text[1:].strip())
        elif items and line[0] in " \t":
            items[-1] += f" {text}"
        elif not text.startswith("#"):
            raise Broken(f"{text[:40]!r} is no item of a list")
    return [_scalar(item) for item in items]


def _inline(text: str) -> list[str]:
    items, place = [], 1
    while True:
        match = _ITEM.match(text, place)
        if match is None:
            raise Broken("the list in [ ] cannot be read; write one item a line")
        if match[1] or match[2] == ",":
            items.append(_scalar(match[1].strip()))
        place = match.end()
        if match[2] == "]":
            break
    if text[place:].strip() and not text[place:].lstrip().startswith("#"):
        raise Broken("something stands behind the list")
    return items


def _scalar(text: str) -> str:
    quote = text[:1]
    if quote in ('"', "'"):
        body = _QUOTED.match(text)
        if body is None:
            raise Broken("a quoted text has no end")
        if (rest := text[body.end() :].strip()) and not rest.startswith("#"):
            raise Broken("something stands behind a quoted text")
        return body[1].replace("''", "'") if quote == "'" else _ESCAPE.sub(_unescaped, body[2])
    if quote in ("[", "{", "&", "*", "!", "%", "@", "`"):
        raise Broken(f"a text that begins with {quote} must stand in quotes")
    return _COMMENT.split(text, maxsplit=1)[0].strip()


def _unescaped(match: re.Match[str]) -> str:
    if match[1] not in _PLAIN:
        raise Broken(f"{match[0]} means something else within double quotes; use single quotes")
    return _PLAIN[match[1]]
