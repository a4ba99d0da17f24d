"""How a gateway stands, part by part and over all of its processes: ``readyz`` and ``status``."""

from __future__ import annotations

import asyncio
import os
from collections.abc import Mapping, Sequence
from dataclasses import replace
from functools import cache
from importlib.metadata import version
from typing import Any

from channels.plugins import enabled, served
from gateway.app.application import Application
from gateway.app.wiring_session import SessionServices
from gateway.config.agents import settings_of
from gateway.dispatch.failures import cause_of_lanes
from gateway.dispatch.lanes import Lanes
from gateway.dispatch.policy import ModelStanding, of_part, standing_of
from gateway.errors import MailboxDown
from gateway.outbound.standing import standing
from gateway.outbound.unserved import unserved
from gateway.queue.mailbox import INBOUND, Depth
from session.disk.layout import Layout
from session.store.media import media_bytes
from session.store.state import workspace_state
from session.subagents.records import shown as subagents_shown
from session.tools import MAX_TOOLS
from session.transcript.agent import shown

Standing = dict[str, dict[str, Any]]


def readiness_of(application: Application) -> tuple[bool, Standing]:
    """Say whether queue and lanes are up, and each part with since when and its last error."""
    parts, workers, settings = parts_of_turns(application), application.workers, application.settings
    up = application.ready.is_set()
    if workers is not None:
        parts = _joined(parts, workers.standings())
        if "lanes" in parts:
            parts["lanes"]["error"] = application.held("")
        parts["workers"] = workers.part(application.started_at.isoformat())
        up = up and workers.any_up
    if settings.state_table.url and application.role != "channels":
        state = workspace_state(settings.state).database
        up = up and not state.down
        waiting = f"standing by: {state.standbys}" if state.standbys else ""
        parts["state"] = {
            "up": not state.down,
            "since": state.since.isoformat(),
            "error": state.down or waiting,
        }
    here = {adapter.name: adapter.part() for adapter in application.adapters}
    for kind, _ in enabled(settings.channels):
        part = here.get(kind.name) or standing(settings.state, kind.name)
        if cause := application.held(kind.name):
            part |= {"up": False, "error": part["error"] or cause}
        parts[kind.name] = part
    if application.clock is not None:
        parts["cron"] = application.clock.part()
    return parts["queue"]["up"] and up, parts


def parts_of_turns(application: Application) -> Standing:
    """Say how this very process stands: its queue and, where it has conversations, what they need."""
    health, services, worker = application.mailbox.health(), application.services, application.worker
    parts: Standing = {
        "queue": {"up": health.up, "since": health.since.isoformat(), "error": health.error},
    }
    if services is None:
        return parts
    workers, ready_at = application.workers, application.ready_at
    lanes_up = ready_at is not None and (workers is None or workers.any_up)
    changes = [ready_at, workers.any_up_since if workers is not None else None]
    since = max(filter(None, changes), default=application.started_at).isoformat()
    error = cause_of_lanes(worker.lanes) if worker is not None else ""
    parts["lanes"] = {"up": lanes_up, "since": since, "error": error}
    outage = worker.outage if worker is not None else None
    parts["model"] = standing_of(services.model, outage).as_part(application.started_at)
    if parts["model"]["up"]:
        parts["model"]["error"] = "; ".join(_notes(services))
    if services.mcp is not None and workers is None and not services.plain:
        parts |= services.mcp.parts()
    return parts


def _notes(services: SessionServices) -> list[str]:
    """Say what requests to the models of all agents leave out."""
    agents = services.agents.values()
    notes = [note for agent in agents for note, _ in getattr(agent.model, "notes", list)()]
    if left_out := sorted({name for agent in agents for name in agent.turns.toolbox.left_out}):
        names = ", ".join(left_out[:3]) + (", …" if len(left_out) > 3 else "")
        notes.append(f"a request can have {MAX_TOOLS} tools; {len(left_out)} are left out: {names}")
    return list(dict.fromkeys(notes))


def standing_of_worker(application: Application) -> dict[str, Any]:
    """Say how a worker stands, to whoever started it: its ``parts``, and why channels are ``held``."""
    held = _held_by_channel(application.worker.lanes) if application.worker is not None else {}
    return {"parts": parts_of_turns(application), "held": held}


def model_standing(application: Application) -> ModelStanding:
    """Say whether the model answers, as far as that is known without asking it."""
    if application.workers is not None:
        return of_part(readiness_of(application)[1].get("model", {}))
    outage = application.worker.outage if application.worker is not None else None
    return standing_of(application.services.model if application.services is not None else None, outage)


def _held_by_channel(lanes: Lanes) -> dict[str, str]:
    """Say of each channel whose letters wait for the workspace why; under "" of all together."""
    firsts = [lane.entries[0] for lane in lanes if lane.entries]
    channels = {first.inbound.channel for first in firsts if first.held}
    found = {channel: cause_of_lanes(lanes, channel) for channel in channels}
    return {"": cause_of_lanes(lanes), **found} if found else {}


def _joined(own: Standing, standings: Sequence[Mapping[str, Any]]) -> Standing:
    """Join parts: one that is down in any worker is down, in the words of the one that is down longest."""
    parts = dict(own)
    for name, part in (item for each in standings for item in each.get("parts", {}).items()):
        known = parts.get(name)
        if known is None or (known["up"] and not part["up"]):
            parts[name] = dict(part)
        elif known["up"] and part["up"]:
            # Up since the last of them came back.
            since = max(known["since"], part["since"])
            parts[name] = {**known, "since": since, "error": known["error"] or part["error"]}
        elif not part["up"] and part["since"] < known["since"]:
            parts[name] = dict(part)
    return parts


_ADDED = ("waiting", "facts_waiting", "running")


async def status_of(application: Application) -> dict[str, Any]:
    """Gather what ``status`` shows: lanes, queue depths, parked, model, tokens and cost today.

    ``queues`` is None while the queue does not answer; its part then has the error.
    """
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


def own_lanes(application: Application) -> list[dict[str, Any]]:
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
    application: Application, said: Sequence[Mapping[str, Any]]
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
    application.unserved = unserved(depths, served(application.settings.channels))
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


def _agent_rows(application: Application) -> list[dict[str, Any]]:
    """List the agents that are configured, the default one first; none where there is no other."""
    settings = application.settings
    names = ("", *settings.agents) if settings.agents else ()
    return [{"name": shown(each), "model": settings_of(settings, each).model.name} for each in names]
