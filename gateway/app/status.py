"""What ``status`` shows of a gateway, over all of its processes."""

from __future__ import annotations

import asyncio
import os
from collections.abc import Mapping, Sequence
from dataclasses import replace
from functools import cache
from importlib.metadata import version
from typing import Any

from gateway.app.parts import Parts
from gateway.app.served import served
from gateway.app.standings import readiness_of
from gateway.config.agents import settings_of
from gateway.errors import MailboxDown
from gateway.outbound.unserved import unserved
from gateway.queue.mailbox import INBOUND, Depth
from gateway.turns.lanes import Lanes
from session.disk.layout import Layout
from session.store.unnamed import media_bytes
from session.subagents.records import shown as subagents_shown
from session.transcript.agent import shown

_ADDED = ("waiting", "facts_waiting", "running")


async def status_of(application: Parts) -> dict[str, Any]:
    """Gather lanes, queue depths, parked, model, tokens and cost today; see ``Application.status``."""
    said = await application.ask_workers("status")
    queues, fault = await _depths(application, said)
    ready, parts = readiness_of(application)
    if fault and not parts["queue"]["error"]:
        parts["queue"]["error"] = fault
    services, settings = application.services, application.settings
    return {
        "version": own_version(),
        "role": application.role,
        "pid": os.getpid(),
        "started_at": application.started_at.isoformat(),
        "ready": ready,
        "parts": parts,
        "model": settings.model.name,
        "agents": _agent_rows(application),
        "lanes": [lane for each in said for lane in each["lanes"]] + own_lanes(application),
        "subagents": await asyncio.to_thread(subagents_shown, settings.state),
        "queues": queues,
        "in_memory": _in_memory([application.mailbox.in_memory().as_dict(), *_of(said, "in_memory")]),
        "unserved": application.unserved,
        "usage_today": await services.usage_today() if services is not None else None,
        "limits": await services.limits_today() if services is not None else None,
        "memory": _background(services.jobs.shown(), _of(said, "memory")) if services is not None else None,
        "media_bytes": await asyncio.to_thread(media_bytes, Layout(settings.workspace)),
        "workers": application.workers.shown() if application.workers is not None else [],
    }


@cache
def own_version() -> str:
    """Look the version up on the disk, once."""
    return version("chat-gateway")


def own_lanes(application: Parts) -> list[dict[str, Any]]:
    """List what runs and waits in this very process."""
    return lane_rows(application.worker.lanes) if application.worker is not None else []


def lane_rows(lanes: Lanes) -> list[dict[str, Any]]:
    """List what runs and waits in lanes: ``id`` has begun, and is none of those that are ``waiting``."""
    now = asyncio.get_running_loop().time()
    return [
        {
            "key": lane.key,
            "id": begun.inbound.id if (begun := lanes.begun(lane.key)) is not None else None,
            "asking": lane.entries[0].asking if lane.entries else "",
            "waiting": len(lane.entries) - (begun is not None),
            "running_s": round(now - lane.running.since, 1) if lane.running is not None else None,
        }
        for lane in lanes
    ]


async def _depths(
    application: Parts, said: Sequence[Mapping[str, Any]]
) -> tuple[dict[str, dict[str, Any]] | None, str]:
    """Count what waits by box; None and why, where the queue does not say so in time."""
    within_s = application.depths_within_s
    try:
        async with asyncio.timeout(within_s):
            depths = await application.mailbox.depths(application.replied.names(), recent=True)
    except MailboxDown as error:
        return None, str(error)
    except TimeoutError:
        return None, f"the queue did not report its messages within {within_s:g} s"
    application.unserved = unserved(depths, served(application.settings))
    in_hand = sum(lane["waiting"] + (lane["id"] is not None) for each in said for lane in each["lanes"])
    return {box: depth.as_dict() for box, depth in with_letters(depths, in_hand).items()}, ""


def with_letters(depths: Mapping[str, Depth], in_hand: int) -> Mapping[str, Depth]:
    """Add to what waits in the broker what workers have in hand: only who has a letter knows of it."""
    if INBOUND not in depths or not in_hand:
        return depths
    return {**depths, INBOUND: replace(depths[INBOUND], count=depths[INBOUND].count + in_hand)}


def _of(said: Sequence[Mapping[str, Any]], name: str) -> list[Mapping[str, Any]]:
    return [each[name] for each in said]


def _in_memory(held: Sequence[Mapping[str, Any]]) -> dict[str, Any]:
    """Add up what processes hold."""
    return {name: sum(each[name] for each in held) for name in ("letters", "bytes", "max_bytes")}


def _background(own: Mapping[str, Any], others: Sequence[Mapping[str, Any]]) -> dict[str, Any]:
    """Join what the background of each process does; the budget is one for all, known best by who used it."""
    every = [own, *others]
    joined = {**own, **{name: sum(each[name] for each in every) for name in _ADDED}}
    joined["next_at"] = min((each["next_at"] for each in every if each["next_at"]), default=None)
    joined["reasons"] = sorted({reason for each in every for reason in each["reasons"]})
    joined["last_error"] = next((each["last_error"] for each in every if each["last_error"]), "")
    for name in ("consolidated", "written"):
        joined[name] = {key: sum(each[name].get(key, 0) for each in every) for key in own[name]}
    used = max(every, key=lambda each: (each["budget"]["calls_last_day"], each["budget"]["calls_last_hour"]))
    return {**joined, "budget": used["budget"]}


def _agent_rows(application: Parts) -> list[dict[str, Any]]:
    """List the agents that are configured, the default one first; none where there is no other."""
    settings = application.settings
    names = ("", *settings.agents) if settings.agents else ()
    return [{"name": shown(each), "model": settings_of(settings, each).model.name} for each in names]
