"""Packages that only some configurations need: whether they are installed, without importing them."""

from __future__ import annotations

from importlib.util import find_spec
from typing import Final

from gateway.config.settings import Settings

MCP_MISSING: Final = "the package mcp is not installed, so the tools of these servers are not offered"
CURE: Final = "make extras"


def lacks_mcp(settings: Settings) -> bool:
    """Say whether servers are configured, but what speaks with them is not installed."""
    return bool(settings.mcp) and find_spec("mcp") is None
