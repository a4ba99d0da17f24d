"""Builds from Settings what counts the cost of all calls, and what says whether a message may be asked."""

from __future__ import annotations

from dataclasses import fields
from typing import Any

from gateway.config.agents import settings_of
from gateway.config.settings import Settings
from gateway.turns.quota import Quota, payer_of
from session.context.scopes import Scopes
from session.models.caps import Caps
from session.models.spending import Spending
from session.store.store import Store

# A forced call that is refused is made once more, and an answer is stored: a request lasts a little longer.
HELD_BEYOND_S = 30.0


def build_spending(settings: Settings, store: Store, *, plain: bool) -> Spending:
    """Build what counts the cost of all calls; on disk where there is any, or a limit to keep."""
    caps = _caps(settings)
    return Spending(
        settings.state / "usage",
        disk=store,
        clock=store.clock,
        durable=is_shared(settings, plain=plain),
        caps=caps,
        turns_per_hour=settings.limits.turns_per_person_per_hour,
        model=settings.model.name,
        held_s=max(_lasts_s(settings_of(settings, agent)) for agent in ("", *settings.agents)),
    )


def _lasts_s(settings: Settings) -> float:
    """Say how long a request of an agent can last, fallbacks included."""
    return settings.model.timeout_s * (1 + len(settings.model.fallbacks)) + HELD_BEYOND_S


def is_shared(settings: Settings, *, plain: bool) -> bool:
    """Say whether what is spent is on disk, for all processes, or in the memory of each."""
    return _caps(settings).any or bool(settings.limits.turns_per_person_per_hour) or not plain


def _caps(settings: Settings) -> Caps:
    return Caps(**{field.name: getattr(settings.limits, field.name) for field in fields(Caps)})


def build_quota(settings: Settings, scopes: Scopes, store: Store, spending: Spending) -> Quota:
    """Build what says whether a message may still be asked."""
    return Quota(
        spending,
        turns_per_hour=settings.limits.turns_per_person_per_hour,
        person_of=payer_of(scopes),
        clock=store.clock,
    )


async def spent_today(spending: Spending) -> dict[str, Any]:
    """Sum up the running day (UTC): how many turns; tokens and cost of all calls.

    Raises:
        NewerFormat: a newer version writes the files.
    """
    await spending.refresh()
    sums = spending.today()
    return {"turns": sums.turns, **sums.usage.shown()}
