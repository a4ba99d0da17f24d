"""How an adapter stands that another process of the workspace runs: a small file tells it."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from channels import state_file
from channels.errors import ChannelError
from channels.lease import held


def standing_file(state: Path, name: str) -> Path:
    """Name the file in which the process that runs an adapter says how it stands."""
    return state / f"channel-{name}.json"


def standing(state: Path, name: str) -> dict[str, Any]:
    """Say whether it is up, since when, and its last error."""
    nobody = {"up": False, "since": None, "error": "no process runs it: chat-gateway run"}
    try:
        content = state_file.read(standing_file(state, name))
    except ChannelError as error:
        return nobody | {"error": str(error)}
    try:
        runs = bool(content) and held(state, name)
    except OSError as error:
        return nobody | {"error": f"{name}.lease cannot be read: {error.strerror}"}
    if not runs:
        return nobody
    return {field: content.get(field) for field in ("up", "since", "error", "last_round_trip")}
