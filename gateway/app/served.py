"""Which channels the processes of a workspace serve, by its settings alone."""

from __future__ import annotations

from channels import plugins
from channels.base import Kind
from channels.tables import Platform
from gateway.config.settings import Settings

CHANNELS_OF_SESSION = ("web", "cli", "cron")


def enabled(settings: Settings) -> list[tuple[Kind, Platform]]:
    """List the platforms that are switched on, with their tables."""
    kinds = plugins.installed().kinds
    tables = [(kind, getattr(settings.channels, name, None)) for name, kind in kinds.items()]
    return [(kind, table) for kind, table in tables if isinstance(table, Platform) and table.enabled]


def served(settings: Settings) -> set[str]:
    """Name the channels that processes of this workspace serve."""
    return {kind.name for kind, _ in enabled(settings)} | set(CHANNELS_OF_SESSION)
