"""What tests of the Discord adapter share beside the platform itself."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import orjson

from tests.support.discord_server import DiscordServer

SENDS = "/channels/*/messages"


def book(state: Path, server: DiscordServer) -> dict[str, Any]:
    """What the cursor file holds of the bot."""
    content: dict[str, Any] = orjson.loads((state / "discord.json").read_bytes())
    found: dict[str, Any] = content["bots"][server.bot.id]
    return found
