"""How long money is held for a request: as long as that of any agent can run."""

from __future__ import annotations

from datetime import UTC
from pathlib import Path
from typing import Any

import pytest

from gateway.app.spending import build_spending
from gateway.config.settings import Settings
from session.models.model import Need, Payer, Usage
from session.store.store import Store
from tests.support.clock import Clock

ADA, BOB = Payer("cli:ada", "ada", id="m1"), Payer("cli:bob", "bob", id="m2")


@pytest.mark.parametrize(
    ("coder", "runs_s"),
    [
        ({"timeout_s": 600}, 600),
        ({"fallbacks": ["openai/b", "openai/c"]}, 360),
        ({"timeout_s": 5}, 120),
    ],
)
async def test_money_is_held_while_a_request_of_any_agent_can_run(
    tmp_path: Path, coder: dict[str, Any], runs_s: float
) -> None:
    """Then a killed process holds it no more."""
    tables = {
        "workspace": tmp_path,
        "model": {"name": "openai/a", "timeout_s": 120},
        "agents": {"coder": {"model": coder}},
        "limits": {"cost_per_day_usd": 5.0},
    }
    clock = Clock()
    store = Store(tmp_path, zone=UTC, clock=clock)
    spending = build_spending(Settings.model_validate(tables), store, plain=False)
    assert await spending.reserve(ADA, Need(10, 4.0), Usage()) is None

    clock.forward(runs_s)
    while_it_runs = await spending.reserve(BOB, Need(10, 3.0), Usage())
    clock.forward(60)
    afterwards = await spending.reserve(BOB, Need(10, 3.0), Usage())
    await store.aclose()

    assert while_it_runs is not None
    assert while_it_runs.passes
    assert afterwards is None
