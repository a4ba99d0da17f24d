"""No regular expression of the program takes longer than a text is long, whatever the text says."""

from __future__ import annotations

import importlib
import pkgutil
import re
import signal
from collections.abc import Iterator
from itertools import product
from pathlib import Path
from types import FrameType, ModuleType
from typing import Any

import pytest

import channels
import durable
import gateway
import session
from tests.support.guarantee import guarantee

pytestmark = guarantee(
    "security", "The time of a regular expression grows in proportion to its text, whatever the text."
)

# How the interpreter itself reads an expression; it has no public name.
parser: Any = importlib.import_module("re._parser")
sre: Any = importlib.import_module("re._constants")
# Linear work on so many characters takes milliseconds, quadratic some seconds.
LENGTH = 50_000
WITHIN_S = 1.5
# What an expression is asked to do; a match begins at one place, the others at each.
ASKED = {"match": "match", "fullmatch": "fullmatch"} | dict.fromkeys(
    ("search", "sub", "subn", "split", "findall", "finditer"), "findall"
)
FILLING = (" ", "\n", "a", "0")
ENDS = ("!", "\n")


def modules() -> Iterator[ModuleType]:
    for package in (channels, durable, gateway, session):
        for found in pkgutil.walk_packages(package.__path__, f"{package.__name__}."):
            if not found.name.endswith(".__main__"):
                yield importlib.import_module(found.name)


def patterns() -> Iterator[tuple[str, re.Pattern[Any], frozenset[str]]]:
    """Yield each expression with its name and what it is asked to do, in its own module at least."""
    for module in modules():
        source = Path(module.__file__ or "").read_text(encoding="utf-8")
        for name, value in sorted(vars(module).items()):
            if isinstance(value, re.Pattern) and re.search(rf"^{name}\b", source, re.MULTILINE):
                asked = re.findall(rf"\b{name}\.(\w+)\(", source)
                methods = frozenset(ASKED[each] for each in asked if each in ASKED)
                yield f"{module.__name__}.{name}", value, methods or frozenset(ASKED.values())


def texts(pattern: re.Pattern[Any]) -> Iterator[str]:
    """Yield long texts: what begins as the expression does, and then one thing again and again."""
    source = pattern.pattern
    named = "".join(
        _literals(parser.parse(source.decode("latin-1") if isinstance(source, bytes) else source))
    )
    runs = list(dict.fromkeys(run for run in named.split("\0") if run))[:4]
    begins = ["", *runs[:3]]
    repeated = dict.fromkeys([*FILLING, *runs, *(f"{run} " for run in runs)])
    for begin, unit, end in product(begins, repeated, ENDS):
        yield begin + unit * (LENGTH // len(unit)) + end


def _literals(parsed: Any) -> Iterator[str]:
    """Yield the characters that the expression names, one after the other, with a NUL between runs."""
    for operator, value in parsed:
        if operator is sre.LITERAL:
            yield chr(value)
            continue
        yield "\0"
        if operator is sre.IN:
            for kind, inner in value:
                if kind is sre.LITERAL:
                    yield chr(inner) + "\0"
        elif operator is sre.BRANCH:
            for branch in value[1]:
                yield from (*_literals(branch), "\0")
        elif operator in (sre.MAX_REPEAT, sre.MIN_REPEAT, sre.POSSESSIVE_REPEAT):
            yield from _literals(value[2])
        elif operator is sre.SUBPATTERN:
            yield from _literals(value[3])
        elif operator in (sre.ASSERT, sre.ASSERT_NOT):
            yield from _literals(value[1])
        elif operator is sre.ATOMIC_GROUP:
            yield from _literals(value)
        yield "\0"


class TooLong(Exception):
    """An expression was still at work."""


def too_long(signum: int, frame: FrameType | None) -> None:
    raise TooLong


def slow(pattern: re.Pattern[Any], method: str) -> str | None:
    """Return the beginning of a text on which the expression takes far too long; None for none."""
    for text in texts(pattern):
        given: Any = text.encode("latin-1", "replace") if isinstance(pattern.pattern, bytes) else text
        signal.setitimer(signal.ITIMER_REAL, WITHIN_S)
        try:
            getattr(pattern, method)(given)
        except TooLong:
            return text[:20]
        finally:
            signal.setitimer(signal.ITIMER_REAL, 0)
    return None


@pytest.mark.slow
def test_no_expression_takes_longer_than_a_text_is_long() -> None:
    """Each is used on what people or models write, or may be one day."""
    before = signal.signal(signal.SIGALRM, too_long)
    try:
        found = {
            f"{name}.{method}": text
            for name, pattern, methods in patterns()
            for method in sorted(methods)
            if (text := slow(pattern, method)) is not None
        }
    finally:
        signal.signal(signal.SIGALRM, before)

    assert found == {}


@pytest.mark.parametrize(
    ("expression", "method"),
    [(r"<(?=\s*/?\s*x)", "findall"), (r"\s*\w?\s*x", "match"), (rb"[^\n]*\S", "findall")],
)
def test_one_that_does_is_seen(expression: str | bytes, method: str) -> None:
    before = signal.signal(signal.SIGALRM, too_long)
    try:
        assert slow(re.compile(expression), method) is not None
    finally:
        signal.signal(signal.SIGALRM, before)
