"""How a gateway stands, part by part: its own parts, joined with those of its workers."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from gateway.app.parts import Parts
from gateway.app.served import enabled
from gateway.app.sessions import SessionServices
from gateway.outbound.standing import standing
from gateway.turns.failures import cause_of_lanes
from gateway.turns.lanes import Lanes
from gateway.turns.policy import ModelStanding, of_part, standing_of
from session.store.state import workspace_state
from session.tools import MAX_TOOLS

Standing = dict[str, dict[str, Any]]


def readiness_of(application: Parts) -> tuple[bool, Standing]:
    """See ``Application.readiness``."""
    parts, workers, settings = parts_of_turns(application), application.workers, application.settings
    up = application.ready.is_set()
    if workers is not None:
        parts = _joined(parts, workers.standings())
        if "lanes" in parts:
            parts["lanes"]["error"] = held_of(application, "")
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
    for kind, _ in enabled(settings):
        part = here.get(kind.name) or standing(settings.state, kind.name)
        if cause := held_of(application, kind.name):
            part |= {"up": False, "error": part["error"] or cause}
        parts[kind.name] = part
    if application.clock is not None:
        parts["cron"] = application.clock.part()
    return parts["queue"]["up"] and up, parts


def parts_of_turns(application: Parts) -> Standing:
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


def standing_of_worker(application: Parts) -> dict[str, Any]:
    """Say how a worker stands, to whoever started it: its ``parts``, and why channels are ``held``."""
    held = _held_by_channel(application.worker.lanes) if application.worker is not None else {}
    return {"parts": parts_of_turns(application), "held": held}


def model_standing(application: Parts) -> ModelStanding:
    """See ``Application.model_standing``."""
    if application.workers is not None:
        return of_part(readiness_of(application)[1].get("model", {}))
    outage = application.worker.outage if application.worker is not None else None
    return standing_of(application.services.model if application.services is not None else None, outage)


def held_of(application: Parts, channel: str) -> str:
    """See ``Application.held``."""
    if application.workers is not None:
        return _cause_held(application.workers.standings(), channel)
    return cause_of_lanes(application.worker.lanes, channel or None) if application.worker is not None else ""


def _held_by_channel(lanes: Lanes) -> dict[str, str]:
    """Say of each channel whose letters wait for the workspace why; under "" of all together."""
    firsts = [lane.entries[0] for lane in lanes if lane.entries]
    channels = {first.inbound.channel for first in firsts if first.held}
    found = {channel: cause_of_lanes(lanes, channel) for channel in channels}
    return {"": cause_of_lanes(lanes), **found} if found else {}


def _cause_held(standings: Iterable[Mapping[str, Any]], channel: str) -> str:
    causes = (each.get("held", {}).get(channel, "") for each in standings)
    return "; ".join(dict.fromkeys(cause for cause in causes if cause))


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
