"""What cannot be read or written now, and so keeps messages waiting: shown with the channel they came by."""

from __future__ import annotations

from collections.abc import Iterable

from gateway.turns.lanes import Lane


class HeldBack:
    """The arrivals of one channel that wait because something of the workspace refuses."""

    def __init__(self) -> None:
        self._causes: dict[str, str] = {}

    def note(self, message_id: str, cause: str) -> None:
        """Note why a message waits, in words for the operator."""
        self._causes[message_id] = cause

    def release(self, message_id: str) -> None:
        """Note that a message waits no longer."""
        self._causes.pop(message_id, None)

    @property
    def cause(self) -> str:
        """Why arrivals wait; empty where none does."""
        return _said(list(self._causes.values()))


def cause_of_lanes(lanes: Iterable[Lane], channel: str | None = None) -> str:
    """Say why letters of a channel, or of any, wait for the workspace; empty where none does."""
    # Of ten thousand lanes hardly any is held: what costs each of them is looked at first.
    held = [entries[0] for lane in lanes if (entries := lane.entries) and entries[0].held]
    return _said([entry.held for entry in held if channel in (None, entry.inbound.channel)], of="chat")


def _said(causes: list[str], of: str = "message") -> str:
    if not causes:
        return ""
    count = f"1 {of} waits" if len(causes) == 1 else f"{len(causes)} {of}s wait"
    return f"{count}: {causes[0]}"
