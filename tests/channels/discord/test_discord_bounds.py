"""While the queue is away what Discord tells is not piled up without end."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import structlog

from channels.discord.ingress import MAX_CHANGES, MAX_WAITING
from tests.channels.discord.sweep_place import rig
from tests.support.discord_server import DiscordServer
from tests.support.discord_world import EPHEMERAL
from tests.support.discord_world import Channel as Place

EDITED = {"edited_timestamp": "2026-01-01T00:00:00+00:00"}


def shown(server: DiscordServer, place: Place, number: int, **more: Any) -> dict[str, Any]:
    """A message as the gateway shows it."""
    author = {"id": server.user("ada").id, "username": "ada"}
    found = {"id": str(number), "author": author, "content": f"text {number}", "type": 0}
    return {"channel_id": place.id, "guild_id": place.guild.id, **found, **more}  # type: ignore[union-attr]


async def test_changes_are_taken_up_to_a_bound(server: DiscordServer, general: Place, state: Path) -> None:
    """Beyond it they are lost, which the log says once; links that were unfolded take nobody's place."""
    with structlog.testing.capture_logs() as logs:
        async with rig(server, state) as rigged:
            rigged.record.gate.clear()
            for number in range(1, 2 * MAX_CHANGES):
                rigged.ingress.edited(shown(server, general, number))
            rigged.ingress.edited(shown(server, general, 1, **EDITED))
            for number in range(2, 2 * MAX_CHANGES, 2):
                rigged.ingress.edited(shown(server, general, number, **EDITED))
                rigged.ingress.deleted(shown(server, general, number + 1))
            rigged.record.gate.set()
            # Whatever was taken stands before this one.
            await rigged.ingress.sweep(rigged.place(general))
            taken = len(rigged.record.arrivals)
            rigged.ingress.edited(shown(server, general, 9_999_999, **EDITED))
            await rigged.record.text("text 9999999")

    assert rigged.record.texts()[0] == "text 1"
    assert MAX_WAITING < taken <= MAX_CHANGES
    assert [each["event"] for each in logs if each["log_level"] == "warning"] == ["changes.dropped"]


async def test_a_command_beyond_the_bound_is_answered_at_once(
    server: DiscordServer, general: Place, state: Path
) -> None:
    """Who gave it reads that it was not taken, and alone."""
    server.interactions.deadline_s = 60.0
    async with rig(server, state) as rigged:
        rigged.record.gate.clear()
        for number in range(1, MAX_CHANGES + 10):
            rigged.ingress.edited(shown(server, general, number, **EDITED))
        command = server.interact("help", channel=general)
        raw = {"type": 2, "token": command.token, "application_id": server.application_id}
        raw |= {"data": {"name": "help", "type": 1}, "member": {"user": {"id": "7", "username": "ada"}}}
        rigged.ingress.interaction(shown(server, general, int(command.id)) | raw)
        await server.until(lambda: command.acked)
        rigged.record.gate.set()
        await rigged.ingress.sweep(rigged.place(general))

    assert "/help" not in rigged.record.texts()
    assert command.original is not None
    assert command.original.flags & EPHEMERAL
    assert "try again" in command.answers[0].lower()
