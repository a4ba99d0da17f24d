"""Kills in the middle of changes of tokens and of who was let in: they are there whole, or not at all."""

from __future__ import annotations

import multiprocessing
import os
import signal
from collections.abc import Callable
from pathlib import Path

import pytest

from channels.pairing import Pairing, approved
from gateway.service.tokens import Tokens
from tests.support.clock import Clock
from tests.support.dying import die_at
from tests.support.guarantee import guarantee

pytestmark = guarantee(
    "security",
    "A kill while a token is created or a person is approved leaves that change complete or undone.",
)

STEPS = ("open", "write", "fsync", "ftruncate", "rename")
Change = Callable[[Path], object]


def code_of(pairing: Pairing, who: str) -> str:
    return next(str(row["code"]) for row in pairing.rows() if row["who"] == who)


def add(state: Path) -> object:
    return Tokens(state).add("new", "admin")


def revoke(state: Path) -> object:
    return Tokens(state).revoke("old")


def ask(state: Path) -> object:
    return Pairing(state, clock=Clock()).ask("telegram", "9", kind="person", name="Eve", message_id="t:9")


def approve(state: Path) -> object:
    pairing = Pairing(state, clock=Clock())
    return pairing.approve(code_of(pairing, "telegram:2"))


def unpair(state: Path) -> object:
    return Pairing(state, clock=Clock()).revoke("telegram:1")


def looked(state: Path) -> tuple[object, ...]:
    """Return all that both files say, as those who use them read it."""
    people = [(row["who"], row["state"]) for row in Pairing(state, clock=Clock()).rows()]
    return (
        [(row["name"], row["right"]) for row in Tokens(state).rows()],
        sorted(people),
        sorted(approved(state, "telegram").people),
    )


def begun(state: Path) -> None:
    """Have a token, somebody who was let in, and somebody who waits."""
    state.mkdir()
    Tokens(state).add("old", "read")
    pairing = Pairing(state, clock=Clock())
    for id_ in ("1", "2"):
        pairing.ask("telegram", id_, kind="person", name="Ada", message_id=f"t:{id_}")
    pairing.approve(code_of(pairing, "telegram:1"))


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


@pytest.mark.parametrize("change", [add, revoke, ask, approve, unpair])
def test_a_change_is_there_whole_or_not_at_all(tmp_path: Path, change: Change) -> None:
    """Whoever was let in stays so, whoever was not stays out; the next change finds nothing in its way."""
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
