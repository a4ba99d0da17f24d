"""All targets by their names; a module is imported when one of its targets is wanted."""

from __future__ import annotations

from collections.abc import Mapping
from importlib import import_module
from typing import Final

from tests.fuzz.target import Target

MODULES: Final[Mapping[str, str]] = {
    "transcript": "texts",
    "journal": "texts",
    "inbound": "texts",
    "outbound": "texts",
    "configuration": "texts",
    "markdown": "texts",
    "telegram": "platforms",
    "discord": "platforms",
    "mcp": "mcp_answers",
    "http": "served",
    "websocket": "served",
}


def target_of(name: str) -> Target:
    """Return a target by its name."""
    found: Mapping[str, Target] = import_module(f"tests.fuzz.{MODULES[name]}").TARGETS
    return found[name]
