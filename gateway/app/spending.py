"""Builds what counts the cost of all calls: apart from the session side, so that ``status`` is quick."""

from __future__ import annotations

from dataclasses import fields
from typing import Any

from gateway.config.settings import Settings
from session.models.caps import Caps
from session.models.spending import Spending
from session.store.store import Store


def build_spending(settings: Settings, store: Store) -> Spending:
    """Build what counts the cost of all calls."""
    caps = Caps(**{field.name: getattr(settings.limits, field.name) for field in fields(Caps)})
    return Spending(store.state, clock=store.clock, caps=caps, model=settings.model.name)


async def spent_today(spending: Spending) -> dict[str, Any]:
    """Sum up the running day (UTC): how many turns; tokens and cost of all calls.

    Raises:
        NewerFormat, StoreError: it cannot be read.
    """
    sums = await spending.today()
    return {"turns": sums.turns, **sums.usage.shown()}
