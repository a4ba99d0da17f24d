"""What ``/status`` says of the line of its chat."""

from __future__ import annotations

import asyncio

from gateway.turns import outcomes
from gateway.turns.lanes import Entry, Lane


def lane_lines(lane: Lane | None) -> list[str]:
    """Say what runs and what waits in a chat, without the ``/status`` that asks."""
    asked = [entry for entry in (lane.entries if lane is not None else ()) if not _is_status(entry)]
    running = lane.running if lane is not None and lane.running in asked else None
    lines = []
    asking = asked[0].asking if asked and running is None else ""
    if asking:
        lines.append(f"waiting for an approval: {asking}")
    if running is not None:
        lines.append(f"answering: for {asyncio.get_running_loop().time() - running.begun_at:.0f} s")
    waiting = len(asked) - bool(asked and (running is not None or asked[0].tried))
    return [*lines, f"waiting: {waiting} messages"]


def _is_status(entry: Entry) -> bool:
    command = outcomes.command(entry.inbound)
    return command is not None and command.name == "status"
