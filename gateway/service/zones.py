"""The time zone in which a job's times are meant, where whoever makes it names none."""

from __future__ import annotations

import asyncio
from datetime import tzinfo

from gateway.config.agents import scopes_of
from gateway.config.settings import Settings
from session.context.profile import zone_in
from session.errors import SessionError
from session.memory.notes import Notes
from session.memory.scope_resolver import ScopeResolver
from session.store.store import Store
from session.transcript.agent import named


async def zone_for(settings: Settings, key: str, agent: str = "") -> tzinfo:
    """Return the zone that the profile of a chat's scope names, else that of the configuration.

    Args:
        settings: where the workspace is.
        key: the chat that gets the answers; empty where none does.
        agent: whose profile counts, by its name; empty: that of whoever the chat has.
    """
    if not key:
        return settings.zone
    store = Store(settings.workspace, zone=settings.zone)
    try:
        scope = await ScopeResolver(scopes_of(settings), store=store).of_key(
            key, agent=named(agent) if agent else None
        )
        profile = await asyncio.to_thread(Notes(scope.memory).profile)
    except SessionError:
        # A job is made all the same; it says in which zone.
        return settings.zone
    finally:
        await store.aclose()
    found = zone_in(profile.decode("utf-8", "replace"))
    return settings.zone if found is None else found[0]
