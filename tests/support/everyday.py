"""Which tests stay out of the everyday loop: told by what a test uses.

What waits or works for seconds for another reason says so itself: ``@pytest.mark.slow``.
"""

from __future__ import annotations

import inspect
import types
from collections.abc import Callable, Iterator
from functools import cache
from typing import Any

import pytest

_FIXTURES = {"broker", "broker_name"}
_STARTERS = {
    "subprocess",
    "forked",
    "multiprocessing",
    "create_subprocess_exec",
    "fork",
    "forkpty",
    "posix_spawn",
}


def is_slow(item: pytest.Item) -> bool:
    """Say whether ``item`` lies in tests/system, draws examples, or needs a broker or its own process."""
    if "tests/system" in item.path.as_posix():
        return True
    if not isinstance(item, pytest.Function):
        return False
    # Hypothesis gives its marker later than this is asked.
    if getattr(item.function, "is_hypothesis_test", False):
        return True
    return not _FIXTURES.isdisjoint(item.fixturenames) or any(_starts_a_process(used) for used in _used(item))


def _used(item: pytest.Function) -> Iterator[Callable[..., Any]]:
    """The test, and those of its fixtures that it asked for."""
    yield item.function
    for name in item.fixturenames:
        for fixture in item._fixtureinfo.name2fixturedefs.get(name, ()):
            # The fixtures of tests/conftest.py itself serve every test.
            if fixture.func.__module__ != "tests.conftest":
                yield fixture.func


@cache
def _starts_a_process(function: Callable[..., Any]) -> bool:
    """Say whether ``function``, or a function or class of ours that it names, names what starts a process."""
    waiting: list[Any] = [function]
    seen: set[Any] = set()
    while waiting:
        one = inspect.unwrap(waiting.pop())
        if one in seen:
            continue
        seen.add(one)
        if isinstance(one, type):
            waiting.extend(member for member in vars(one).values() if isinstance(member, types.FunctionType))
        elif isinstance(one, types.FunctionType):
            names = set(_names(one.__code__))
            if names & _STARTERS:
                return True
            found = (one.__globals__.get(name) for name in names)
            waiting.extend(value for value in found if _is_ours(value))
    return False


def _names(code: types.CodeType) -> Iterator[str]:
    yield from code.co_names
    for constant in code.co_consts:
        if isinstance(constant, types.CodeType):
            yield from _names(constant)


def _is_ours(value: Any) -> bool:
    is_code = isinstance(value, type | types.FunctionType)
    return is_code and str(value.__module__).startswith("tests.")
