"""Kills in the middle of changes of tokens: they are there whole, or not at all."""

from __future__ import annotations

import multiprocessing
import os
import signal
from collections.abc import Callable
from pathlib import Path

import pytest

from gateway.service.tokens import Tokens
from tests.support.dying import die_at
from tests.support.guarantee import guarantee

pytestmark = guarantee(
    "security", "A kill while a token is created or revoked leaves that change complete or undone."
)

STEPS = ("open", "write", "fsync", "ftruncate", "rename")
Change = Callable[[Path], object]


def add(state: Path) -> object:
    return Tokens(state).add("new", "admin")


def revoke(state: Path) -> object:
    return Tokens(state).revoke("old")


def looked(state: Path) -> list[tuple[object, object]]:
    """Return all that the file says, as those who use it read it."""
    return [(row["name"], row["right"]) for row in Tokens(state).rows()]


def begun(state: Path) -> None:
    """Have a token."""
    state.mkdir()
    Tokens(state).add("old", "read")


def dying(change: Change, state: Path, left: int) -> int:
    """Make the change in a process that dies before its ``left``-th step; return how it ended."""

    def work() -> None:
        die_at(left, {name: getattr(os, name) for name in STEPS})
        change(state)

    process = multiprocessing.get_context("fork").Process(target=work)
    process.start()
    process.join(60)
    assert process.exitcode is not None
    return process.exitcode


@pytest.mark.parametrize("change", [add, revoke])
def test_a_change_is_there_whole_or_not_at_all(tmp_path: Path, change: Change) -> None:
    """The next change finds nothing in its way."""
    begun(tmp_path / "whole")
    before = looked(tmp_path / "whole")
    change(tmp_path / "whole")
    after = looked(tmp_path / "whole")
    assert after != before
    seen = []
    for left in range(1, 100):
        state = tmp_path / str(left)
        begun(state)
        code = dying(change, state, left)
        found = looked(state)
        assert found in (before, after), (left, found)
        seen.append(found)
        if code == 0:
            break
        assert code == -signal.SIGKILL
        if found == before:
            change(state)
        assert looked(state) == after, left
    # Some died before and some behind the one instant at which it takes its place.
    assert seen == sorted(seen, key=lambda each: each == after)
    assert {str(each) for each in seen} == {str(before), str(after)}
    assert len(seen) > 4
