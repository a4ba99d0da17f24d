"""A run that shows nothing is no run that passed: what cannot be tried, or met no fault, exits with 2."""

from __future__ import annotations

import sys
from types import ModuleType

import pytest

from tests.chaos.records import Account
from tests.disk import cuts, injected
from tests.support import prepared


@pytest.fixture(autouse=True)
def _apart(monkeypatch: pytest.MonkeyPatch) -> None:
    """No words of pytest's are theirs, and what starts the daemons of other tests goes on."""
    monkeypatch.setattr(sys, "argv", ["here"])
    monkeypatch.setattr(prepared, "end_servers", lambda: None)


@pytest.mark.parametrize("module", [cuts, injected], ids=lambda module: module.__name__)
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
        return injected.Round(Account([]), hits)

    monkeypatch.setattr(injected, "why_not", lambda: "")
    monkeypatch.setattr(injected, "broken_by", broken_by)

    assert await injected.main() == code
