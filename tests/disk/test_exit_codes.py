"""A run that shows nothing is no run that passed: what cannot be tried, or met no fault, exits with 2."""

from __future__ import annotations

import sys
from collections.abc import Callable, Coroutine
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest

from tests.disk import cuts, injected, lost_leases, mutants
from tests.disk.account import Account
from tests.disk.mutants import Site
from tests.support import prepared

Main = Callable[[], Coroutine[Any, Any, int]]


@pytest.fixture(autouse=True)
def _apart(monkeypatch: pytest.MonkeyPatch) -> None:
    """No words of pytest's are theirs, and what starts the daemons of other tests goes on."""
    monkeypatch.setattr(sys, "argv", ["here"])
    monkeypatch.setattr(prepared, "end_servers", lambda: None)


@pytest.mark.parametrize("module", [cuts, injected, lost_leases], ids=lambda module: module.__name__)
async def test_what_cannot_be_run_here_has_not_passed(
    module: ModuleType, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(module, "why_not", lambda: "no such disk")

    assert await module.main() == 2


@pytest.mark.parametrize(("hits", "code"), [(0, 2), (1, 0)])
async def test_faults_that_no_gateway_met_show_nothing(
    monkeypatch: pytest.MonkeyPatch, hits: int, code: int
) -> None:
    async def broken_by(*_: object) -> injected.Round:
        return injected.Round(Account(), hits)

    monkeypatch.setattr(injected, "why_not", lambda: "")
    monkeypatch.setattr(injected, "broken_by", broken_by)

    assert await injected.main() == code


@pytest.mark.parametrize(("harmed", "code"), [(0, 2), (1, 0)])
async def test_lives_that_were_never_cut_show_nothing(
    monkeypatch: pytest.MonkeyPatch, harmed: int, code: int
) -> None:
    async def run(self: cuts.Cuts) -> Account:
        self.harm.cuts = harmed
        return Account()

    monkeypatch.setattr(cuts, "why_not", lambda: "")
    monkeypatch.setattr(cuts.Cuts, "run", run)

    assert await cuts.main() == code


@pytest.mark.parametrize(("red", "code", "looks"), [("promises: broken", 2, 1), ("", 0, 2)])
def test_what_is_red_without_a_fault_notices_none(
    monkeypatch: pytest.MonkeyPatch, red: str, code: int, looks: int
) -> None:
    """The control is a copy in which every sync stands."""
    site = Site("durable/files.py", 1, "    sync_folder(path)")
    copies: list[Path] = []

    def noticed(root: Path, _: int) -> str:
        copies.append(root)
        return red if len(copies) == 1 else "promises: it is missed"

    monkeypatch.setattr(mutants, "why_not", lambda: "")
    monkeypatch.setattr(mutants, "sites", lambda: [site])
    monkeypatch.setattr(mutants, "copy_source", lambda _: None)
    monkeypatch.setattr(mutants, "without", lambda *_: None)
    monkeypatch.setattr(mutants, "noticed", noticed)

    assert mutants.main() == code
    assert len(copies) == looks
