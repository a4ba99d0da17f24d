"""Where the ledgers of deliveries lie: with the files that are one machine's alone."""

from __future__ import annotations

from pathlib import Path

from session.disk.local_files import local_state


def ledger_path(state: Path, channel: str) -> Path:
    """Name the ledger of a channel on this machine; ``state`` is the workspace's."""
    return local_state(state) / f"delivery-{channel}.db"


def ledgers(state: Path) -> list[Path]:
    """List the ledgers of this machine."""
    return sorted(local_state(state).glob("delivery-*.db"))
