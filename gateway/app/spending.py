"""Builds from Settings what counts the cost of all calls, and what says whether a message may be asked."""

from __future__ import annotations

from dataclasses import fields
from typing import Any

from gateway.config.settings import Settings
from gateway.turns.limits import Quota
from session.context.scopes import Scopes
from session.models.caps import Caps
from session.models.spending import Spending
from session.store.store import Store


def build_spending(settings: Settings, store: Store) -> Spending:
    """Build what counts the cost of all calls."""
    caps = Caps(**{field.name: getattr(settings.limits, field.name) for field in fields(Caps)})
    return Spending(store.state, clock=store.clock, caps=caps, model=settings.model.name)


def build_quota(settings: Settings, scopes: Scopes, store: Store, spending: Spending) -> Quota:
    """Build what says whether a message may still be asked."""
    return Quota(
        spending,
        turns_per_hour=settings.limits.turns_per_person_per_hour,
        scopes=scopes,
        clock=store.clock,
    )


async def spent_today(spending: Spending) -> dict[str, Any]:
    """Sum up the running day (UTC): how many turns; tokens and cost of all calls.

    Raises:
        NewerFormat, StoreError: it cannot be read.
    """
    sums = await spending.today()
    return {"turns": sums.turns, **sums.usage.shown()}
