"""Reads the YAML between lines ``---`` at the head of a Markdown file; pure."""

from __future__ import annotations

import re
from collections.abc import Mapping

import yaml

_HEAD = re.compile(r"---[ \t]*\n(.*?)^(?:---|\.\.\.)[ \t]*$\n?", re.DOTALL | re.MULTILINE)


class Broken(ValueError):
    """The head of a file cannot be read; the text says why."""


def split(text: str) -> tuple[Mapping[str, object], str]:
    """Return the values of the head, each scalar a text as it is written, and the text below the head.

    Raises:
        Broken: there is no head, it has no end, or it is not a YAML mapping.
    """
    text = text.removeprefix("\ufeff").replace("\r\n", "\n")
    found = _HEAD.match(text)
    if found is None:
        raise Broken("it must start with a header between two lines ---")
    try:
        values = yaml.load(found[1], Loader=yaml.CBaseLoader)  # noqa: S506 - it makes texts, lists, mappings
    except yaml.YAMLError as error:
        raise Broken(_why(error)) from None
    except RecursionError:
        raise Broken("its header is nested too deeply") from None
    if not isinstance(values, Mapping):
        raise Broken("its header must have lines of the form key: value")
    return values, text[found.end() :].strip()


def text_of(values: Mapping[str, object], key: str) -> str:
    """Return a value that must be a text, on one line.

    Raises:
        Broken: it is missing, empty, or not a text.
    """
    value = values.get(key)
    if not isinstance(value, str) or not value.strip():
        raise Broken(f"{key} is missing, or not a text")
    return " ".join(value.split())


def texts_of(values: Mapping[str, object], key: str) -> tuple[str, ...]:
    """Return a value that must be a text or a list of texts, none of them empty.

    Raises:
        Broken: it is missing, or something else.
    """
    value = values.get(key)
    texts = [value] if isinstance(value, str) else value
    if not isinstance(texts, list) or not texts or not all(isinstance(one, str) and one for one in texts):
        raise Broken(f"{key} is missing, or not a list of non-empty texts")
    if any("\b" in one for one in texts):
        raise Broken(f"{key}: in double quotes \\b is a backspace; use single quotes")
    return tuple(texts)


def _why(error: yaml.YAMLError) -> str:
    if isinstance(error, yaml.MarkedYAMLError) and error.problem_mark is not None:
        # The head begins on the file's second line, and marks count from 0.
        return f"line {error.problem_mark.line + 2}: {error.problem}; a text with : or # in it needs quotes"
    return str(error)
